package constrained

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// pairsTag builds the part for arguments that are keys and values between marks. Strings have no quotes in this
// notation. If the marks do not distinguish a string from another value, the reader interprets a text that is JSON of
// an allowed type as that value. The grammar accepts a value only if the reader's interpretation satisfies the schema.
type pairsTag struct {
	*agent.Pairs
	tokens *tokenizer.Tokenizer
	root   node
}

// arguments returns the part for a call with the marks around its arguments.
func (p *pairsTag) arguments(before, after string) (object, error) {
	properties, required, err := p.parameters()
	if err != nil {
		return nil, err
	}
	elements := constant(p.tokens, before)
	for _, key := range properties.Keys() {
		schema, _ := properties.Get(key)
		pair, err := p.pair(key, schema)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if !slices.Contains(required, any(key)) {
			pair = object{"type": "optional", "content": pair}
		}
		elements = append(elements, pair)
	}
	some := sequence(append(elements, constant(p.tokens, after)...))
	if len(required) == 0 { // some templates print a call without arguments differently
		return object{"type": "or", "elements": []any{sequence(constant(p.tokens, p.None)), some}}, nil
	}
	return some, nil
}

// parameters returns the schemas of a function's parameters, and the names of the required ones.
func (p *pairsTag) parameters() (properties node, required []any, err error) {
	if properties, _ = keyword(p.root, "properties").(node); properties == nil {
		properties = &ordered.Object{}
	}
	for _, key := range p.root.Keys() {
		n, _ := number(p.root, key)
		fixed := key == "minProperties" && n > 0 || key == "maxProperties" && n < float64(properties.Len())
		if fixed || slices.Contains(alternatives, key) {
			return nil, nil, fmt.Errorf("parameters with %s cannot be enforced in the notation of the model's chat template", key)
		}
	}
	required, _ = keyword(p.root, "required").([]any)
	for _, key := range required {
		if name, _ := key.(string); !slices.Contains(properties.Keys(), name) {
			return nil, nil, fmt.Errorf("the required parameter %v has no schema", key)
		}
	}
	return properties, required, nil
}

// pair returns the part for a key and its value.
func (p *pairsTag) pair(key string, schema any) (any, error) {
	alternatives, err := leaves(schema, p.root)
	if err != nil {
		return nil, err
	}
	texts, others, err := p.split(alternatives)
	if err != nil {
		return nil, err
	}
	var parts []any
	for _, group := range []struct {
		middle string
		values []any
	}{{p.Text, texts}, {p.Other, others}} {
		if len(group.values) > 0 {
			value := object{"type": "or", "elements": group.values}
			parts = append(parts, sequence(slices.Concat(constant(p.tokens, p.Open+key+group.middle), []any{value}, constant(p.tokens, p.Close))))
		}
	}
	if parts == nil {
		return nil, fmt.Errorf("a schema whose values would all be read as other values cannot be enforced in the notation of the model's chat template")
	}
	return object{"type": "or", "elements": parts}, nil
}

// split returns the parts for strings and of other values.
func (p *pairsTag) split(leaves []leaf) (texts, others []any, err error) {
	mixed, guarded := false, false
	for _, l := range leaves {
		mixed = mixed || l.kind != "string"
		guarded = guarded || l.kind != "string" && !l.unconstrained()
	}
	for _, l := range leaves {
		if l.kind == "string" {
			some, err := p.textTags(l, mixed && !p.Typed(), guarded)
			if err != nil {
				return nil, nil, err
			}
			texts = append(texts, some...)
			continue
		}
		if l.kind == "" {
			if texts = append(texts, p.anyText()); !p.Typed() {
				continue
			}
		}
		part, err := p.json(l.schema)
		if err != nil {
			return nil, nil, err
		}
		others = append(others, part)
	}
	return texts, others, nil
}

// cdata begins a value in brackets that the reader removes.
const cdata = "<![CDATA["

// anyText returns the part for any text that does not end the value.
func (p *pairsTag) anyText() object {
	return object{"type": "any_text", "excludes": []string{p.End, cdata, markByte}}
}

// textTags returns the parts for a string. If other types are allowed, too, the string must not be read as one of them.
// This matters only if guarded; otherwise the value that is read satisfies the schema in any case.
func (p *pairsTag) textTags(l leaf, mixed, guarded bool) ([]any, error) {
	guarded = guarded && mixed
	if v, ok := l.schema.Get("const"); ok {
		return p.constantText(fmt.Sprint(v), guarded), nil
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
	if end, _ := utf8.DecodeRuneInString(p.End); most < 0 || pattern != "" || most >= utf8.RuneCountInString(p.End) {
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
		return []any{sequence([]any{object{"type": "regex", "pattern": notJSONStart}, p.anyText()})}, nil
	case !bounded:
		return []any{p.anyText()}, nil
	case most < 0:
		return []any{sequence([]any{object{"type": "regex", "pattern": e.between(least, least)}, p.anyText()})}, nil
	}
	return []any{object{"type": "regex", "pattern": e.between(least, most)}}, nil
}

// notJSONStart matches first characters of texts that are neither JSON nor a Python literal.
const notJSONStart = "[a-eg-mo-su-zA-EG-MO-SU-Z_]"

// constantText returns the part for a string that is read as itself, or nil if it would be read as another value.
func (p *pairsTag) constantText(text string, guarded bool) []any {
	first := text == "" || strings.ContainsRune("tfnTFN", rune(text[0])) || !(text[0]|0x20 >= 'a' && text[0]|0x20 <= 'z')
	if strings.Contains(text, p.End) || strings.Contains(text, cdata) || strings.Contains(text, markByte) || guarded && first {
		return nil
	}
	return []any{object{"type": "const_string", "value": text}}
}

// json returns the part for JSON of a schema within the parameters. No text in the JSON ends the value.
func (p *pairsTag) json(schema node) (any, error) {
	whole := &ordered.Object{}
	for _, n := range []node{p.root, schema} {
		for _, key := range n.Keys() {
			if n == schema || key == "$defs" || key == "definitions" {
				whole.Set(key, keyword(n, key))
			}
		}
	}
	return jsonTag(whole, p.End)
}
