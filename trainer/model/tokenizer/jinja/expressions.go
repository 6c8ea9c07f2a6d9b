package jinja

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// maxNesting is the largest depth of brackets, inline ifs and blocks in all. It bounds the recursion of parser and renderer.
const maxNesting = 200

// parser builds the nodes of a template. After an error, every further token is the end of the template, so that every loop
// ends. The nodes must then not be used.
type parser struct {
	source string
	tokens []token // that are not read yet; the last one, the end of the template, stays
	depth  int
	macros int   // number of macros around the current place
	err    error // the first
}

func (p *parser) fail(at int, format string, args ...any) {
	if p.err == nil {
		p.err = inLine(p.source, at, fmt.Errorf(format, args...))
	}
	p.tokens = p.tokens[len(p.tokens)-1:]
}

func (p *parser) unexpected(t token, want string) {
	p.fail(t.at, "want %s, have %.60q", want, t.text)
}

// enter counts a level of nesting, until leave.
func (p *parser) enter() {
	if p.depth++; p.depth > maxNesting {
		p.fail(p.tokens[0].at, "brackets, inline ifs and blocks nested deeper than %d", maxNesting)
	}
}

func (p *parser) leave() { p.depth-- }

func (p *parser) next() token {
	t := p.tokens[0]
	p.tokens = p.tokens[min(1, len(p.tokens)-1):]
	return t
}

func (p *parser) is(text string) bool { return p.tokens[0].is(text) }

// take reads a symbol or name if it comes next.
func (p *parser) take(text string) bool {
	matches := p.is(text)
	if matches {
		p.next()
	}
	return matches
}

func (p *parser) expect(text string) {
	if !p.take(text) {
		p.unexpected(p.tokens[0], strconv.Quote(text))
	}
}

func (p *parser) name() string {
	t := p.next()
	if t.kind != kindName {
		p.unexpected(t, "a name")
	}
	return t.text
}

// list reads items with commas between them, and the closing bracket. A comma may follow the last item.
func (p *parser) list(end string, item func()) {
	for !p.take(end) {
		item()
		if !p.take(",") {
			p.expect(end)
			return
		}
	}
}

// tuple reads one item, or a tuple without brackets.
func (p *parser) tuple(item func() expression) expression {
	first := item()
	if !p.is(",") {
		return first
	}
	t := &listOf{items: []expression{first}, tuple: true}
	for p.take(",") && !p.is(")") && !p.is("}}") && !p.is("%}") {
		t.items = append(t.items, item())
	}
	return t
}

// expression reads an expression, with inline ifs.
func (p *parser) expression() expression {
	p.enter()
	defer p.leave()
	e := p.unconditional()
	for p.take("if") {
		c := &conditional{then: e, condition: p.unconditional()}
		if p.take("else") {
			c.otherwise = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) unconditional() expression { return p.operation(1) }

const (
	precedenceNot = 3 // of the prefix
	precedenceIn  = 4 // of all comparisons
)

// precedence is how tightly an infix operator binds.
var precedence = map[string]int{"or": 1, "and": 2, "==": precedenceIn, "!=": precedenceIn, "<": precedenceIn, "<=": precedenceIn,
	">": precedenceIn, ">=": precedenceIn, "in": precedenceIn, "not in": precedenceIn, "+": 5, "-": 5, "~": 6, "*": 7, "/": 7,
	"//": 7, "%": 7, "**": 8}

// operator returns the infix operator that comes next, or "".
func (p *parser) operator() string {
	t := p.tokens[0]
	switch {
	case t.is("not") && p.tokens[1].is("in"):
		return "not in"
	case t.is(t.text) && precedence[t.text] > 0:
		return t.text
	}
	return ""
}

// operation reads operators of at least a precedence. All are left-associative, ** too, and comparisons form chains.
func (p *parser) operation(least int) expression {
	negations := 0
	for least <= precedenceNot && p.take("not") {
		negations++
	}
	var left expression
	if negations > 0 {
		left = p.operation(precedenceIn)
	} else {
		left = p.unary()
	}
	for range negations {
		left = &unary{"not", left}
	}
	var chain *comparison
	for {
		op := p.operator()
		level := precedence[op]
		if level < least || op == "" {
			return left
		}
		for range strings.Fields(op) {
			p.next()
		}
		right := p.operation(level + 1)
		switch {
		case level != precedenceIn:
			left = &binary{op, left, right}
		case chain == nil:
			chain = &comparison{first: left, rest: []comparand{{op, right}}}
			left = chain
		default:
			chain.rest = append(chain.rest, comparand{op, right})
		}
	}
}

// unary reads an operand with its signs, filters and tests. Filters and tests apply to the signed value.
func (p *parser) unary() expression {
	var signs []string
	for p.is("-") || p.is("+") {
		signs = append(signs, p.next().text)
	}
	e := p.postfix(p.primary())
	for _, sign := range slices.Backward(signs) {
		e = &unary{sign, e}
	}
	for {
		switch {
		case p.take("|"):
			e = filterOf(p, e)
		case p.take("is"):
			e = p.test(e)
		case p.take("("):
			e = &call{e, p.arguments()}
		default:
			return e
		}
	}
}

// filterOf reads the name and the arguments of a filter.
func filterOf(p *parser, value expression) expression {
	f := &filterOrTest{value: value, name: p.name()}
	if p.take("(") {
		f.arguments = p.arguments()
	}
	return f
}

// test reads a test behind is. Its argument may have no brackets.
func (p *parser) test(value expression) expression {
	negated := p.take("not")
	t := &filterOrTest{value: value, test: true, name: p.name()}
	switch next := p.tokens[0]; {
	case p.take("("):
		t.arguments = p.arguments()
	case next.is("else") || next.is("and") || next.is("or"):
	case next.kind == kindName || next.kind == kindNumber || next.kind == kindString || next.is("[") || next.is("{"):
		t.arguments.list = []expression{p.postfix(p.primary())}
	}
	if negated {
		return &unary{"not", t}
	}
	return t
}

// constants are the names of values, and keywords the names that no variable has.
var (
	constants = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}
	keywords  = []string{"and", "or", "not", "in", "is", "if", "else"}
)

func (p *parser) primary() expression {
	t := p.next()
	switch {
	case t.kind == kindName && !slices.Contains(keywords, t.text):
		if value, ok := constants[t.text]; ok {
			return &literal{value}
		}
		if p.macros > 0 && (t.text == "varargs" || t.text == "kwargs") {
			p.fail(t.at, "%s of a macro is not supported", t.text)
		}
		return &variable{t.text}
	case t.kind == kindNumber:
		return p.number(t)
	case t.kind == kindString:
		text := strings.Builder{}
		text.WriteString(t.text)
		for p.tokens[0].kind == kindString { // adjacent strings are joined
			text.WriteString(p.next().text)
		}
		return &literal{text.String()}
	case t.is("("):
		if p.take(")") {
			return &listOf{tuple: true}
		}
		e := p.tuple(p.expression)
		p.expect(")")
		return e
	case t.is("["):
		l := &listOf{}
		p.list("]", func() { l.items = append(l.items, p.expression()) })
		return l
	case t.is("{"):
		d := &dictOf{}
		p.list("}", func() {
			d.keys = append(d.keys, p.expression())
			p.expect(":")
			d.values = append(d.values, p.expression())
		})
		return d
	}
	p.unexpected(t, "an expression")
	return nil
}

func (p *parser) number(t token) expression {
	if len(t.text) > ordered.MaxDigits {
		p.fail(t.at, "a number of more than %d digits", ordered.MaxDigits)
	}
	if n, ok := new(big.Int).SetString(t.text, 0); ok {
		return &literal{small(n)}
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(t.text, "_", ""), 64)
	if err != nil {
		p.fail(t.at, "the number %.60s is too large", t.text)
	}
	return &literal{f}
}

// postfix reads attributes, items, slices and calls behind a value.
func (p *parser) postfix(e expression) expression {
	for {
		switch {
		case p.take("."):
			t := p.next()
			switch {
			case t.kind == kindName:
				e = &attributeOf{e, t.text}
			case t.kind == kindNumber && !strings.Contains(t.text, "."):
				e = &itemOf{e, p.number(t)}
			default:
				p.unexpected(t, "a name or an integer")
			}
		case p.take("["):
			e = p.subscript(e)
		case p.take("("):
			e = &call{e, p.arguments()}
		default:
			return e
		}
	}
}

// subscript reads an item or a slice behind its opening bracket.
func (p *parser) subscript(object expression) expression {
	var bounds [3]expression
	colons := 0
	for ; colons < len(bounds); colons++ {
		if !p.is(":") && (!p.is("]") || colons == 0) {
			bounds[colons] = p.expression()
		}
		if !p.take(":") {
			break
		}
	}
	p.expect("]")
	if colons == 0 {
		return &itemOf{object, bounds[0]}
	}
	return &sliceOf{object, bounds}
}

// arguments reads the arguments of a call behind its opening bracket.
func (p *parser) arguments() (a argumentsOf) {
	p.list(")", func() {
		t := p.tokens[0]
		last := a.spreadNamed != nil
		if t.kind == kindName && p.tokens[1].is("=") && !last {
			p.next()
			p.next()
			if slices.Contains(a.names, t.text) {
				p.fail(t.at, "the argument %s is given twice", t.text)
			}
			a.names, a.named = append(a.names, t.text), append(a.named, p.expression())
			return
		}
		switch {
		case !last && p.take("**"):
			a.spreadNamed = p.expression()
			return
		case !last && a.spread == nil && p.take("*"):
			a.spread = p.expression()
			return
		case last || a.spread != nil:
			p.fail(t.at, "an argument behind * or **")
		case len(a.names) > 0:
			p.fail(t.at, "an argument without a name behind one with a name")
		}
		a.list = append(a.list, p.expression())
	})
	return a
}
