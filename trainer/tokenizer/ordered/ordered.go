// Package ordered holds JSON as Python's json module sees it: objects keep the order of their keys and
// integers stay exact. Chat templates print both, so encoding/json's maps and float64s will not do.
//
// A value is one of nil, bool, int64, *big.Int (beyond int64), float64, string, []any, *Object.
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

// MaxDepth is how deep arrays and objects may nest in Parse.
const MaxDepth = 512

// MaxDigits is how many characters an integer may have in Parse; Python's own limit is 4300 digits.
const MaxDigits = 4300

// Object is a JSON object that keeps the order in which keys were first set. The zero value is empty.
type Object struct {
	keys   []string
	values map[string]any
}

// NewObject makes an object of alternating keys and values: NewObject("role", "user", "content", "hi").
// It panics on an odd count or a key that is not a string: both are mistakes of the calling code.
func NewObject(pairs ...any) *Object {
	o := &Object{}
	for i := 0; i < len(pairs); i += 2 {
		o.Set(pairs[i].(string), pairs[i+1])
	}
	return o
}

// Set gives key a value; a key that is already there keeps its place.
func (o *Object) Set(key string, value any) {
	if o.values == nil {
		o.values = map[string]any{}
	}
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

// Get returns the value of key and whether it is there.
func (o *Object) Get(key string) (any, bool) {
	if o == nil {
		return nil, false
	}
	v, ok := o.values[key]
	return v, ok
}

// Keys lists the keys in order. The slice is the object's own: do not change it.
func (o *Object) Keys() []string {
	if o == nil {
		return nil
	}
	return o.keys
}

// Len is the number of keys.
func (o *Object) Len() int { return len(o.Keys()) }

// MarshalJSON writes the object with its keys in order.
func (o *Object) MarshalJSON() ([]byte, error) {
	s, err := Dumps(o, Format{})
	return []byte(s), err
}

// UnmarshalJSON reads an object, keeping the order of its keys.
func (o *Object) UnmarshalJSON(data []byte) error {
	v, err := Parse(data)
	if err != nil {
		return err
	}
	parsed, ok := v.(*Object)
	if !ok {
		return fmt.Errorf("json: want an object, have %s", TypeName(v))
	}
	*o = *parsed
	return nil
}

// Parse reads one JSON value. As in Python the last of equal keys wins and keeps the first one's place.
// Unpaired surrogates become U+FFFD.
func Parse(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := Next(d, MaxDepth)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("json: more than one value, the second at byte %d", d.InputOffset())
	}
	return v, nil
}

// Next reads the next value of a decoder that has UseNumber set, nested at most depth deep.
func Next(d *json.Decoder, depth int) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, syntaxError(err)
	}
	return from(d, t, depth)
}

func from(d *json.Decoder, t json.Token, depth int) (any, error) {
	switch t := t.(type) {
	case json.Number:
		return number(string(t))
	case json.Delim:
		if depth <= 0 {
			return nil, fmt.Errorf("json: nested deeper than %d", MaxDepth)
		}
		if t == '[' {
			return array(d, depth-1)
		}
		return object(d, depth-1)
	}
	return t, nil // nil, bool, string
}

func array(d *json.Decoder, depth int) (any, error) {
	list := []any{}
	for d.More() {
		v, err := Next(d, depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := d.Token()
	return list, syntaxError(err)
}

func object(d *json.Decoder, depth int) (any, error) {
	o := &Object{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, syntaxError(err)
		}
		v, err := Next(d, depth)
		if err != nil {
			return nil, err
		}
		o.Set(key.(string), v)
	}
	_, err := d.Token()
	return o, syntaxError(err)
}

func syntaxError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("json: the text ends in the middle of a value")
	}
	return fmt.Errorf("json: %w", err)
}

func number(s string) (any, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !math.IsInf(f, 0) {
			return nil, fmt.Errorf("json: number %q: %w", s, err)
		}
		return f, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if len(s) > MaxDigits {
		return nil, fmt.Errorf("json: an integer of %d digits; at most %d are taken", len(s), MaxDigits)
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("json: number %q", s)
	}
	return n, nil
}
