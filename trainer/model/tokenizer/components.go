package tokenizer

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/format"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// component is a typed object of tokenizer.json: a normaliser, pre-tokeniser, decoder or post-processor. Its methods read its keys and
// keep the first error in err.
type component struct {
	kind   string
	object *ordered.Object
	growth int // of a text, as a multiple of its length; 0: it does not grow
	err    error
}

func asComponent(v any) (*component, error) {
	o, ok := v.(*ordered.Object)
	if !ok {
		return nil, fmt.Errorf("want an object, have %s", ordered.TypeName(v))
	}
	kind, ok := ordered.Value[string](o, "type")
	if !ok {
		return nil, fmt.Errorf("an object without a type")
	}
	return &component{kind: kind, object: o}, nil
}

// fail adds the kind to an error.
func (c *component) fail(format string, args ...any) {
	if c.err == nil {
		c.err = withLocation(c.kind, fmt.Errorf(format, args...))
	}
}

// flatten returns the components of nested Sequence components. The list of a Sequence's parts has the given key.
func flatten(v any, key string) ([]*component, error) {
	if v == nil {
		return nil, nil
	}
	c, err := asComponent(v)
	if err != nil || c.kind != "Sequence" {
		return []*component{c}, err
	}
	c.only(key)
	list, ok := ordered.Value[[]any](c.object, key)
	if !ok {
		c.fail("%s is not a list", key)
	}
	if c.err != nil {
		return nil, c.err
	}
	var all []*component
	for _, part := range list {
		inner, err := flatten(part, key)
		if err != nil {
			return nil, err
		}
		all = append(all, inner...)
	}
	return all, nil
}

// only refuses keys other than the type and the given keys: an unknown setting could change the result.
func (c *component) only(keys ...string) {
	for k := range c.object.All() {
		if k != "type" && !slices.Contains(keys, k) {
			c.fail("unknown key %q", k)
		}
	}
}

func (c *component) flag(key string, absent bool) bool {
	v, ok := c.object.Get(key)
	if !ok {
		return absent
	}
	b, ok := v.(bool)
	if !ok {
		c.fail("%s is not true or false", key)
	}
	return b
}

// unsupported refuses the component.
func (c *component) unsupported(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%s %q is not supported", what, c.kind)
	}
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
			before, after = processingTemplate(c)
		case "BertProcessing", "RobertaProcessing":
			before, after = processingPair(c)
		default:
			c.unsupported("post-processor")
		}
		if c.err != nil {
			return nil, nil, c.err
		}
	}
	return before, after, nil
}

// processingPair reads BertProcessing and RobertaProcessing: cls before the text, sep after it.
func processingPair(c *component) (before, after []int32) {
	c.only("sep", "cls", "trim_offsets", "add_prefix_space")
	ids := func(key string) []int32 {
		pair, _ := ordered.Value[[]any](c.object, key)
		if len(pair) != 2 {
			c.fail("%s is not a token and its id", key)
			return nil
		}
		return c.ids(key, pair[1:])
	}
	return ids("cls"), ids("sep")
}

// ids reads a list of ids, which errors call by the given name.
func (c *component) ids(name string, list []any) []int32 {
	ids, err := tokenIDs(list)
	if err != nil {
		c.fail("%s: %w", name, err)
	}
	return ids
}

// tokenIDs reads a list of ids.
func tokenIDs(list []any) (ids []int32, err error) {
	for _, v := range list {
		id, ok := v.(int64)
		if !ok || id < 0 || id >= format.MaxID {
			return nil, fmt.Errorf("%v is not the id of a token", v)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

func processingTemplate(c *component) (before, after []int32) {
	// Command-R's file has keys of ByteLevel here, which the tokenizers library does not read.
	c.only("single", "pair", "special_tokens", "add_prefix_space", "trim_offsets", "use_regex")
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
			c.fail("a part of single is neither the text (once) nor a known special token")
		}
		*ids = append(*ids, c.ids(strconv.Quote(key), list)...)
	}
	if ids == &before {
		c.fail("single does not contain the text")
	}
	return before, after
}
