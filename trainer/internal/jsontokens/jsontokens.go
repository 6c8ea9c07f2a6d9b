// Package jsontokens reads JSON piece by piece, with limits. Its callers decide which Go values represent objects and numbers.
package jsontokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Reader reads a JSON document. A limit of 0 means no limit.
type Reader struct {
	MaxDepth   int  // nesting of arrays and objects in Value
	MaxValues  int  // values that Value reads in total
	MaxKey     int  // bytes of a key
	UniqueKeys bool // equal keys in one object are an error

	d      *json.Decoder
	maker  Maker
	values int
	depth  int
}

// Maker makes the values of objects and numbers. The other values are nil, bool, string and []any.
type Maker interface {
	Object() (object any, set func(key string, value any))
	Number(text string) (any, error)
}

// New reads from r.
func New(r io.Reader, m Maker) *Reader {
	d := json.NewDecoder(r)
	d.UseNumber()
	return &Reader{d: d, maker: m}
}

// End returns an error unless the document has ended.
func (r *Reader) End() error {
	if _, err := r.d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("json: text follows the value, at byte %d", r.d.InputOffset())
	}
	return nil
}

// Object reads an object. It calls member for each key; member must read the key's value.
func (r *Reader) Object(member func(key string) error) error {
	if err := r.open('{', "an object"); err != nil {
		return err
	}
	return r.members(member)
}

// Array reads an array. It calls element for each value; element must read the value.
func (r *Reader) Array(element func() error) error {
	if err := r.open('[', "an array"); err != nil {
		return err
	}
	return r.elements(element)
}

// String reads a string.
func (r *Reader) String() (string, error) {
	t, err := r.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", r.unexpected("a string", t)
	}
	return s, nil
}

// Int reads an integer from 0 to most.
func (r *Reader) Int(most int64) (int64, error) {
	t, err := r.token()
	if err != nil {
		return 0, err
	}
	n, ok := t.(json.Number)
	if !ok {
		return 0, r.unexpected("an integer", t)
	}
	i, err := strconv.ParseInt(string(n), 10, 64)
	if err != nil || n[0] == '-' || i > most {
		return 0, fmt.Errorf("json: %.40s at byte %d is not an integer between 0 and %d", n, r.d.InputOffset(), most)
	}
	return i, nil
}

// StringOrArray reads a string, or an array as Array does.
func (r *Reader) StringOrArray(element func() error) (s string, isString bool, err error) {
	t, err := r.token()
	if err != nil {
		return "", false, err
	}
	switch t := t.(type) {
	case string:
		return t, true, nil
	case json.Delim:
		if t == '[' {
			return "", false, r.elements(element)
		}
	}
	return "", false, r.unexpected("a string or an array", t)
}

// Value reads any value.
func (r *Reader) Value() (any, error) {
	t, err := r.token()
	if err != nil {
		return nil, err
	}
	if r.values++; r.MaxValues > 0 && r.values > r.MaxValues {
		return nil, fmt.Errorf("json: more than %d values", r.MaxValues)
	}
	switch t := t.(type) {
	case json.Number:
		return r.maker.Number(string(t))
	case json.Delim:
		if r.depth++; r.MaxDepth > 0 && r.depth > r.MaxDepth {
			return nil, fmt.Errorf("json: nested deeper than %d at byte %d", r.MaxDepth, r.d.InputOffset())
		}
		defer func() { r.depth-- }()
		if t == '{' {
			object, set := r.maker.Object()
			return object, r.members(func(key string) error {
				v, err := r.Value()
				set(key, v)
				return err
			})
		}
		list := []any{}
		err := r.elements(func() error {
			v, err := r.Value()
			list = append(list, v)
			return err
		})
		return list, err
	}
	return t, nil // nil, bool, string
}

func (r *Reader) elements(element func() error) error {
	for r.d.More() {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := r.token()
	return err
}

func (r *Reader) members(member func(key string) error) error {
	seen := map[string]struct{}{}
	for r.d.More() {
		t, err := r.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return r.unexpected("a key", t)
		}
		if r.MaxKey > 0 && len(key) > r.MaxKey {
			return fmt.Errorf("json: key of %d bytes before byte %d; at most %d are allowed", len(key), r.d.InputOffset(), r.MaxKey)
		}
		if r.UniqueKeys {
			if _, again := seen[key]; again {
				return fmt.Errorf("json: key %.60q occurs twice in an object, again before byte %d", key, r.d.InputOffset())
			}
			seen[key] = struct{}{}
		}
		if err := member(key); err != nil {
			return err
		}
	}
	_, err := r.token()
	return err
}

func (r *Reader) open(delim json.Delim, what string) error {
	t, err := r.token()
	if err != nil {
		return err
	}
	if t != delim {
		return r.unexpected(what, t)
	}
	return nil
}

func (r *Reader) token() (json.Token, error) {
	t, err := r.d.Token()
	switch {
	case err == nil:
		return t, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("json: the text ends in the middle of a value")
	}
	return nil, fmt.Errorf("json: %w (before byte %d)", err, r.d.InputOffset())
}

func (r *Reader) unexpected(want string, t json.Token) error {
	have := "null"
	switch t := t.(type) {
	case json.Delim:
		have = fmt.Sprintf("%q", t.String())
	case nil:
	default:
		have = fmt.Sprintf("%.60q", fmt.Sprint(t))
	}
	return fmt.Errorf("json: want %s, have %s before byte %d", want, have, r.d.InputOffset())
}
