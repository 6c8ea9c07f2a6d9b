// Package strictjson reads JSON from untrusted files. It uses bounded memory, refuses duplicate keys, compares keys
// case-sensitively, and names the position in errors.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/internal/jsontokens"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// MaxKeyBytes is the largest size of a key, such as the name of a tensor.
const MaxKeyBytes = 1024

const maxDepth = 32

// Reader reads JSON piece by piece. Value returns map[string]any, []any, string, json.Number, bool or nil.
type Reader struct{ *jsontokens.Reader }

// NewReader reads a document that is in memory.
func NewReader(data []byte) (Reader, error) {
	if !utf8.Valid(data) {
		return Reader{}, errors.New("not JSON: invalid UTF-8")
	}
	r := jsontokens.New(bytes.NewReader(texts.Normalize(data)), maker{})
	r.MaxDepth, r.MaxKey, r.UniqueKeys = maxDepth, MaxKeyBytes, true
	return Reader{r}, nil
}

// maker makes the values of a Reader.
type maker struct{}

func (maker) Object() (object any, set func(key string, value any)) {
	m := map[string]any{}
	return m, func(key string, value any) { m[key] = value }
}

func (maker) Number(text string) (any, error) { return json.Number(text), nil }

// Object parses a whole document, which must be one object.
func Object(data []byte) (map[string]any, error) {
	r, err := NewReader(data)
	if err != nil {
		return nil, err
	}
	v, err := r.Value()
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return object, r.End()
}

// Integers reads an array of at most max non-negative integers, written without fraction or exponent.
func (r Reader) Integers(max int) ([]int64, error) {
	values := []int64{}
	err := r.Array(func() error {
		if len(values) == max {
			return fmt.Errorf("more than %d numbers", max)
		}
		v, err := r.Int(math.MaxInt64)
		values = append(values, v)
		return err
	})
	return values, err
}

// Brief shortens text from a file for an error message.
func Brief(text string) string { return texts.Excerpt(text, 200) }

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
