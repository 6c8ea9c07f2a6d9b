package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
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
	if v.Type() == pathType {
		d.checkPath(key, n)
		return
	}
	if allowed := enumOf(tag); allowed != nil {
		if !slices.Contains(allowed, v.String()) {
			words := slices.DeleteFunc(allowed, func(s string) bool { return s == "" })
			help := didYouMean(v.String(), words)
			if len(words) == 1 {
				help = fmt.Sprintf("the only word is %q", words[0])
			}
			d.errs.add(n.pos, key, "%q is not possible; %s", clip(v.String()), help)
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
			d.errs.add(n.pos, key, "must be %s %s; found %s", b.words, text, n.text)
		}
	}
}

// checkPath refuses a path that a shell would expand, because here it would name a folder such as ./~.
func (d *decoder) checkPath(key string, path *node) {
	if path.text == "~" || strings.HasPrefix(path.text, "~/") || strings.Contains(path.text, "$") {
		d.errs.add(path.pos, key, "%q is not expanded here: write the full path", clip(path.text))
	}
}

// numeric returns the value as a number; ok is false if the value is nil or not a number.
func numeric(v reflect.Value) (x float64, ok bool) {
	if v.Type() == optionalType {
		v = v.Elem()
	}
	if !v.IsValid() || !v.CanInt() && !v.CanUint() && !v.CanFloat() {
		return 0, false
	}
	return v.Convert(reflect.TypeFor[float64]()).Float(), true
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
