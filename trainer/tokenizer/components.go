package tokenizer

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/tokenizer/ordered"
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
	kind, _ := o.Get("type")
	name, ok := kind.(string)
	if !ok {
		return component{}, fmt.Errorf("an object without a type")
	}
	return component{name, o}, nil
}

// flatten returns the components of nested Sequence components, whose parts are under key.
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
	parts, _ := c.object.Get(key)
	list, ok := parts.([]any)
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

// only refuses keys other than the type and the given keys: an unknown setting cannot be followed.
func (c component) only(keys ...string) error {
	known := map[string]bool{"type": true}
	for _, k := range keys {
		known[k] = true
	}
	for _, k := range c.object.Keys() {
		if !known[k] {
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

// buildNormalizer supports NFC and null.
func buildNormalizer(v any) (func(string) string, error) {
	list, err := flatten(v, "normalizers")
	if err != nil {
		return nil, err
	}
	var normalize func(string) string
	for _, c := range list {
		if c.kind != "NFC" {
			return nil, c.unsupported("normalizer")
		}
		if err := c.only(); err != nil {
			return nil, err
		}
		normalize = nfc
	}
	return normalize, nil
}

// buildByteLevelSteps reads the pre-tokeniser of a byte-level BPE: Digits and Split steps, then ByteLevel.
func buildByteLevelSteps(v any) ([]splitter, error) {
	list, err := flatten(v, "pretokenizers")
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[len(list)-1].kind != "ByteLevel" {
		return nil, fmt.Errorf("BPE without a final ByteLevel step is not supported")
	}
	var steps []splitter
	for i, c := range list {
		var step splitter
		switch {
		case c.kind == "ByteLevel" && i == len(list)-1:
			step, err = byteLevelStep(c)
		case c.kind == "Digits":
			step, err = digitsStep(c)
		case c.kind == "Split":
			step, err = splitStep(c)
		default:
			err = c.unsupported("pre-tokenizer")
		}
		if err != nil {
			return nil, err
		}
		if step != nil {
			steps = append(steps, step)
		}
	}
	return steps, nil
}

func byteLevelStep(c component) (splitter, error) {
	if err := c.only("add_prefix_space", "trim_offsets", "use_regex"); err != nil {
		return nil, err
	}
	prefix, err := c.flag("add_prefix_space", true)
	if err != nil {
		return nil, err
	}
	if prefix {
		return nil, fmt.Errorf("ByteLevel: add_prefix_space true is not supported")
	}
	if regex, err := c.flag("use_regex", true); err != nil || !regex {
		return nil, err
	}
	return splitGPT2, nil
}

func digitsStep(c component) (splitter, error) {
	if err := c.only("individual_digits"); err != nil {
		return nil, err
	}
	if individual, err := c.flag("individual_digits", false); err != nil || individual {
		return splitDigits, err
	}
	return splitDigitRuns, nil
}

func splitStep(c component) (splitter, error) {
	if err := c.only("pattern", "behavior", "invert"); err != nil {
		return nil, err
	}
	if invert, err := c.flag("invert", false); err != nil || invert {
		return nil, fmt.Errorf("component Split: invert has to be false")
	}
	if b, _ := c.object.Get("behavior"); b != "Isolated" {
		return nil, fmt.Errorf("component Split: behavior %v is not supported", b)
	}
	v, _ := c.object.Get("pattern")
	pattern, _ := v.(*ordered.Object)
	regex, _ := pattern.Get("Regex")
	text, ok := regex.(string)
	if !ok || pattern.Len() != 1 {
		return nil, fmt.Errorf("component Split: a pattern that is not a Regex is not supported")
	}
	step, ok := splitPatterns[text]
	if !ok {
		return nil, fmt.Errorf("component Split: the pattern %q is not supported", text)
	}
	return step, nil
}

// buildWordStep reads the pre-tokeniser of a word-level model.
func buildWordStep(v any) (splitter, error) {
	list, err := flatten(v, "pretokenizers")
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("WordLevel needs one pre-tokenizer, WhitespaceSplit or Whitespace; there are %d", len(list))
	}
	switch c := list[0]; c.kind {
	case "WhitespaceSplit":
		return splitWords, c.only()
	case "Whitespace":
		return splitWordsAndMarks, c.only()
	default:
		return nil, c.unsupported("pre-tokenizer")
	}
}

// checkByteLevelDecoder accepts ByteLevel. It also accepts the sequence that transformers writes for converted GGUF files:
// ByteFallback, Fuse, Replace("▁", " "), ByteLevel. That sequence decodes to the same text if every token is byte-level
// text, which contains no ▁, and no token is a <0x..> token.
func checkByteLevelDecoder(v any, tokens []token) error {
	list, err := flatten(v, "decoders")
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("BPE without a decoder is not supported")
	}
	for i, c := range list {
		switch {
		case c.kind == "ByteLevel" && i == len(list)-1:
			err = c.only("add_prefix_space", "trim_offsets", "use_regex")
		case len(list) == 4 && (i == 0 && c.kind == "ByteFallback" || i == 1 && c.kind == "Fuse"):
			err = c.only()
		case len(list) == 4 && i == 2 && c.kind == "Replace":
			err = checkReplace(c)
		default:
			err = c.unsupported("decoder")
		}
		if err != nil {
			return err
		}
	}
	if len(list) == 1 {
		return nil
	}
	for id, t := range tokens {
		if _, ok := byteLevelBytes(t.text); t.present && !ok || isByteToken(t.text) {
			return fmt.Errorf("a decoder with ByteFallback is not supported for token %d, %.60q", id, t.text)
		}
	}
	return nil
}

func checkReplace(c component) error {
	v, _ := c.object.Get("pattern")
	pattern, _ := v.(*ordered.Object)
	from, _ := pattern.Get("String")
	to, _ := c.object.Get("content")
	if from != "▁" || to != " " || pattern.Len() != 1 {
		return fmt.Errorf("component Replace: only ▁ by a space is supported")
	}
	return c.only("pattern", "content")
}

func isByteToken(s string) bool { return len(s) == 6 && s[:3] == "<0x" && s[5] == '>' }

// buildPostProcessor returns the ids that TemplateProcessing adds before and after a single text.
func buildPostProcessor(v any) (before, after []int32, err error) {
	list, err := flatten(v, "processors")
	if err != nil {
		return nil, nil, err
	}
	for _, c := range list {
		switch c.kind {
		case "ByteLevel": // changes offsets only
		case "TemplateProcessing":
			if before != nil || after != nil {
				return nil, nil, fmt.Errorf("two TemplateProcessing steps are not supported")
			}
			before, after, err = processingTemplate(c)
		default:
			err = c.unsupported("post-processor")
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return before, after, nil
}

func processingTemplate(c component) (before, after []int32, err error) {
	if err := c.only("single", "pair", "special_tokens"); err != nil {
		return nil, nil, err
	}
	v, _ := c.object.Get("special_tokens")
	special, _ := v.(*ordered.Object)
	v, _ = c.object.Get("single")
	single, _ := v.([]any)
	ids := &before
	for _, part := range single {
		o, _ := part.(*ordered.Object)
		if _, ok := o.Get("Sequence"); ok && ids == &before {
			ids = &after
			continue
		}
		v, _ := o.Get("SpecialToken")
		reference, _ := v.(*ordered.Object)
		name, _ := reference.Get("id")
		key, _ := name.(string)
		v, _ = special.Get(key)
		definition, _ := v.(*ordered.Object)
		v, _ = definition.Get("ids")
		list, ok := v.([]any)
		if !ok {
			return nil, nil, fmt.Errorf("TemplateProcessing: a part of single is neither the text (once) nor a known special token")
		}
		for _, id := range list {
			n, ok := id.(int64)
			if !ok || n < 0 || n >= maxID {
				return nil, nil, fmt.Errorf("TemplateProcessing: id %v of %q is not the id of a token", id, key)
			}
			*ids = append(*ids, int32(n))
		}
	}
	if ids == &before {
		return nil, nil, fmt.Errorf("TemplateProcessing: single does not contain the text")
	}
	return before, after, nil
}
