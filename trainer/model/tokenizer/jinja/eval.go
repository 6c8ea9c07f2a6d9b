package jinja

import (
	"fmt"
	"math/big"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
	"github.com/nikolalohinski/gonja/v2/nodes"
)

// arguments are the arguments of a call.
type arguments struct {
	list  []any
	named map[string]any
}

func (r *renderer) eval(n nodes.Node, s *scope) (any, error) {
	if err := r.step(); err != nil {
		return nil, err
	}
	switch n := n.(type) {
	case *nodes.None:
		return nil, nil
	case *nodes.String:
		return n.Val, nil
	case *nodes.Integer:
		return int64(n.Val), nil
	case *nodes.Float:
		return n.Val, nil
	case *nodes.Bool:
		return n.Val, nil
	case *nodes.Name:
		return s.get(n.Name.Val), nil
	case *nodes.List:
		return r.evalList(n.Val, s)
	case *nodes.Tuple:
		list, err := r.evalList(n.Val, s)
		return ordered.Tuple(list), err
	case *nodes.Dict:
		return r.evalDict(n, s)
	case *nodes.Call:
		return r.evalCall(n, s)
	case *nodes.GetAttribute:
		return r.evalAttribute(n, s)
	case *nodes.GetItem:
		return r.evalItem(n, s)
	case *nodes.GetSlice:
		return r.evalSlice(n, s)
	case *nodes.Negation:
		v, err := r.eval(n.Term, s)
		return !truth(v), err
	case *nodes.BinaryExpression:
		return r.evalBinary(n, s)
	case *nodes.UnaryExpression:
		return r.evalUnary(n, s)
	case *nodes.FilteredExpression:
		return r.evalFilters(n, s)
	case *nodes.TestExpression:
		return r.evalTest(n, s)
	}
	return nil, fmt.Errorf("an expression of type %T", n)
}

func (r *renderer) evalList(list []nodes.Expression, s *scope) ([]any, error) {
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

func (r *renderer) evalDict(n *nodes.Dict, s *scope) (any, error) {
	o := &ordered.Object{}
	for _, p := range n.Pairs {
		k, err := r.eval(p.Key, s)
		if err != nil {
			return nil, err
		}
		key, ok := text(k)
		if !ok {
			return nil, fmt.Errorf("a dictionary's key of type %s is not supported", typeName(k))
		}
		v, err := r.eval(p.Value, s)
		if err != nil {
			return nil, err
		}
		o.Set(key, v)
	}
	return o, r.spend(64 * o.Len())
}

func (r *renderer) evalArguments(list []nodes.Expression, named map[string]nodes.Expression, s *scope) (arguments, error) {
	values, err := r.evalList(list, s)
	if err != nil {
		return arguments{}, err
	}
	args := arguments{list: values, named: map[string]any{}}
	names := make([]string, 0, len(named))
	for name := range named {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if args.named[name], err = r.eval(named[name], s); err != nil {
			return arguments{}, err
		}
	}
	return args, nil
}

func (r *renderer) evalCall(n *nodes.Call, s *scope) (any, error) {
	if name, ok := n.Func.(*nodes.Name); ok && name.Name.Val == conditional {
		return r.evalConditional(n, s)
	}
	f, err := r.eval(n.Func, s)
	if err != nil {
		return nil, err
	}
	args, err := r.evalArguments(n.Args, n.Kwargs, s)
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

// evalConditional evaluates `then if condition else otherwise`.
func (r *renderer) evalConditional(n *nodes.Call, s *scope) (any, error) {
	v, err := r.eval(n.Args[0], s)
	switch {
	case err != nil:
		return nil, err
	case truth(v):
		return r.eval(n.Args[1], s)
	case len(n.Args) == 3:
		return r.eval(n.Args[2], s)
	}
	return undefined{"the inline if evaluated to false and no else section was defined: it"}, nil
}

func (r *renderer) evalAttribute(n *nodes.GetAttribute, s *scope) (any, error) {
	object, err := r.eval(n.Node, s)
	if err != nil {
		return nil, err
	}
	if n.Attribute == "" {
		return r.item(object, int64(n.Index))
	}
	return attribute(object, n.Attribute)
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

func (r *renderer) evalItem(n *nodes.GetItem, s *scope) (any, error) {
	object, err := r.eval(n.Node, s)
	if err != nil {
		return nil, err
	}
	if n.Arg == nil {
		return nil, fmt.Errorf("nothing between [ and ]")
	}
	key, err := r.eval(n.Arg, s)
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
	if name, ok := text(key); ok {
		if o, ok := object.(*ordered.Object); ok {
			if v, ok := o.Get(name); ok {
				return v, nil
			}
		}
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

func (r *renderer) evalSlice(n *nodes.GetSlice, s *scope) (any, error) {
	object, err := r.eval(n.Node, s)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int64
	for i, e := range []nodes.Node{n.Start, n.End, n.Step} {
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
	if step == 0 && bounds[2] != nil && *bounds[2] == 0 {
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

func (r *renderer) evalUnary(n *nodes.UnaryExpression, s *scope) (any, error) {
	v, err := r.eval(n.Term, s)
	if err != nil {
		return nil, err
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if f, ok := v.(float64); ok {
		if n.Negative {
			return -f, nil
		}
		return f, nil
	}
	b, ok := bigInt(v)
	if !ok {
		return nil, fmt.Errorf("bad operand type for unary %s: '%s'", n.Operator.Val, typeName(v))
	}
	if n.Negative {
		b = new(big.Int).Neg(b)
	}
	return small(b), nil
}

func (r *renderer) evalFilters(n *nodes.FilteredExpression, s *scope) (any, error) {
	v, err := r.eval(n.Expression, s)
	if err != nil {
		return nil, err
	}
	for _, call := range n.Filters {
		args, err := r.evalArguments(call.Args, call.Kwargs, s)
		if err != nil {
			return nil, err
		}
		if v, err = r.filter(call.Name, v, args); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// evalTest evaluates `v is name(args)` and `v in args`, which gonja parses as a test.
func (r *renderer) evalTest(n *nodes.TestExpression, s *scope) (any, error) {
	v, err := r.eval(n.Expression, s)
	if err != nil {
		return nil, err
	}
	args, err := r.evalArguments(n.Test.Args, n.Test.Kwargs, s)
	if err != nil {
		return nil, err
	}
	return r.test(n.Test.Name, v, args)
}
