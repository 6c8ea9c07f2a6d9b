package arch

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// keys reads typed values of a JSON object, or of the metadata of a GGUF file. It keeps the first error in err. If a key is absent, the
// target keeps its value.
type keys struct {
	values map[string]any
	prefix string             // of keys in errors
	gguf   bool               // these are keys of GGUF metadata
	shapes map[string][]int64 // of the tensors of a GGUF file, by name
	err    error
}

func (k *keys) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf(k.prefix+format, args...)
	}
}

func (k *keys) has(key string) bool { _, ok := k.values[key]; return ok }

// null reports whether key is present and null.
func (k *keys) null(key string) bool { v, ok := k.values[key]; return ok && v == nil }

func (k *keys) require(names ...string) {
	for _, key := range names {
		if !k.has(key) {
			k.fail("%s is missing", key)
		}
	}
}

func (k *keys) integer(key string, to *int) {
	if v, ok := k.values[key]; ok {
		k.integerOf(key, v, to)
	}
}

// integerOf reads an integer from a value, or from a part of a value.
func (k *keys) integerOf(key string, v any, to *int) {
	n, small := int32Of(v)
	if !small {
		k.fail("%s is %s: must be an integer, 0 to 2^31-1", key, shown(v))
		return
	}
	*to = int(n)
}

// int32Of returns the value of a JSON integer, or of a GGUF integer that is not negative. small is false for other values, and for
// integers beyond int32.
func int32Of(v any) (n int32, small bool) {
	if wide, isGGUF := v.(int64); isGGUF {
		return int32(wide), wide >= 0 && wide <= math.MaxInt32
	}
	number, _ := v.(json.Number)
	wide, err := number.Int64()
	return int32(wide), err == nil && wide == int64(int32(wide))
}

// interval reads a number n that selects every n-th layer, such as full_attention_interval. If the key is absent, n is absent. null is an
// error, as it is in transformers, where the remainder of a layer's number by None fails.
func (k *keys) interval(key string, absent int) int {
	n := absent
	k.integer(key, &n)
	if n < 1 {
		k.fail("%s is %d: must be at least 1", key, n)
		return absent
	}
	return n
}

// shown formats a value for an error message. A list in GGUF metadata may be large, so only its length is shown.
func shown(v any) string {
	if list := reflect.ValueOf(v); list.Kind() == reflect.Slice && list.Type().Elem().Kind() != reflect.Interface {
		return fmt.Sprintf("a list of %d", list.Len())
	}
	return strictjson.Show(v)
}

// integers reads a list. The list is empty if the key is null or absent.
func (k *keys) integers(key string) (list []int) {
	values, isList := k.values[key].([]any)
	if numbers, isGGUF := k.values[key].([]int64); isGGUF {
		isList = true
		for _, n := range numbers {
			values = append(values, n)
		}
	}
	if !isList && k.values[key] != nil {
		k.fail("%s is %s: must be a list of integers", key, shown(k.values[key]))
	}
	for _, v := range values {
		n, small := int32Of(v)
		if !small {
			k.fail("%s has %s: must be integers, 0 to 2^31-1", key, strictjson.Show(v))
			return nil
		}
		list = append(list, int(n))
	}
	return list
}

func (k *keys) integerOrNull(key string, to *int) {
	if !k.null(key) {
		k.integer(key, to)
	}
}

func (k *keys) float(key string, to *float64) {
	v, ok := k.values[key]
	if !ok {
		return
	}
	f, isFloat := v.(float64) // in GGUF metadata
	if !isFloat {
		number, _ := v.(json.Number)
		var err error
		if f, err = number.Float64(); err != nil {
			k.fail("%s is %s: must be a number", key, shown(v))
			return
		}
	}
	*to = f
}

func (k *keys) floatOrNull(key string, to *float64) {
	if !k.null(key) {
		k.float(key, to)
	}
}

func (k *keys) booleanOrNull(key string, to *bool) {
	if !k.null(key) {
		k.boolean(key, to)
	}
}

func (k *keys) boolean(key string, to *bool) { typed(k, key, "true or false", to) }

func (k *keys) text(key string, to *string) { typed(k, key, "a string", to) }

// typed reads a value of type T. want describes the type in errors.
func typed[T any](k *keys, key, want string, to *T) {
	v, ok := k.values[key]
	if !ok {
		return
	}
	value, ok := v.(T)
	if !ok {
		k.fail("%s is %s: must be %s", key, shown(v), want)
		return
	}
	*to = value
}

// ids reads a token id, a list of ids, or null (also written as -1) for none.
func (k *keys) ids(key string) []int32 {
	list, isList := k.values[key].([]any)
	if !isList {
		if k.values[key] == nil {
			return nil
		}
		list = []any{k.values[key]}
	}
	var ids []int32
	for _, v := range list {
		n, small := int32Of(v)
		switch {
		case !small || n < -1:
			k.fail("%s has %s: must be token ids", key, strictjson.Show(v))
			return nil
		case n >= 0:
			ids = append(ids, n)
		}
	}
	return ids
}
