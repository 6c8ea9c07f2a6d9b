package constrained

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/jsonschemas"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Bounds on a schema that constrains a reply.
const (
	maxSchema  = 64 << 10 // bytes
	maxNesting = 32
	maxCount   = 1 << 14 // characters, elements or properties that a bound may name
	maxPattern = 512     // bytes
)

// Keywords of JSON Schema. Keywords in none of these lists are refused, because the grammar would not enforce them.
var (
	annotations = []string{"title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "nullable", "discriminator",
		"$schema", "$id", "$comment", "$defs", "definitions"}
	alternatives = []string{"$ref", "const", "enum", "anyOf", "oneOf", "allOf"} // each must be the only one
	assertions   = []string{"type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems",
		"minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
		"minProperties", "maxProperties"}
)

// CheckSchema returns an error that names the keyword if a grammar cannot enforce a JSON Schema.
func CheckSchema(schema json.RawMessage) error {
	if len(schema) > maxSchema {
		return fmt.Errorf("it has more than %d KiB", maxSchema>>10)
	}
	v, err := ordered.Parse(schema)
	if err != nil {
		return err
	}
	if _, ok := v.(node); !ok {
		return fmt.Errorf("it must be an object")
	}
	if err := checkNode("schema", v, 0); err != nil {
		return err
	}
	_, err = jsonschemas.Resolve(schema)
	return err
}

// Validate returns an error unless a text is JSON that satisfies a schema. CheckSchema must accept the schema.
func Validate(schema json.RawMessage, text string) error {
	s, err := jsonschemas.Resolve(schema)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	return s.Validate(v)
}

// checkNode checks a schema at a path within the whole schema.
func checkNode(path string, v any, depth int) error {
	n, ok := v.(node)
	switch {
	case v == true || v == false:
		return nil
	case !ok:
		return fmt.Errorf("%s must be an object, true or false", path)
	case depth > maxNesting:
		return fmt.Errorf("%s: schemas are nested more than %d deep", path, maxNesting)
	}
	if err := checkKeywords(path, n); err != nil {
		return err
	}
	_, err := mapSubschemas(path, n, func(at string, part any) (any, error) { return part, checkNode(at, part, depth+1) })
	return err
}

// mapSubschemas returns a schema in which change has replaced the schemas directly within it. change receives the path of each.
func mapSubschemas(path string, n node, change func(path string, part any) (any, error)) (node, error) {
	out := &ordered.Object{}
	for _, key := range n.Keys() {
		at := path + "." + key
		value, _ := n.Get(key)
		var err error
		switch inner := value.(type) {
		case node:
			switch key {
			case "items", "additionalProperties":
				value, err = change(at, inner)
			case "properties", "$defs", "definitions":
				named := &ordered.Object{}
				for _, name := range inner.Keys() {
					part, _ := inner.Get(name)
					if part, err = change(at+"."+name, part); err != nil {
						return nil, err
					}
					named.Set(name, part)
				}
				value = named
			}
		case []any:
			if slices.Contains([]string{"anyOf", "oneOf", "allOf", "prefixItems"}, key) {
				list := slices.Clone(inner)
				for i := range list {
					if list[i], err = change(fmt.Sprintf("%s[%d]", at, i), list[i]); err != nil {
						return nil, err
					}
				}
				value = list
			}
		}
		if err != nil {
			return nil, err
		}
		out.Set(key, value)
	}
	return out, nil
}

// checkKeywords checks the keywords of one schema, without nested schemas.
func checkKeywords(path string, n node) error {
	var alone string
	for _, key := range n.Keys() {
		switch {
		case slices.Contains(alternatives, key):
			alone = key
		case !slices.Contains(annotations, key) && !slices.Contains(assertions, key):
			return fmt.Errorf("%s.%s cannot be enforced", path, key)
		}
	}
	for _, key := range n.Keys() {
		beside := key == "type" && (alone == "const" || alone == "enum")
		if alone != "" && key != alone && !beside && !slices.Contains(annotations, key) {
			return fmt.Errorf("%s: %s together with %s cannot be enforced", path, key, alone)
		}
	}
	if all, _ := keyword(n, "allOf").([]any); len(all) > 1 {
		return fmt.Errorf("%s.allOf with %d schemas cannot be enforced", path, len(all))
	}
	if ref, ok := keyword(n, "$ref").(string); ok && ref != "#" && !strings.HasPrefix(ref, "#/") {
		return fmt.Errorf("%s.$ref: %q is not within the schema", path, ref)
	}
	return checkBounds(path, n)
}

// checkBounds checks the numbers and patterns of a schema.
func checkBounds(path string, n node) error {
	for _, key := range []string{"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"} {
		if bound, ok := number(n, key); ok && !(bound >= 0 && bound <= maxCount) {
			return fmt.Errorf("%s.%s is %v, but must be from 0 to %d", path, key, bound, maxCount)
		}
	}
	_, hasPattern := keyword(n, "pattern").(string)
	_, hasFormat := n.Get("format")
	switch {
	case len(text(n, "pattern")) > maxPattern:
		return fmt.Errorf("%s.pattern: it has more than %d bytes", path, maxPattern)
	case (hasPattern || hasFormat) && (keyword(n, "minLength") != nil || keyword(n, "maxLength") != nil), hasPattern && hasFormat:
		return fmt.Errorf("%s: only one of pattern, format and a length can be enforced", path)
	case keyword(n, "multipleOf") != nil && keyword(n, "type") != "integer":
		return fmt.Errorf("%s.multipleOf can only be enforced for integers", path)
	}
	return nil
}
