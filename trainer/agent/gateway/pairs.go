package gateway

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// pairsForm builds the grammar of arguments that are keys and values between marks. Strings have no quotes in this
// notation. If the marks do not distinguish a string from another value, the reader interprets a text that is JSON of
// an allowed type as that value. The grammar accepts a value only if the reader's interpretation satisfies the schema.
type pairsForm struct {
	*agent.Pairs
	tokens *tokenizer.Tokenizer
	root   node
}

// arguments returns the form of a call with the marks around its arguments.
func (f *pairsForm) arguments(before, after string) (object, error) {
	properties, required, err := f.parameters()
	if err != nil {
		return nil, err
	}
	elements := constant(f.tokens, before)
	for _, key := range properties.Keys() {
		schema, _ := properties.Get(key)
		pair, err := f.pair(key, schema)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if !slices.Contains(required, any(key)) {
			pair = object{"type": "optional", "content": pair}
		}
		elements = append(elements, pair)
	}
	some := sequence(append(elements, constant(f.tokens, after)...))
	if len(required) == 0 { // some templates print a call without arguments differently
		return object{"type": "or", "elements": []any{sequence(constant(f.tokens, f.None)), some}}, nil
	}
	return some, nil
}

// parameters returns the schemas of a function's parameters, and the names of the required ones.
func (f *pairsForm) parameters() (properties node, required []any, err error) {
	if properties, _ = keyword(f.root, "properties").(node); properties == nil {
		properties = &ordered.Object{}
	}
	for _, key := range f.root.Keys() {
		n, _ := number(f.root, key)
		fixed := key == "minProperties" && n > 0 || key == "maxProperties" && n < float64(properties.Len())
		if fixed || slices.Contains(alternatives, key) {
			return nil, nil, fmt.Errorf("parameters with %s cannot be enforced in the notation of the model's chat template", key)
		}
	}
	required, _ = keyword(f.root, "required").([]any)
	for _, key := range required {
		if name, _ := key.(string); !slices.Contains(properties.Keys(), name) {
			return nil, nil, fmt.Errorf("the required parameter %v has no schema", key)
		}
	}
	return properties, required, nil
}

// pair returns the form of a key and its value.
func (f *pairsForm) pair(key string, schema any) (any, error) {
	alternatives, err := leaves(schema, f.root)
	if err != nil {
		return nil, err
	}
	texts, others, err := f.split(alternatives)
	if err != nil {
		return nil, err
	}
	var forms []any
	for _, group := range []struct {
		middle string
		values []any
	}{{f.Text, texts}, {f.Other, others}} {
		if len(group.values) > 0 {
			value := object{"type": "or", "elements": group.values}
			forms = append(forms, sequence(slices.Concat(constant(f.tokens, f.Open+key+group.middle), []any{value}, constant(f.tokens, f.Close))))
		}
	}
	if forms == nil {
		return nil, fmt.Errorf("a schema whose values would all be read as other values cannot be enforced in the notation of the model's chat template")
	}
	return object{"type": "or", "elements": forms}, nil
}

// split returns the forms of strings and of other values.
func (f *pairsForm) split(leaves []leaf) (texts, others []any, err error) {
	mixed, guarded := false, false
	for _, l := range leaves {
		mixed = mixed || l.kind != "string"
		guarded = guarded || l.kind != "string" && !l.free()
	}
	for _, l := range leaves {
		if l.kind == "string" {
			some, err := f.textForms(l, mixed && !f.Typed(), guarded)
			if err != nil {
				return nil, nil, err
			}
			texts = append(texts, some...)
			continue
		}
		if l.kind == "" {
			if texts = append(texts, f.anyText()); !f.Typed() {
				continue
			}
		}
		form, err := f.json(l.schema)
		if err != nil {
			return nil, nil, err
		}
		others = append(others, form)
	}
	return texts, others, nil
}

// cdata begins a value in brackets that the reader removes.
const cdata = "<![CDATA["

// anyText returns the form of any text that does not end the value.
func (f *pairsForm) anyText() object {
	return object{"type": "any_text", "excludes": []string{f.End, cdata, markByte}}
}

// textForms returns the forms of a string. If other types are allowed, too, the string must not be read as one of them.
// This matters only if guarded; otherwise the value that is read satisfies the schema in any case.
func (f *pairsForm) textForms(l leaf, mixed, guarded bool) ([]any, error) {
	guarded = guarded && mixed
	if v, ok := l.schema.Get("const"); ok {
		return f.constantText(fmt.Sprint(v), guarded), nil
	}
	pattern := text(l.schema, "pattern")
	if format := text(l.schema, "format"); format != "" {
		pattern = formats[format]
		if pattern == "" && slices.Contains(otherFormats, format) {
			return nil, fmt.Errorf("the format %s cannot be enforced in the notation of the model's chat template", format)
		}
	}
	least, most, bounded := lengths(l.schema)
	e := exactPattern{}
	if end, _ := utf8.DecodeRuneInString(f.End); most < 0 || pattern != "" || most >= utf8.RuneCountInString(f.End) {
		e.without = []rune{end}
	}
	switch {
	case guarded && (pattern != "" || bounded):
		return nil, fmt.Errorf("a string with a pattern, a format or a length together with other bounded types cannot be enforced in the notation of " +
			"the model's chat template")
	case pattern != "":
		whole, err := e.whole(pattern)
		return []any{object{"type": "regex", "pattern": whole}}, err
	case guarded:
		return []any{sequence([]any{object{"type": "regex", "pattern": unlikeJSON}, f.anyText()})}, nil
	case !bounded:
		return []any{f.anyText()}, nil
	case most < 0:
		return []any{sequence([]any{object{"type": "regex", "pattern": e.between(least, least)}, f.anyText()})}, nil
	}
	return []any{object{"type": "regex", "pattern": e.between(least, most)}}, nil
}

// unlikeJSON matches first characters of texts that are neither JSON nor a Python literal.
const unlikeJSON = "[a-eg-mo-su-zA-EG-MO-SU-Z_]"

// constantText returns the form of a string that is read as itself, or nil if it would be read as another value.
func (f *pairsForm) constantText(text string, guarded bool) []any {
	first := text == "" || strings.ContainsRune("tfnTFN", rune(text[0])) || !(text[0]|0x20 >= 'a' && text[0]|0x20 <= 'z')
	if strings.Contains(text, f.End) || strings.Contains(text, cdata) || strings.Contains(text, markByte) || guarded && first {
		return nil
	}
	return []any{object{"type": "const_string", "value": text}}
}

// json returns the form of JSON for a part of the schema. No text in the JSON ends the value.
func (f *pairsForm) json(schema node) (any, error) {
	whole := &ordered.Object{}
	for _, n := range []node{f.root, schema} {
		for _, key := range n.Keys() {
			if n == schema || key == "$defs" || key == "definitions" {
				whole.Set(key, keyword(n, key))
			}
		}
	}
	return jsonForm(whole, f.End)
}
