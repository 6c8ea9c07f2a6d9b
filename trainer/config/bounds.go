package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// check checks a value against the bounds of its tag.
func (d *decoder) check(key string, n *node, v reflect.Value, tag reflect.StructTag) {
	if v.Kind() == reflect.Array {
		for i := range v.Len() {
			d.check(fmt.Sprintf("%s[%d]", key, i), n.items[i], v.Index(i), tag)
		}
		return
	}
	if allowed := enumOf(tag); allowed != nil {
		if !slices.Contains(allowed, v.String()) {
			words := slices.DeleteFunc(allowed, func(s string) bool { return s == "" })
			d.fail(n.pos, key, "%q is not possible; %s", clip(v.String()), suggestWord(v.String(), words))
		}
		return
	}
	x, ok := numeric(v)
	if !ok {
		return
	}
	for _, b := range []struct {
		tag, words string
		holds      func(bound float64) bool
	}{
		{"min", "at least", func(b float64) bool { return x >= b }},
		{"above", "above", func(b float64) bool { return x > b }},
		{"max", "at most", func(b float64) bool { return x <= b }},
		{"below", "below", func(b float64) bool { return x < b }},
	} {
		text, ok := tag.Lookup(b.tag)
		if ok && !b.holds(bound(text)) {
			d.fail(n.pos, key, "must be %s %s; found %s", b.words, text, n.text)
		}
	}
}

// numeric returns the value as a number; ok is false if the value is nil or not a number.
func numeric(v reflect.Value) (float64, bool) {
	switch {
	case v.Type() == optionalType:
		if v.IsNil() {
			return 0, false
		}
		return v.Elem().Float(), true
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanUint():
		return float64(v.Uint()), true
	case v.CanFloat():
		return v.Float(), true
	}
	return 0, false
}

// bound reads a bound from a tag: a number or a duration.
func bound(text string) float64 {
	if x, err := strconv.ParseFloat(text, 64); err == nil {
		return x
	}
	t, err := time.ParseDuration(text)
	if err != nil {
		panic("config: bad bound in a tag: " + text)
	}
	return float64(t)
}
