package jinja

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// A value is a value of package ordered, an ordered.Tuple, or of a type below.
type (
	// undefined is the value of a missing name, key or attribute. It prints as "" and is false. Every other use is an error
	// that names the missing item.
	undefined struct{ what string }

	// function is a global function, a method bound to its value, or a macro.
	function func(r *renderer, args arguments) (any, error)

	// namespace holds variables that a loop's body can set for the code after the loop.
	namespace struct{ vars map[string]any }

	// loop is the variable loop in the body of a for.
	loop struct {
		items   []any
		index   int // from 0
		changed []any
	}

	// generator holds items that can be iterated over once. It is true even without items.
	generator struct{ items []any }

	// markup is a string that is not escaped when joined to another.
	markup string
)

func (u undefined) String() string  { return "Undefined" }
func (u undefined) err() error      { return fmt.Errorf("%s is undefined", u.what) }
func (f function) String() string   { return "<function>" }
func (n *namespace) String() string { return "<Namespace>" }
func (l *loop) String() string      { return fmt.Sprintf("<LoopContext %d/%d>", l.index+1, len(l.items)) }
func (m markup) String() string     { return string(m) }
func (g *generator) String() string { return "<generator>" }

// typeName returns the Python name of a value's type.
func typeName(v any) string {
	switch v.(type) {
	case undefined:
		return "Undefined"
	case function:
		return "function"
	case *generator:
		return "generator"
	case *namespace:
		return "Namespace"
	case *loop:
		return "LoopContext"
	case markup:
		return "Markup"
	}
	return ordered.TypeName(v)
}

// str returns Python's str of a value. An undefined value gives "".
func str(v any) (string, error) {
	switch v := v.(type) {
	case undefined:
		return "", nil
	case markup:
		return string(v), nil
	}
	return ordered.Str(v)
}

// text returns the text of a string or markup.
func text(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	}
	return "", false
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case []any:
		return len(v) > 0
	case ordered.Tuple:
		return len(v) > 0
	case *ordered.Object:
		return v.Len() > 0
	case *ordered.Dict:
		return len(v.Keys) > 0
	case ordered.View:
		return len(v.Items) > 0
	}
	return true // a *big.Int does not fit in an int64, so it is not 0
}

// list returns the elements of a list or tuple.
func list(v any) ([]any, bool) {
	switch v := v.(type) {
	case []any:
		return v, true
	case ordered.Tuple:
		return v, true
	}
	return nil, false
}

// iterate returns the items over which a for iterates: elements, keys or characters; nothing for an undefined value.
func (r *renderer) iterate(v any) ([]any, error) {
	if items, ok := list(v); ok {
		return items, nil
	}
	switch v := v.(type) {
	case undefined:
		return nil, nil
	case *generator:
		items := v.items
		v.items = nil
		return items, nil
	case ordered.View:
		return v.Items, nil
	}
	if d, ok := dictionaryOf(v); ok {
		return dictKeys(r, d)
	}
	if s, ok := text(v); ok {
		items := make([]any, 0, len(s))
		for _, c := range s {
			items = append(items, string(c))
		}
		return items, r.spend(16 * len(items))
	}
	return nil, fmt.Errorf("'%s' object is not iterable", typeName(v))
}

// length returns Python's len of a value.
func length(v any) (int, error) {
	if items, ok := list(v); ok {
		return len(items), nil
	}
	if s, ok := text(v); ok {
		return utf8.RuneCountInString(s), nil
	}
	switch v := v.(type) {
	case undefined:
		return 0, nil
	case ordered.View:
		return len(v.Items), nil
	}
	if d, ok := dictionaryOf(v); ok {
		return d.Len(), nil
	}
	return 0, fmt.Errorf("object of type '%s' has no len()", typeName(v))
}

// integer converts a bool or an integer that fits into an int64.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// float converts any number.
func float(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, true
	}
	n, ok := integer(v)
	return float64(n), ok
}

// bigInt converts any integer.
func bigInt(v any) (*big.Int, bool) {
	if b, ok := v.(*big.Int); ok {
		return b, true
	}
	n, ok := integer(v)
	return big.NewInt(n), ok
}

// small converts an integer to int64 if it fits.
func small(b *big.Int) any {
	if b.IsInt64() {
		return b.Int64()
	}
	return b
}

func isNumber(v any) bool { _, ok := float(v); return ok }

// equal reports whether Python's == is true.
func (r *renderer) equal(a, b any) (bool, error) {
	if err := r.spend(1); err != nil {
		return false, err
	}
	if isNumber(a) && isNumber(b) {
		c, err := compareNumbers(a, b)
		return c == 0 && err == nil, nil
	}
	if s, ok := text(a); ok {
		t, ok := text(b)
		return ok && s == t, r.spend(min(len(s), len(t)) / 64)
	}
	if x, ok := list(a); ok {
		y, _ := list(b)
		same := typeName(a) == typeName(b) && len(x) == len(y)
		for i := 0; same && i < len(x); i++ {
			var err error
			if same, err = r.equal(x[i], y[i]); err != nil {
				return false, err
			}
		}
		return same, nil
	}
	if d, ok := dictionaryOf(a); ok {
		other, ok := dictionaryOf(b)
		if !ok || d.Len() != other.Len() {
			return false, nil
		}
		return equalPairs(r, d, other)
	}
	switch a := a.(type) {
	case ordered.View:
		return equalViews(r, a, b)
	case nil:
		return b == nil, nil
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case *namespace, *loop:
		return a == b, nil
	}
	return false, nil
}

// equalViews compares two views of keys or of items, which are sets in Python. Views of values are never equal.
func equalViews(r *renderer, a ordered.View, b any) (bool, error) {
	other, ok := b.(ordered.View)
	if !ok || a.Name == "dict_values" || other.Name == "dict_values" || len(a.Items) != len(other.Items) {
		return false, nil
	}
	for _, v := range a.Items {
		if found, err := r.contains(other, v); err != nil || !found {
			return false, err
		}
	}
	return true, nil
}

// equalPairs reports whether each pair of a dictionary is in another one.
func equalPairs(r *renderer, a, b dictionary) (bool, error) {
	for k, x := range a.pairs() {
		y, found, err := b.get(r, k)
		if err != nil || !found {
			return false, err
		}
		if same, err := r.equal(x, y); err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// errNaN is the error of a comparison with NaN.
var errNaN = fmt.Errorf("a comparison with nan")

func compareNumbers(a, b any) (int, error) {
	x, okX := bigInt(a)
	y, okY := bigInt(b)
	if okX && okY {
		return x.Cmp(y), nil
	}
	f, _ := float(a)
	g, _ := float(b)
	if math.IsNaN(f) || math.IsNaN(g) {
		return 0, errNaN
	}
	return cmp.Compare(f, g), nil
}

// order compares two numbers or two strings.
func (r *renderer) order(a, b any) (int, error) {
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b)
	}
	s, okS := text(a)
	t, okT := text(b)
	if okS && okT {
		return strings.Compare(s, t), r.spend(min(len(s), len(t)) / 64)
	}
	for _, v := range []any{a, b} {
		if u, ok := v.(undefined); ok {
			return 0, u.err()
		}
	}
	return 0, fmt.Errorf("'<' not supported between instances of '%s' and '%s'", typeName(a), typeName(b))
}

// contains reports whether Python's `element in container` is true.
func (r *renderer) contains(container, element any) (bool, error) {
	if s, ok := text(container); ok {
		t, ok := text(element)
		if u, missing := element.(undefined); missing {
			return false, u.err()
		}
		if !ok {
			return false, fmt.Errorf("'in <string>' requires string as left operand, not %s", typeName(element))
		}
		return strings.Contains(s, t), r.spend(len(s) / 64)
	}
	if d, ok := dictionaryOf(container); ok {
		_, found, err := d.get(r, element)
		return found, err
	}
	if g, ok := container.(*generator); ok {
		for len(g.items) > 0 { // the items up to the element are used up
			v := g.items[0]
			g.items = g.items[1:]
			if same, err := r.equal(v, element); err != nil || same {
				return same, err
			}
		}
		return false, nil
	}
	items, ok := list(container)
	if view, isView := container.(ordered.View); isView {
		items, ok = view.Items, true
	}
	if _, missing := container.(undefined); !ok && !missing {
		return false, fmt.Errorf("argument of type '%s' is not iterable", typeName(container))
	}
	for _, v := range items {
		if same, err := r.equal(v, element); err != nil || same {
			return same, err
		}
	}
	return false, nil
}
