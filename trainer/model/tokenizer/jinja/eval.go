package jinja

import (
	"fmt"
	"math/big"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// expression is a node that has a value.
type expression interface {
	eval(r *renderer, s *scope) (any, error)
}

type (
	literal  struct{ value any }
	variable struct{ name string }
	listOf   struct {
		items []expression
		tuple bool
	}
	dictOf      struct{ keys, values []expression }
	conditional struct { // then if condition else otherwise
		condition, then expression
		otherwise       expression // nil: none
	}
	attributeOf struct { // object.name
		object expression
		name   string
	}
	itemOf  struct{ object, key expression } // object[key]
	sliceOf struct {                         // object[start:stop:step]
		object expression
		bounds [3]expression // nil: none
	}
	call struct {
		function  expression
		arguments argumentsOf
	}
	filterOrTest struct { // value|name(arguments), or value is name(arguments)
		value     expression
		test      bool
		name      string
		arguments argumentsOf
	}
	unary struct { // -term, +term, not term
		operator string
		term     expression
	}
	binary struct {
		operator    string
		left, right expression
	}
	comparison struct { // first < right < right
		first expression
		rest  []comparand
	}
	capture   struct{ body body } // the text of a body
	comparand struct {
		operator string
		right    expression
	}
)

// argumentsOf are the arguments of a call as expressions. arguments has their values.
type (
	argumentsOf struct {
		list        []expression
		names       []string
		named       []expression
		spread      expression // behind *; nil: none
		spreadNamed expression // behind **; nil: none
	}
	arguments struct {
		list  []any
		named *ordered.Object
	}
)

// eval evaluates an expression and counts it.
func (r *renderer) eval(e expression, s *scope) (any, error) {
	if err := r.step(); err != nil {
		return nil, err
	}
	return e.eval(r, s)
}

func (r *renderer) evalList(list []expression, s *scope) ([]any, error) {
	values := make([]any, 0, len(list))
	for _, e := range list {
		v, err := r.eval(e, s)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, r.spend(16 * len(values))
}

func (r *renderer) evalArguments(a argumentsOf, s *scope) (arguments, error) {
	list, err := r.evalList(a.list, s)
	if err != nil {
		return arguments{}, err
	}
	args := arguments{list: list, named: &ordered.Object{}}
	for i, name := range a.names {
		v, err := r.eval(a.named[i], s)
		if err != nil {
			return arguments{}, err
		}
		args.named.Set(name, v)
	}
	if a.spread != nil {
		v, err := r.eval(a.spread, s)
		if err != nil {
			return arguments{}, err
		}
		items, err := r.iterate(v)
		if err != nil {
			return arguments{}, err
		}
		args.list = append(args.list, items...)
	}
	if a.spreadNamed == nil {
		return args, r.spend(16 * len(args.list))
	}
	return args, spreadNamed(r, a.spreadNamed, args.named, s)
}

// spreadNamed adds the pairs of a dictionary to the arguments with names.
func spreadNamed(r *renderer, e expression, named *ordered.Object, s *scope) error {
	v, err := r.eval(e, s)
	if err != nil {
		return err
	}
	d, ok := dictionaryOf(v)
	if !ok {
		return fmt.Errorf("argument after ** must be a mapping, not %s", typeName(v))
	}
	for key, v := range d.pairs() {
		name, ok := text(key)
		if _, twice := named.Get(name); !ok || twice {
			return fmt.Errorf("the argument %v behind ** is not a name or is given twice", key)
		}
		named.Set(name, v)
	}
	return r.spend(64 * named.Len())
}

func (n *literal) eval(r *renderer, s *scope) (any, error)  { return n.value, nil }
func (n *variable) eval(r *renderer, s *scope) (any, error) { return s.get(n.name), nil }

func (n *capture) eval(r *renderer, s *scope) (any, error) {
	return r.capture(n.body, s.inner())
}

func (n *listOf) eval(r *renderer, s *scope) (any, error) {
	list, err := r.evalList(n.items, s)
	if n.tuple {
		return ordered.Tuple(list), err
	}
	return list, err
}

func (n *call) eval(r *renderer, s *scope) (any, error) {
	f, err := r.eval(n.function, s)
	if err != nil {
		return nil, err
	}
	args, err := r.evalArguments(n.arguments, s)
	if err != nil {
		return nil, err
	}
	switch f := f.(type) {
	case function:
		return f(r, args)
	case undefined:
		return nil, f.err()
	}
	return nil, fmt.Errorf("'%s' object is not callable", typeName(f))
}

func (n *conditional) eval(r *renderer, s *scope) (any, error) {
	v, err := r.eval(n.condition, s)
	switch {
	case err != nil:
		return nil, err
	case truth(v):
		return r.eval(n.then, s)
	case n.otherwise != nil:
		return r.eval(n.otherwise, s)
	}
	return undefined{"the inline if evaluated to false and no else section was defined: it"}, nil
}

func (n *attributeOf) eval(r *renderer, s *scope) (any, error) {
	object, err := r.eval(n.object, s)
	if err != nil {
		return nil, err
	}
	return attribute(object, n.name)
}

// attribute evaluates object.name: a method, a key, or undefined.
func attribute(object any, name string) (any, error) {
	switch o := object.(type) {
	case undefined:
		return nil, o.err()
	case *namespace:
		if v, ok := o.vars[name]; ok {
			return v, nil
		}
	case *loop:
		return o.attribute(name), nil
	}
	if m, ok := method(object, name); ok {
		return m, nil
	}
	if o, ok := object.(*ordered.Object); ok {
		if v, ok := o.Get(name); ok {
			return v, nil
		}
	}
	return missing(object, name), nil
}

func missing(object any, name string) undefined {
	kind := "'" + typeName(object) + " object'"
	if object == nil {
		kind = "'None'"
	}
	return undefined{fmt.Sprintf("attribute '%s' of %s", name, kind)}
}

func (n *itemOf) eval(r *renderer, s *scope) (any, error) {
	object, err := r.eval(n.object, s)
	if err != nil {
		return nil, err
	}
	key, err := r.eval(n.key, s)
	if err != nil {
		return nil, err
	}
	return r.item(object, key)
}

// item evaluates object[key]: an element, a key's value, or undefined.
func (r *renderer) item(object, key any) (any, error) {
	if u, ok := object.(undefined); ok {
		return nil, u.err()
	}
	if d, ok := dictionaryOf(object); ok {
		if v, found, err := d.get(r, key); err != nil || found {
			return v, err
		}
	}
	if name, ok := text(key); ok {
		return attribute(object, name)
	}
	i, ok := integer(key)
	if !ok {
		return undefined{fmt.Sprintf("an item of '%s' by a key of type %s", typeName(object), typeName(key))}, nil
	}
	items, ok := list(object)
	if s, isText := text(object); isText {
		return r.character(s, i)
	}
	if i < 0 {
		i += int64(len(items))
	}
	if !ok || i < 0 || i >= int64(len(items)) {
		return undefined{fmt.Sprintf("item %d of '%s object'", i, typeName(object))}, nil
	}
	return items[i], nil
}

func (r *renderer) character(s string, i int64) (any, error) {
	runes := []rune(s)
	if i < 0 {
		i += int64(len(runes))
	}
	if i < 0 || i >= int64(len(runes)) {
		return undefined{"a character past the end of a string"}, nil
	}
	return string(runes[i]), r.spend(len(s))
}

func (n *sliceOf) eval(r *renderer, s *scope) (any, error) {
	object, err := r.eval(n.object, s)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int64
	for i, e := range n.bounds {
		if e == nil {
			continue
		}
		v, err := r.eval(e, s)
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		at, ok := integer(v)
		if u, isUndefined := v.(undefined); isUndefined {
			return nil, u.err()
		}
		if !ok {
			return nil, fmt.Errorf("slice indices must be integers or None, not %s", typeName(v))
		}
		bounds[i] = &at
	}
	switch o := object.(type) {
	case undefined:
		return nil, o.err()
	case []any:
		return slice(r, o, bounds)
	case ordered.Tuple:
		v, err := slice(r, []any(o), bounds)
		return ordered.Tuple(v), err
	case string, markup:
		text, _ := text(o)
		runes, err := slice(r, []rune(text), bounds)
		return string(runes), err
	}
	return nil, fmt.Errorf("'%s' object cannot be sliced", typeName(object))
}

// slice implements Python's list[start:stop:step].
func slice[T any](r *renderer, list []T, bounds [3]*int64) ([]T, error) {
	n := int64(len(list))
	step := int64(1)
	if bounds[2] != nil {
		step = min(max(*bounds[2], -n-1), n+1)
	}
	if step == 0 {
		return nil, fmt.Errorf("slice step cannot be zero")
	}
	low, high := int64(0), n // where start and stop may be
	start, stop := low, high
	if step < 0 {
		low, high = -1, n-1
		start, stop = high, low
	}
	clamp := func(at int64) int64 {
		if at < 0 {
			at = max(at+n, low)
		}
		return min(max(at, low), high)
	}
	if bounds[0] != nil {
		start = clamp(*bounds[0])
	}
	if bounds[1] != nil {
		stop = clamp(*bounds[1])
	}
	var out []T
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		out = append(out, list[i])
	}
	if out == nil {
		out = []T{}
	}
	return out, r.spend(8 * (len(out) + len(list)))
}

func (n *unary) eval(r *renderer, s *scope) (any, error) {
	v, err := r.eval(n.term, s)
	switch {
	case err != nil:
		return nil, err
	case n.operator == "not":
		return !truth(v), nil
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if f, ok := v.(float64); ok {
		if n.operator == "-" {
			return -f, nil
		}
		return f, nil
	}
	b, ok := bigInt(v)
	if !ok {
		return nil, fmt.Errorf("bad operand type for unary %s: '%s'", n.operator, typeName(v))
	}
	if n.operator == "-" {
		b = new(big.Int).Neg(b)
	}
	return small(b), nil
}

func (n *filterOrTest) eval(r *renderer, s *scope) (any, error) {
	v, err := r.eval(n.value, s)
	if err != nil {
		return nil, err
	}
	args, err := r.evalArguments(n.arguments, s)
	switch {
	case err != nil:
		return nil, err
	case n.test:
		return r.test(n.name, v, args)
	}
	return r.filter(n.name, v, args)
}
