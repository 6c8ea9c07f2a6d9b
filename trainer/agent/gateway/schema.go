package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Bounds on a schema that constrains a reply.
const (
	maxSchema  = 64 << 10 // bytes
	maxNesting = 32
	maxCount   = 1 << 14 // of characters, elements and properties
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

// checkSchema refuses a JSON schema that a grammar cannot enforce. The error names the keyword.
func checkSchema(schema json.RawMessage) error {
	if len(schema) > maxSchema {
		return fmt.Errorf("it has more than %d KiB", maxSchema>>10)
	}
	var v any
	if err := json.Unmarshal(schema, &v); err != nil {
		return err
	}
	if _, ok := v.(map[string]any); !ok {
		return fmt.Errorf("it must be an object")
	}
	if err := checkNode("schema", v, 0); err != nil {
		return err
	}
	_, err := resolve(schema)
	return err
}

// checkNode checks a schema at a path within the whole schema.
func checkNode(path string, v any, depth int) error {
	node, ok := v.(map[string]any)
	switch {
	case !ok && v == true || v == false:
		return nil
	case !ok:
		return fmt.Errorf("%s must be an object, true or false", path)
	case depth > maxNesting:
		return fmt.Errorf("%s: schemas are nested more than %d deep", path, maxNesting)
	}
	if err := checkKeywords(path, node); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(node)) {
		at := path + "." + key
		var err error
		switch inner := node[key].(type) {
		case map[string]any:
			if key == "items" || key == "additionalProperties" {
				err = checkNode(at, inner, depth+1)
			} else if slices.Contains([]string{"properties", "$defs", "definitions"}, key) {
				for _, name := range slices.Sorted(maps.Keys(inner)) {
					if err == nil {
						err = checkNode(at+"."+name, inner[name], depth+1)
					}
				}
			}
		case []any:
			if slices.Contains([]string{"anyOf", "oneOf", "allOf", "prefixItems"}, key) {
				for i, one := range inner {
					if err == nil {
						err = checkNode(fmt.Sprintf("%s[%d]", at, i), one, depth+1)
					}
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkKeywords checks the keywords of one schema, without nested schemas.
func checkKeywords(path string, node map[string]any) error {
	var alone string
	for _, key := range slices.Sorted(maps.Keys(node)) {
		switch {
		case slices.Contains(alternatives, key):
			alone = key
		case !slices.Contains(annotations, key) && !slices.Contains(assertions, key):
			return fmt.Errorf("%s.%s cannot be enforced", path, key)
		}
	}
	for key := range node {
		beside := key == "type" && (alone == "const" || alone == "enum")
		if alone != "" && key != alone && !beside && !slices.Contains(annotations, key) {
			return fmt.Errorf("%s: %s together with %s cannot be enforced", path, key, alone)
		}
	}
	if all, _ := node["allOf"].([]any); len(all) > 1 {
		return fmt.Errorf("%s.allOf with %d schemas cannot be enforced", path, len(all))
	}
	if ref, ok := node["$ref"].(string); ok && ref != "#" && !strings.HasPrefix(ref, "#/") {
		return fmt.Errorf("%s.$ref: %q is not within the schema", path, ref)
	}
	return checkBounds(path, node)
}

// checkBounds checks the numbers and patterns of a schema.
func checkBounds(path string, node map[string]any) error {
	for _, key := range []string{"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"} {
		if n, ok := node[key].(float64); ok && !(n >= 0 && n <= maxCount) {
			return fmt.Errorf("%s.%s is %v, but must be from 0 to %d", path, key, n, maxCount)
		}
	}
	pattern, hasPattern := node["pattern"].(string)
	_, hasFormat := node["format"]
	switch {
	case len(pattern) > maxPattern:
		return fmt.Errorf("%s.pattern: it has more than %d bytes", path, maxPattern)
	case (hasPattern || hasFormat) && (node["minLength"] != nil || node["maxLength"] != nil), hasPattern && hasFormat:
		return fmt.Errorf("%s: only one of pattern, format and a length can be enforced", path)
	case node["multipleOf"] != nil && node["type"] != "integer":
		return fmt.Errorf("%s.multipleOf can only be enforced for integers", path)
	}
	return nil
}
