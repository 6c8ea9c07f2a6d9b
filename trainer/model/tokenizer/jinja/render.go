package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Limits on one rendering.
const (
	maxSteps  = 5e6       // nodes visited, elements compared
	maxBytes  = 256 << 20 // bytes of all strings and lists that the template makes
	maxOutput = 64 << 20
	maxCalls  = 60 // nested macro calls
)

var (
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)

// statement is a node that is executed.
type statement interface {
	run(r *renderer, s *scope) error
}

type (
	body        []statement
	plainText   string // text between tags
	output      struct{ value expression }
	statementAt struct { // a statement that names its line in errors
		at int // offset in the source
		statement
	}
	ifTag struct {
		conditions []expression
		bodies     []body // one more element than conditions if there is an else
	}
	forTag struct {
		target, items expression
		filter        expression // nil: none
		body          body
		otherwise     body
	}
	setTag struct {
		target expression
		value  expression // nil: the body
		body   body
	}
	macroTag struct {
		name     string
		params   []string
		defaults []expression // nil: none
		body     body
	}
	blockTag    struct{ body body }    // generation
	loopControl struct{ signal error } // break, continue
)

// renderer executes a template once.
type renderer struct {
	source string    // for the line of an error
	now    time.Time // time for strftime_now
	out    strings.Builder
	steps  int
	bytes  int
	calls  int
	loops  int
}

// scope maps names to values. The body of a for has its own scope; the body of an if does not.
type scope struct {
	vars   map[string]any
	parent *scope
}

func (s *scope) inner() *scope { return &scope{vars: map[string]any{}, parent: s} }

func (s *scope) get(name string) any {
	for at := s; at != nil; at = at.parent {
		if v, ok := at.vars[name]; ok {
			return v
		}
	}
	return undefined{"'" + name + "'"}
}

// step counts one node.
func (r *renderer) step() error {
	if r.steps++; r.steps > maxSteps {
		return fmt.Errorf("the template runs for more than %d steps", int(maxSteps))
	}
	return nil
}

// spend counts n bytes of memory or work.
func (r *renderer) spend(n int) error {
	if r.bytes += n; r.bytes > maxBytes || n < 0 {
		return fmt.Errorf("the template needs more than %d MiB for its values", maxBytes>>20)
	}
	return r.step()
}

func (r *renderer) write(s string) error {
	if r.out.Len()+len(s) > maxOutput {
		return fmt.Errorf("the template writes more than %d MiB", maxOutput>>20)
	}
	r.out.WriteString(s)
	return nil
}

func (b body) run(r *renderer, s *scope) error {
	for _, n := range b {
		if err := r.step(); err != nil {
			return err
		}
		if err := n.run(r, s); err != nil {
			return err
		}
	}
	return nil
}

func (n *statementAt) run(r *renderer, s *scope) error {
	return inLine(r.source, n.at, n.statement.run(r, s))
}

func (n plainText) run(r *renderer, s *scope) error { return r.write(string(n)) }

func (n *output) run(r *renderer, s *scope) error {
	v, err := r.eval(n.value, s)
	if err != nil {
		return err
	}
	text, err := str(v)
	if err != nil {
		return err
	}
	return r.write(text)
}

func (n *blockTag) run(r *renderer, s *scope) error { return n.body.run(r, s.inner()) }

func (n *loopControl) run(r *renderer, s *scope) error {
	if r.loops == 0 {
		return fmt.Errorf("%w outside a for", n.signal)
	}
	return n.signal
}

func (n *ifTag) run(r *renderer, s *scope) error {
	for i, condition := range n.conditions {
		v, err := r.eval(condition, s)
		if err != nil {
			return err
		}
		if truth(v) {
			return n.bodies[i].run(r, s)
		}
	}
	if len(n.bodies) > len(n.conditions) {
		return n.bodies[len(n.conditions)].run(r, s)
	}
	return nil
}

func (n *forTag) run(r *renderer, s *scope) error {
	v, err := r.eval(n.items, s)
	if err != nil {
		return err
	}
	items, err := r.iterate(v)
	if err != nil {
		return err
	}
	if n.filter != nil {
		if items, err = r.filterItems(n, items, s); err != nil {
			return err
		}
	}
	ended, err := r.loop(n, items, s)
	if err != nil || ended {
		return err
	}
	return n.otherwise.run(r, s.inner())
}

// loop executes the body of a for for each item. It reports whether it reached the end of the body:
// if not, because of break or continue or because there are no items, Jinja2 executes the else.
func (r *renderer) loop(n *forTag, items []any, s *scope) (ended bool, err error) {
	l := &loop{items: items}
	r.loops++
	defer func() { r.loops-- }()
	for i, item := range items {
		l.index = i
		inner := s.inner()
		inner.vars["loop"] = l
		if err := r.assign(n.target, item, inner); err != nil {
			return false, err
		}
		switch err := n.body.run(r, inner); err {
		case nil:
			ended = true
		case errContinue:
		case errBreak:
			return ended, nil
		default:
			return false, err
		}
	}
	return ended, nil
}

func (r *renderer) filterItems(n *forTag, items []any, s *scope) ([]any, error) {
	var kept []any
	for _, item := range items {
		inner := s.inner()
		if err := r.assign(n.target, item, inner); err != nil {
			return nil, err
		}
		v, err := r.eval(n.filter, inner)
		if err != nil {
			return nil, err
		}
		if truth(v) {
			kept = append(kept, item)
		}
	}
	return kept, r.spend(16 * len(kept))
}

func (n *setTag) run(r *renderer, s *scope) error {
	var v any
	var err error
	if n.value != nil {
		v, err = r.eval(n.value, s)
	} else {
		v, err = r.capture(n.body, s.inner())
	}
	if err != nil {
		return err
	}
	return r.assign(n.target, v, s)
}

// assign sets a name, an attribute of a namespace, or each of a tuple.
func (r *renderer) assign(target expression, v any, s *scope) error {
	if err := r.spend(64); err != nil {
		return err
	}
	switch target := target.(type) {
	case *variable:
		s.vars[target.name] = v
	case *attributeOf:
		object, err := r.eval(target.object, s)
		if err != nil {
			return err
		}
		ns, ok := object.(*namespace)
		if !ok {
			return fmt.Errorf("cannot assign attribute on non-namespace object of type %s", typeName(object))
		}
		ns.vars[target.name] = v
	case *listOf:
		values, err := r.iterate(v)
		if err != nil {
			return err
		}
		if len(values) != len(target.items) {
			return fmt.Errorf("%d values to unpack into %d names", len(values), len(target.items))
		}
		for i, item := range target.items {
			if err := r.assign(item, values[i], s); err != nil {
				return err
			}
		}
	}
	return nil
}

// capture renders a body into a separate string.
func (r *renderer) capture(b body, s *scope) (string, error) {
	outer := r.out
	r.out = strings.Builder{}
	err := b.run(r, s)
	text := r.out.String()
	r.out = outer
	if err != nil {
		return "", err
	}
	return text, r.spend(len(text))
}

func (n *macroTag) run(r *renderer, s *scope) error {
	s.vars[n.name] = n.function(s)
	return nil
}

func (n *macroTag) function(defined *scope) function {
	return func(r *renderer, args arguments) (any, error) {
		if r.calls++; r.calls > maxCalls {
			return nil, fmt.Errorf("macros call each other deeper than %d", maxCalls)
		}
		loops := r.loops
		r.loops = 0
		defer func() { r.calls--; r.loops = loops }()
		if len(args.list) > len(n.params) {
			return nil, fmt.Errorf("macro '%s' takes not more than %d argument(s)", n.name, len(n.params))
		}
		s := defined.inner()
		for i, name := range n.params {
			v, ok := args.named.Get(name)
			switch {
			case i < len(args.list) && ok:
				return nil, fmt.Errorf("macro '%s' got two values for '%s'", n.name, name)
			case i < len(args.list):
				v = args.list[i]
			case ok:
			case n.defaults[i] != nil:
				var err error
				if v, err = r.eval(n.defaults[i], s); err != nil {
					return nil, err
				}
			default:
				v = undefined{"parameter '" + name + "'"}
			}
			s.vars[name] = v
		}
		for _, name := range args.named.Keys() {
			if _, ok := s.vars[name]; !ok {
				return nil, fmt.Errorf("macro '%s' takes no keyword argument '%s'", n.name, name)
			}
		}
		return r.capture(n.body, s)
	}
}

// attribute evaluates loop.name.
func (l *loop) attribute(name string) any {
	n := int64(len(l.items))
	i := int64(l.index)
	switch name {
	case "index0":
		return i
	case "index":
		return i + 1
	case "revindex0":
		return n - i - 1
	case "revindex":
		return n - i
	case "first":
		return i == 0
	case "last":
		return i == n-1
	case "length":
		return n
	case "depth": // recursive loops are not supported
		return int64(1)
	case "depth0":
		return int64(0)
	case "previtem":
		if i > 0 {
			return l.items[i-1]
		}
		return undefined{"the item before the first"}
	case "nextitem":
		if i < n-1 {
			return l.items[i+1]
		}
		return undefined{"the item after the last"}
	case "cycle":
		return function(func(r *renderer, args arguments) (any, error) {
			if len(args.list) == 0 {
				return nil, errors.New("no items for cycling given")
			}
			return args.list[l.index%len(args.list)], nil
		})
	case "changed":
		return function(func(r *renderer, args arguments) (any, error) {
			same, err := r.equal(ordered.Tuple(l.changed), ordered.Tuple(args.list))
			first := l.changed == nil
			l.changed = args.list
			return first || !same, err
		})
	}
	return undefined{"'loop." + name + "'"}
}
