// Package ordered represents JSON as Python's json module does: objects keep the order of their keys, and integers are
// exact. Chat templates print both, so encoding/json's maps and float64 values are not sufficient.
//
// A value is nil, bool, int64, *big.Int (beyond int64), float64, string, []any or *Object.
package ordered

import (
	"fmt"
	"iter"
)

// Object is a JSON object that keeps the order in which its keys were first set. The zero Object is empty.
type Object struct {
	keys   []string
	values map[string]any
}

// NewObject makes an object of alternating keys and values: NewObject("role", "user", "content", "hi"). It panics on an
// odd count or a key that is not a string, which are bugs of the caller.
func NewObject(pairs ...any) *Object {
	o := &Object{}
	for i := 0; i < len(pairs); i += 2 {
		o.Set(pairs[i].(string), pairs[i+1])
	}
	return o
}

// Set sets the value of key. An existing key keeps its place.
func (o *Object) Set(key string, value any) {
	if o.values == nil {
		o.values = map[string]any{}
	}
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

// Get returns the value of key; ok is false if there is no such key.
func (o *Object) Get(key string) (any, bool) {
	if o == nil {
		return nil, false
	}
	v, ok := o.values[key]
	return v, ok
}

// Value returns the value of key if it is of type T. ok is false if it is not, or if there is no such key.
func Value[T any](o *Object, key string) (value T, ok bool) {
	v, _ := o.Get(key)
	value, ok = v.(T)
	return value, ok
}

// Keys returns the keys in order. The slice belongs to the object: do not change it.
func (o *Object) Keys() []string {
	if o == nil {
		return nil
	}
	return o.keys
}

// All returns the keys in order, with their values.
func (o *Object) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for _, key := range o.Keys() {
			if !yield(key, o.values[key]) {
				return
			}
		}
	}
}

// Clone returns a copy with the same values, so that Set on one does not change the other. The clone of nil is empty.
func (o *Object) Clone() *Object {
	out := &Object{}
	for key, v := range o.All() {
		out.Set(key, v)
	}
	return out
}

// Len returns the number of keys.
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
