package ordered

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Limits of a Reader.
const (
	MaxDepth  = 512     // nesting of arrays and objects
	MaxDigits = 4300    // digits of an integer, Python's limit
	MaxValues = 1 << 22 // values that Value reads in total
)

// Parse parses one JSON value. As in Python, the last of equal keys wins, at the place of the first. Unpaired surrogates
// and bytes that are not UTF-8 become U+FFFD.
func Parse(data []byte) (any, error) {
	r := NewReader(bytes.NewReader(data))
	v, err := r.Value()
	if err != nil {
		return nil, err
	}
	return v, r.End()
}

// Reader reads JSON piece by piece, for documents that are too large to parse into values.
type Reader struct {
	UniqueKeys bool // equal keys in one object are an error

	d      *json.Decoder
	values int
	depth  int
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader {
	d := json.NewDecoder(r)
	d.UseNumber()
	return &Reader{d: d}
}

// End returns an error unless the document has ended.
func (r *Reader) End() error {
	if _, err := r.d.Token(); err != io.EOF {
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

// Int reads an integer between 0 and limit-1.
func (r *Reader) Int(limit int64) (int64, error) {
	t, err := r.token()
	if err != nil {
		return 0, err
	}
	n, ok := t.(json.Number)
	if !ok {
		return 0, r.unexpected("an integer", t)
	}
	i, err := strconv.ParseInt(string(n), 10, 64)
	if err != nil || i < 0 || i >= limit {
		return 0, fmt.Errorf("json: %.40s at byte %d is not an integer between 0 and %d", n, r.d.InputOffset(), limit-1)
	}
	return i, nil
}

// Value reads any value.
func (r *Reader) Value() (any, error) {
	t, err := r.token()
	if err != nil {
		return nil, err
	}
	return r.value(t)
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
			return "", false, r.nested(func() error { return r.elements(element) })
		}
	}
	return "", false, r.unexpected("a string or an array", t)
}

func (r *Reader) value(t json.Token) (any, error) {
	if r.values++; r.values > MaxValues {
		return nil, fmt.Errorf("json: more than %d values", MaxValues)
	}
	switch t := t.(type) {
	case json.Number:
		return number(string(t))
	case json.Delim:
		if t == '[' {
			list := []any{}
			err := r.nested(func() error {
				return r.elements(func() error {
					v, err := r.Value()
					list = append(list, v)
					return err
				})
			})
			return list, err
		}
		o := &Object{}
		err := r.nested(func() error {
			return r.members(func(key string) error {
				v, err := r.Value()
				o.Set(key, v)
				return err
			})
		})
		return o, err
	}
	return t, nil // nil, bool, string
}

func (r *Reader) nested(read func() error) error {
	if r.depth++; r.depth > MaxDepth {
		return fmt.Errorf("json: nested deeper than %d at byte %d", MaxDepth, r.d.InputOffset())
	}
	defer func() { r.depth-- }()
	return read()
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

func number(s string) (any, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !math.IsInf(f, 0) {
			return nil, fmt.Errorf("json: number %.40q: %w", s, err)
		}
		return f, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if len(s) > MaxDigits {
		return nil, fmt.Errorf("json: an integer of %d digits; at most %d are allowed", len(s), MaxDigits)
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("json: number %.40q", s)
	}
	return n, nil
}
