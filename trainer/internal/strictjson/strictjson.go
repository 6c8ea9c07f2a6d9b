// Package strictjson reads JSON from untrusted files. It uses bounded memory, refuses duplicate keys, compares keys
// case-sensitively, and names the position in errors.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/internal/excerpt"
	"github.com/mgrpo/mgrpo/trainer/internal/textfile"
)

// MaxKeyBytes is the largest size of a key, such as the name of a tensor.
const MaxKeyBytes = 1024

const maxDepth = 32

// Reader reads JSON token by token.
type Reader struct{ dec *json.Decoder }

// NewReader reads a document that is in memory.
func NewReader(data []byte) (Reader, error) {
	if !utf8.Valid(data) {
		return Reader{}, errors.New("not JSON: invalid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(textfile.Bytes(data)))
	dec.UseNumber()
	return Reader{dec}, nil
}

// Object parses a whole document, which must be one object.
func Object(data []byte) (map[string]any, error) {
	r, err := NewReader(data)
	if err != nil {
		return nil, err
	}
	v, err := r.Value(0)
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return object, r.End()
}

// Token reads the next token. The end of the document is an error.
func (r Reader) Token() (json.Token, error) {
	t, err := r.dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("not JSON at byte %d: %w", r.dec.InputOffset(), err)
	}
	return t, nil
}

// End returns an error if more than white space follows the document.
func (r Reader) End() error {
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("data after the JSON document, at byte %d", r.dec.InputOffset())
	}
	return nil
}

// Object reads an object. It calls member for every key; member must read the value.
func (r Reader) Object(member func(key string) error) error {
	t, err := r.Token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return fmt.Errorf("expected an object, found %s", Show(t))
	}
	return r.members(member)
}

func (r Reader) members(member func(key string) error) error {
	seen := map[string]struct{}{}
	for r.dec.More() {
		t, err := r.Token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("expected a key, found %s", Show(t))
		}
		if len(key) > MaxKeyBytes {
			return fmt.Errorf("key of %d bytes: at most %d", len(key), MaxKeyBytes)
		}
		if _, twice := seen[key]; twice {
			return fmt.Errorf("key %q occurs twice", key)
		}
		seen[key] = struct{}{}
		if err := member(key); err != nil {
			return err
		}
	}
	_, err := r.Token()
	return err
}

// Integers reads an array of at most max non-negative integers, written without fraction or exponent.
func (r Reader) Integers(max int) ([]int64, error) {
	t, err := r.Token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('[') {
		return nil, fmt.Errorf("expected an array, found %s", Show(t))
	}
	values := []int64{}
	for r.dec.More() {
		if len(values) == max {
			return nil, fmt.Errorf("more than %d numbers", max)
		}
		if t, err = r.Token(); err != nil {
			return nil, err
		}
		number, ok := t.(json.Number)
		if !ok {
			return nil, fmt.Errorf("expected an integer, found %s", Show(t))
		}
		v, err := number.Int64()
		if err != nil || v < 0 || number.String()[0] == '-' {
			return nil, fmt.Errorf("%s is not an integer from 0 to 2^63-1", Brief(number.String()))
		}
		values = append(values, v)
	}
	_, err = r.Token()
	return values, err
}

func (r Reader) Text() (string, error) {
	t, err := r.Token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("expected a string, found %s", Show(t))
	}
	return s, nil
}

// Value reads any value: map[string]any, []any, string, json.Number, bool or nil. depth is 0 at the top.
func (r Reader) Value(depth int) (any, error) {
	t, err := r.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	switch t {
	case json.Delim('{'):
		object := map[string]any{}
		err := r.members(func(key string) (err error) {
			object[key], err = r.Value(depth + 1)
			return err
		})
		return object, err
	case json.Delim('['):
		array := []any{}
		for r.dec.More() {
			v, err := r.Value(depth + 1)
			if err != nil {
				return nil, err
			}
			array = append(array, v)
		}
		_, err := r.Token()
		return array, err
	}
	return t, nil
}

// Brief shortens text from a file for an error message.
func Brief(text string) string { return excerpt.Of(text, 200) }

// Show prints a JSON value for an error message, shortened.
func Show(v any) string {
	if delim, ok := v.(json.Delim); ok {
		return delim.String()
	}
	text, err := json.Marshal(v)
	if err != nil {
		return Brief(fmt.Sprint(v))
	}
	return Brief(string(text))
}
