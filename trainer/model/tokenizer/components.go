package tokenizer

import (
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// component is a typed object of tokenizer.json: a normaliser, pre-tokeniser, decoder or post-processor.
type component struct {
	kind   string
	object *ordered.Object
}

func asComponent(v any) (component, error) {
	o, ok := v.(*ordered.Object)
	if !ok {
		return component{}, fmt.Errorf("want an object, have %s", ordered.TypeName(v))
	}
	kind, ok := ordered.Value[string](o, "type")
	if !ok {
		return component{}, fmt.Errorf("an object without a type")
	}
	return component{kind, o}, nil
}

// flatten returns the components of nested Sequence components. The list of a Sequence's parts has the given key.
func flatten(v any, key string) ([]component, error) {
	if v == nil {
		return nil, nil
	}
	c, err := asComponent(v)
	if err != nil || c.kind != "Sequence" {
		return []component{c}, err
	}
	if err := c.only(key); err != nil {
		return nil, err
	}
	list, ok := ordered.Value[[]any](c.object, key)
	if !ok {
		return nil, fmt.Errorf("component Sequence: %s is not a list", key)
	}
	var all []component
	for _, part := range list {
		inner, err := flatten(part, key)
		if err != nil {
			return nil, err
		}
		all = append(all, inner...)
	}
	return all, nil
}

// only returns an error if there are keys other than the type and the given keys: an unknown setting could change the
// result.
func (c component) only(keys ...string) error {
	for k := range c.object.All() {
		if k != "type" && !slices.Contains(keys, k) {
			return fmt.Errorf("%s: unknown key %q", c.kind, k)
		}
	}
	return nil
}

func (c component) flag(key string, absent bool) (bool, error) {
	v, ok := c.object.Get(key)
	if !ok {
		return absent, nil
	}
	b, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("%s: %s is not true or false", c.kind, key)
	}
	return b, nil
}

func (c component) unsupported(what string) error {
	return fmt.Errorf("%s %q is not supported", what, c.kind)
}

// buildPostProcessor returns the ids that the post-processor adds before and after a single text.
func buildPostProcessor(v any) (before, after []int32, err error) {
	list, err := flatten(v, "processors")
	if err != nil {
		return nil, nil, err
	}
	for _, c := range list {
		if c.kind != "ByteLevel" && (before != nil || after != nil) {
			return nil, nil, fmt.Errorf("two steps that add tokens are not supported")
		}
		switch c.kind {
		case "ByteLevel": // changes offsets only
		case "TemplateProcessing":
			before, after, err = processingTemplate(c)
		case "BertProcessing", "RobertaProcessing":
			before, after, err = processingPair(c)
		default:
			err = c.unsupported("post-processor")
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return before, after, nil
}

// processingPair reads BertProcessing and RobertaProcessing: cls before the text, sep after it.
func processingPair(c component) (before, after []int32, err error) {
	if err := c.only("sep", "cls", "trim_offsets", "add_prefix_space"); err != nil {
		return nil, nil, err
	}
	ids := map[string][]int32{}
	for _, key := range []string{"cls", "sep"} {
		pair, _ := ordered.Value[[]any](c.object, key)
		if len(pair) != 2 {
			return nil, nil, fmt.Errorf("%s: %s is not a token and its id", c.kind, key)
		}
		if ids[key], err = tokenIDs(pair[1:]); err != nil {
			return nil, nil, fmt.Errorf("%s: %s: %w", c.kind, key, err)
		}
	}
	return ids["cls"], ids["sep"], nil
}

// tokenIDs reads a list of ids.
func tokenIDs(list []any) (ids []int32, err error) {
	for _, v := range list {
		id, ok := v.(int64)
		if !ok || id < 0 || id >= maxID {
			return nil, fmt.Errorf("%v is not the id of a token", v)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

func processingTemplate(c component) (before, after []int32, err error) {
	// Command-R's file has keys of ByteLevel here, which the tokenizers library does not read.
	if err := c.only("single", "pair", "special_tokens", "add_prefix_space", "trim_offsets", "use_regex"); err != nil {
		return nil, nil, err
	}
	special, _ := ordered.Value[*ordered.Object](c.object, "special_tokens")
	single, _ := ordered.Value[[]any](c.object, "single")
	ids := &before
	for _, part := range single {
		o, _ := part.(*ordered.Object)
		if _, ok := o.Get("Sequence"); ok && ids == &before {
			ids = &after
			continue
		}
		reference, _ := ordered.Value[*ordered.Object](o, "SpecialToken")
		key, _ := ordered.Value[string](reference, "id")
		definition, _ := ordered.Value[*ordered.Object](special, key)
		list, ok := ordered.Value[[]any](definition, "ids")
		if !ok {
			return nil, nil, fmt.Errorf("TemplateProcessing: a part of single is neither the text (once) nor a known special token")
		}
		more, err := tokenIDs(list)
		if err != nil {
			return nil, nil, fmt.Errorf("TemplateProcessing: %q: %w", key, err)
		}
		*ids = append(*ids, more...)
	}
	if ids == &before {
		return nil, nil, fmt.Errorf("TemplateProcessing: single does not contain the text")
	}
	return before, after, nil
}
