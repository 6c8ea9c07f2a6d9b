// Package jsonschemas reads JSON Schemas from outside for validation in bounded time.
package jsonschemas

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// maxSchemas is the largest number of schemas that the validator tries for a single value.
const maxSchemas = 4096

// Resolve returns a schema for validation and ignores its $schema. It returns an error if the validator cannot read it or might take very
// long. The validator tries each alternative and each reference again, and never ends if a schema refers to itself.
func Resolve(raw json.RawMessage) (*jsonschema.Resolved, error) {
	var root any
	if err := json.Unmarshal(raw, &root); err != nil {
		return nil, err
	}
	w := walker{root: root, counts: map[string]int{}}
	if err := w.walk("", root); err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, err
	}
	s.Schema = ""
	return s.Resolve(nil)
}

// The keywords under which a schema has others: for the same value (true) or for a part of it.
var (
	singleKeywords = map[string]bool{"not": true, "if": true, "then": true, "else": true, "items": false, "additionalItems": false, "contains": false,
		"unevaluatedItems": false, "additionalProperties": false, "propertyNames": false, "unevaluatedProperties": false}
	listKeywords = map[string]bool{"allOf": true, "anyOf": true, "oneOf": true, "prefixItems": false, "items": false}
	mapKeywords  = map[string]bool{"dependentSchemas": true, "dependencies": true, "properties": false, "patternProperties": false, "$defs": false,
		"definitions": false}
)

// keyword returns the keyword that the validator reads from a key: it ignores case, as encoding/json does.
func keyword(key string) string {
	for word := range keywords {
		if strings.EqualFold(key, word) {
			return word
		}
	}
	return key
}

var keywords = func() map[string]bool {
	all := map[string]bool{"$ref": true, "$dynamicRef": true, "$recursiveRef": true}
	for _, words := range []map[string]bool{singleKeywords, listKeywords, mapKeywords} {
		maps.Copy(all, words)
	}
	return all
}()

// walker counts the schemas of each value. A schema is known by its JSON pointer.
type walker struct {
	root   any
	counts map[string]int // schemas that are tried for a value with this one; -1: being counted
}

// walk counts for every schema of the document.
func (w *walker) walk(at string, schema any) error {
	if _, err := w.count(at, schema); err != nil {
		return err
	}
	return each(at, schema, func(at string, inner any, _ bool) error { return w.walk(at, inner) })
}

func (w *walker) count(at string, schema any) (total int, err error) {
	switch known, ok := w.counts[at]; {
	case known < 0:
		return 0, errors.New("a schema refers to itself for the same value")
	case ok:
		return known, nil
	}
	w.counts[at] = -1
	total = 1
	add := func(at string, inner any, same bool) error {
		if !same {
			return nil
		}
		n, err := w.count(at, inner)
		if total += n; err == nil && total > maxSchemas {
			err = fmt.Errorf("it tries more than %d schemas for one value", maxSchemas)
		}
		return err
	}
	if err = each(at, schema, add); err != nil {
		return 0, err
	}
	object, _ := schema.(map[string]any)
	for key, value := range object {
		ref, ok := value.(string)
		if !ok || !slices.Contains([]string{"$ref", "$dynamicRef", "$recursiveRef"}, keyword(key)) {
			continue
		}
		to, target, err := w.find(ref)
		if err == nil {
			err = add(to, target, true)
		}
		if err != nil {
			return 0, err
		}
	}
	w.counts[at] = total
	return total, nil
}

// each calls f for the schemas directly within a schema. same: they apply to the same value.
func each(at string, schema any, f func(at string, inner any, same bool) error) error {
	object, _ := schema.(map[string]any)
	for key, value := range object {
		at := at + "/" + escaped.Replace(key)
		key = keyword(key)
		switch value := value.(type) {
		case map[string]any:
			if same, ok := singleKeywords[key]; ok {
				if err := f(at, value, same); err != nil {
					return err
				}
			}
			if same, ok := mapKeywords[key]; ok {
				for name, inner := range value {
					if err := f(at+"/"+escaped.Replace(name), inner, same); err != nil {
						return err
					}
				}
			}
		case []any:
			if same, ok := listKeywords[key]; ok {
				for i, inner := range value {
					if err := f(at+"/"+strconv.Itoa(i), inner, same); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

var (
	escaped   = strings.NewReplacer("~", "~0", "/", "~1")
	unescaped = strings.NewReplacer("~1", "/", "~0", "~")
)

// find returns the schema that a reference within the document names, and its JSON pointer.
func (w *walker) find(ref string) (at string, schema any, err error) {
	pointer, ok := strings.CutPrefix(ref, "#")
	if pointer, err = url.PathUnescape(pointer); !ok || err != nil || pointer != "" && pointer[0] != '/' {
		return "", nil, fmt.Errorf("the reference %.80q is not one within the schema, such as #/$defs/NAME", ref)
	}
	schema = w.root
	if pointer == "" {
		return "", schema, nil
	}
	for part := range strings.SplitSeq(pointer[1:], "/") {
		var inner any
		switch outer := schema.(type) {
		case map[string]any:
			inner, ok = outer[unescaped.Replace(part)]
		case []any:
			i, err := strconv.Atoi(part)
			if ok = err == nil && i >= 0 && i < len(outer); ok {
				inner = outer[i]
			}
		default:
			ok = false
		}
		if !ok {
			return "", nil, fmt.Errorf("the reference %.80q names nothing", ref)
		}
		schema = inner
	}
	return pointer, schema, nil
}
