package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Limits on JSON files: far above what dense models need, small enough to parse in bounded memory.
const (
	maxConfigBytes = 1 << 20
	maxHeaderBytes = 16 << 20 // safetensors headers and shard indexes: room for maxTensors names
	maxTensors     = 100_000
	maxJSONDepth   = 32
	maxKeyBytes    = 1024 // of keys, tensor names among them
)

// jsonReader reads JSON token by token. Unlike encoding/json's decoding into Go values it refuses
// duplicate keys and never folds their case.
type jsonReader struct{ dec *json.Decoder }

func newJSONReader(data []byte) (jsonReader, error) {
	if !utf8.Valid(data) {
		return jsonReader{}, errors.New("not JSON: invalid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return jsonReader{dec}, nil
}

// parseObject parses a whole document, which must be one object.
func parseObject(data []byte) (map[string]any, error) {
	r, err := newJSONReader(data)
	if err != nil {
		return nil, err
	}
	v, err := r.value(0)
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return object, r.end()
}

func (r jsonReader) token() (json.Token, error) {
	t, err := r.dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("not JSON at byte %d: %w", r.dec.InputOffset(), err)
	}
	return t, nil
}

// end refuses anything but white space after the document.
func (r jsonReader) end() error {
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("data after the JSON document, at byte %d", r.dec.InputOffset())
	}
	return nil
}

// object reads an object, calling member for every key; member must read the value.
func (r jsonReader) object(member func(key string) error) error {
	t, err := r.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return fmt.Errorf("expected an object, found %s", show(t))
	}
	return r.members(member)
}

func (r jsonReader) members(member func(key string) error) error {
	seen := map[string]struct{}{}
	for r.dec.More() {
		t, err := r.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("expected a key, found %s", show(t))
		}
		if len(key) > maxKeyBytes {
			return fmt.Errorf("key of %d bytes: at most %d", len(key), maxKeyBytes)
		}
		if _, twice := seen[key]; twice {
			return fmt.Errorf("key %q occurs twice", key)
		}
		seen[key] = struct{}{}
		if err := member(key); err != nil {
			return err
		}
	}
	_, err := r.token()
	return err
}

// integers reads an array of at most max non-negative integers, written without fraction or exponent.
func (r jsonReader) integers(max int) ([]int64, error) {
	t, err := r.token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('[') {
		return nil, fmt.Errorf("expected an array, found %s", show(t))
	}
	values := []int64{}
	for r.dec.More() {
		if len(values) == max {
			return nil, fmt.Errorf("more than %d numbers", max)
		}
		if t, err = r.token(); err != nil {
			return nil, err
		}
		number, ok := t.(json.Number)
		if !ok {
			return nil, fmt.Errorf("expected an integer, found %s", show(t))
		}
		v, err := number.Int64()
		if err != nil || v < 0 || number.String()[0] == '-' {
			return nil, fmt.Errorf("%s is not an integer from 0 to 2^63-1", brief(number.String()))
		}
		values = append(values, v)
	}
	_, err = r.token()
	return values, err
}

func (r jsonReader) text() (string, error) {
	t, err := r.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("expected a string, found %s", show(t))
	}
	return s, nil
}

// value reads any value: map[string]any, []any, string, json.Number, bool or nil.
func (r jsonReader) value(depth int) (any, error) {
	t, err := r.token()
	if err != nil {
		return nil, err
	}
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxJSONDepth)
	}
	switch t {
	case json.Delim('{'):
		object := map[string]any{}
		err := r.members(func(key string) (err error) {
			object[key], err = r.value(depth + 1)
			return err
		})
		return object, err
	case json.Delim('['):
		array := []any{}
		for r.dec.More() {
			v, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			array = append(array, v)
		}
		_, err := r.token()
		return array, err
	}
	return t, nil
}

// brief shortens text from a file for an error message.
func brief(text string) string {
	if len(text) > 200 {
		return text[:200] + "..."
	}
	return text
}

// show prints a JSON value for an error message, shortened.
func show(v any) string {
	if delim, ok := v.(json.Delim); ok {
		return delim.String()
	}
	text, err := json.Marshal(v)
	if err != nil {
		return brief(fmt.Sprint(v))
	}
	return brief(string(text))
}
