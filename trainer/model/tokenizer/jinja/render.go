package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
	"github.com/nikolalohinski/gonja/v2/nodes"
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

// renderer executes a template once.
type renderer struct {
	now   time.Time // time for strftime_now
	out   strings.Builder
	steps int
	bytes int
	calls int
	loops int
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

func (r *renderer) nodes(list []nodes.Node, s *scope) error {
	for _, n := range list {
		if n == nil {
			continue
		}
		if err := r.node(n, s); err != nil {
			return err
		}
	}
	return nil
}

func (r *renderer) node(n nodes.Node, s *scope) error {
	if err := r.step(); err != nil {
		return err
	}
	switch n := n.(type) {
	case *nodes.Data:
		return r.write(n.Data.Val)
	case *nodes.Output:
		v, err := r.eval(n.Expression, s)
		if err != nil {
			return inLine(n.Start.Line, err)
		}
		text, err := str(v)
		if err != nil {
			return inLine(n.Start.Line, err)
		}
		return r.write(text)
	case *nodes.ControlStructureBlock:
		return inLine(n.Location.Line, r.statement(n.ControlStructure, s))
	}
	return fmt.Errorf("a node of type %T", n)
}

// lineError is an error with its line in the template.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// inLine adds the line to an error without a line, so that the error names the innermost line.
func inLine(line int, err error) error {
	var inner *lineError
	if err == nil || err == errBreak || err == errContinue || errors.As(err, &inner) {
		return err
	}
	return &lineError{line, err}
}

func (r *renderer) statement(n nodes.ControlStructure, s *scope) error {
	switch n := n.(type) {
	case *ifTag:
		return r.ifTag(n, s)
	case *forTag:
		return r.forTag(n, s)
	case *setTag:
		return r.setTag(n, s)
	case *macroTag:
		s.vars[n.name] = r.macro(n, s)
		return nil
	case *blockTag:
		return r.nodes(n.body.Nodes, s.inner())
	case *loopTag:
		if r.loops == 0 {
			return fmt.Errorf("%w outside a for", n.signal)
		}
		return n.signal
	}
	return fmt.Errorf("a statement of type %T", n)
}

func (r *renderer) ifTag(n *ifTag, s *scope) error {
	for i, condition := range n.conditions {
		v, err := r.eval(condition, s)
		if err != nil {
			return err
		}
		if truth(v) {
			return r.nodes(n.bodies[i].Nodes, s)
		}
	}
	if len(n.bodies) > len(n.conditions) {
		return r.nodes(n.bodies[len(n.conditions)].Nodes, s)
	}
	return nil
}

func (r *renderer) forTag(n *forTag, s *scope) error {
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
	if len(items) == 0 && n.empty != nil {
		return r.nodes(n.empty.Nodes, s.inner())
	}
	l := &loop{items: items}
	r.loops++
	defer func() { r.loops-- }()
	for i, item := range items {
		l.index = i
		body := s.inner()
		body.vars["loop"] = l
		if err := r.assignTargets(n.targets, item, body); err != nil {
			return err
		}
		switch err := r.nodes(n.body.Nodes, body); err {
		case nil, errContinue:
		case errBreak:
			return nil
		default:
			return err
		}
	}
	return nil
}

func (r *renderer) filterItems(n *forTag, items []any, s *scope) ([]any, error) {
	var kept []any
	for _, item := range items {
		inner := s.inner()
		if err := r.assignTargets(n.targets, item, inner); err != nil {
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

func (r *renderer) assignTargets(names []string, v any, s *scope) error {
	if err := r.spend(64); err != nil {
		return err
	}
	if len(names) == 1 {
		s.vars[names[0]] = v
		return nil
	}
	values, err := r.unpack(v, len(names))
	for i, value := range values {
		s.vars[names[i]] = value
	}
	return err
}

func (r *renderer) unpack(v any, n int) ([]any, error) {
	values, err := r.iterate(v)
	if err == nil && len(values) != n {
		return nil, fmt.Errorf("%d values to unpack into %d names", len(values), n)
	}
	return values, err
}

func (r *renderer) setTag(n *setTag, s *scope) error {
	if n.value == nil {
		text, err := r.capture(n.body, s.inner())
		if err != nil {
			return err
		}
		return r.assign(n.targets[0], text, s)
	}
	v, err := r.eval(n.value, s)
	if err != nil || len(n.targets) == 1 {
		if err == nil {
			err = r.assign(n.targets[0], v, s)
		}
		return err
	}
	values, err := r.unpack(v, len(n.targets))
	if err != nil {
		return err
	}
	for i, target := range n.targets {
		if err := r.assign(target, values[i], s); err != nil {
			return err
		}
	}
	return nil
}

func (r *renderer) assign(target nodes.Expression, v any, s *scope) error {
	switch target := target.(type) {
	case *nodes.Name:
		s.vars[target.Name.Val] = v
		return nil
	case *nodes.GetAttribute:
		object, err := r.eval(target.Node, s)
		if err != nil {
			return err
		}
		if ns, ok := object.(*namespace); ok && target.Attribute != "" {
			ns.vars[target.Attribute] = v
			return nil
		}
		return fmt.Errorf("cannot assign attribute on non-namespace object of type %s", typeName(object))
	}
	return fmt.Errorf("cannot assign to %T", target)
}

// capture renders a body into a separate string.
func (r *renderer) capture(body *nodes.Wrapper, s *scope) (string, error) {
	outer := r.out
	r.out = strings.Builder{}
	err := r.nodes(body.Nodes, s)
	text := r.out.String()
	r.out = outer
	if err != nil {
		return "", err
	}
	return text, r.spend(len(text))
}

// macro returns the function that a macro tag defines.
func (r *renderer) macro(n *macroTag, defined *scope) function {
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
			v, ok := args.named[name]
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
		for name := range args.named {
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
