package constrained

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// leaf is an alternative of a schema. kind is string, another type, or "" for any type.
type leaf struct {
	kind   string
	schema node
}

// unconstrained reports whether every value of the type satisfies the schema.
func (l leaf) unconstrained() bool {
	for _, key := range l.schema.Keys() {
		open := (key == "additionalProperties" || key == "items") && keyword(l.schema, key) == true
		if key != "type" && !open && !slices.Contains(annotations, key) {
			return false
		}
	}
	return true
}

// leaves returns the alternatives of a schema; root resolves its references.
func leaves(schema any, root node) ([]leaf, error) {
	return (&lister{root: root}).leaves(schema, 0)
}

// lister lists the alternatives of a schema.
type lister struct {
	root  node
	steps int // schemas visited so far
}

func (l *lister) leaves(schema any, depth int) ([]leaf, error) {
	n, _ := schema.(node)
	switch l.steps++; {
	case depth > maxNesting:
		return nil, fmt.Errorf("a schema within itself cannot be enforced there")
	case l.steps > maxCount:
		return nil, fmt.Errorf("a schema with more than %d alternatives cannot be enforced there", maxCount)
	}
	if ref, ok := n.Get("$ref"); ok {
		return l.leaves(find(fmt.Sprint(ref), l.root), depth+1)
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		v, ok := n.Get(key)
		if !ok {
			continue
		}
		var out []leaf
		branches, _ := v.([]any)
		for _, b := range branches {
			more, err := l.leaves(b, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
		return out, nil
	}
	if constants := constantsOf(n); constants != nil {
		return constants, nil
	}
	v, typed := n.Get("type")
	kinds, several := v.([]any)
	switch {
	case !typed:
		return []leaf{{inferType(n), n}}, nil
	case !several:
		return []leaf{{fmt.Sprint(v), n}}, nil
	}
	var out []leaf
	for _, kind := range kinds {
		one := n.Clone()
		one.Set("type", kind)
		out = append(out, leaf{fmt.Sprint(kind), one})
	}
	return out, nil
}

// constantsOf returns one leaf for each value of a schema with const or enum, and nil for any other schema.
func constantsOf(n node) (out []leaf) {
	values, _ := keyword(n, "enum").([]any)
	if v, ok := n.Get("const"); ok {
		values = []any{v}
	}
	for _, v := range values {
		kind := "other"
		if _, ok := v.(string); ok {
			kind = "string"
		}
		out = append(out, leaf{kind, ordered.NewObject("const", v)})
	}
	return out
}

// inferType returns the type of a schema without a type, inferred from its keywords.
func inferType(n node) string {
	for _, key := range n.Keys() {
		if slices.Contains([]string{"minLength", "maxLength", "pattern", "format"}, key) {
			return "string"
		}
		if slices.Contains(assertions, key) {
			return "other"
		}
	}
	return ""
}

// find returns the part of a schema that a reference names.
func find(ref string, root node) any {
	var at any = root
	for part := range strings.SplitSeq(strings.Trim(ref, "#/"), "/") {
		if n, _ := at.(node); part != "" {
			at = keyword(n, part)
		}
	}
	return at
}
