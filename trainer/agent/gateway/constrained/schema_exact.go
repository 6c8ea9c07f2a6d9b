package constrained

import (
	"encoding/json"
	"math/big"
	"slices"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// node is a JSON schema with its keywords in order: objects are sampled in the order of their properties.
type node = *ordered.Object

// exactSchema returns a schema for XGrammar in which patterns replace lengths, and patterns match whole strings.
// Otherwise XGrammar would allow control characters in strings with lengths, and treat a pattern as one for the whole
// string. If end, the mark that ends the value, is not empty, strings with patterns do not contain its first character.
func exactSchema(v any, end string) (any, error) {
	n, ok := v.(node)
	if !ok {
		return v, nil
	}
	out, err := mapSubschemas("", n, func(_ string, part any) (any, error) { return exactSchema(part, end) })
	if err != nil {
		return nil, err
	}
	return exactString(out, end)
}

// exactString replaces the keywords of a string with one pattern.
func exactString(n node, end string) (any, error) {
	pattern := text(n, "pattern")
	least, most, bounded := lengths(n)
	if pattern == "" && !bounded || text(n, "type") != "string" && text(n, "type") != "" {
		return n, nil
	}
	e := exactPattern{json: true}
	if first, _ := utf8.DecodeRuneInString(end); end != "" {
		e.without = []rune{first}
	}
	whole := e.between(least, most)
	if pattern != "" {
		var err error
		if whole, err = e.whole(pattern); err != nil {
			return nil, err
		}
	}
	out := &ordered.Object{}
	for _, key := range n.Keys() {
		if v, _ := n.Get(key); !slices.Contains([]string{"pattern", "minLength", "maxLength"}, key) {
			out.Set(key, v)
		}
	}
	out.Set("type", "string")
	out.Set("pattern", "^"+whole+"$")
	return out, nil
}

// keyword returns the value of a keyword, or nil.
func keyword(n node, key string) any {
	v, _ := n.Get(key)
	return v
}

// text returns the value of a keyword if it is a string, and otherwise "".
func text(n node, key string) string {
	s, _ := keyword(n, key).(string)
	return s
}

// number returns the value of a keyword if it is a number.
func number(n node, key string) (float64, bool) {
	switch v := keyword(n, key).(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	case *big.Int:
		f, _ := v.Float64()
		return f, true
	}
	return 0, false
}

// lengths returns the bounds of a string's length. most is negative if there is no upper bound.
func lengths(n node) (least, most int, bounded bool) {
	most = -1
	if v, ok := number(n, "minLength"); ok && v > 0 {
		least, bounded = int(v), true
	}
	if v, ok := number(n, "maxLength"); ok {
		most, bounded = int(v), true
	}
	return least, most, bounded
}

// formats holds the expressions for string formats, in XGrammar's form for JSON.
var formats = map[string]string{
	"date":      `^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$`,
	"time":      `^` + clock + `$`,
	"date-time": `^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T` + clock + `$`,
	"duration":  `^P([0-9]+D(T[0-9]+(S|M|H))?|[0-9]+W|T[0-9]+(S|M|H))$`,
	"email":     `^[A-Za-z0-9_.+-]+@([A-Za-z0-9]+(-[A-Za-z0-9]+)*)(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+$`,
	"hostname":  `^[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)*$`,
	"ipv4":      `^((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])$`,
	"uri":       `^[a-z][a-z0-9+.-]*://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+$`,
	"uuid":      `^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$`,
}

const clock = `([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])`

// otherFormats are the formats that XGrammar enforces only in JSON.
var otherFormats = []string{"ipv6", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}

// parseSchema returns a schema with its keywords in order.
func parseSchema(schema json.RawMessage) (node, error) {
	v, err := ordered.Parse(schema)
	n, ok := v.(node)
	if !ok {
		n = &ordered.Object{}
	}
	return n, err
}
