package jinja

import (
	"slices"
	"strings"
)

// statements reads up to a tag with one of the names, or the end of the template if there are none. opened is the tag that needs the end.
func (p *parser) statements(opened token, ends ...string) (list body, end string) {
	for {
		t := p.next()
		switch {
		case t.kind == kindText:
			list = append(list, plainText(t.text))
		case t.is("{{"):
			list = append(list, &statementAt{t.at, &output{p.tuple(p.expression)}})
			p.expect("}}")
		case t.is("{%"):
			if slices.ContainsFunc(ends, p.is) {
				return list, p.next().text
			}
			list = append(list, &statementAt{t.at, p.tag()})
		default:
			if len(ends) > 0 {
				p.fail(opened.at, "%s without %s", opened.text, strings.Join(ends, " or "))
			}
			return list, ""
		}
	}
}

// block reads the end of a tag, and the statements up to another.
func (p *parser) block(opened token, ends ...string) (list body, end string) {
	p.take(":")
	p.expect("%}")
	return p.statements(opened, ends...)
}

func (p *parser) tag() (s statement) {
	p.enter()
	defer p.leave()
	t := p.tokens[0]
	switch name := p.name(); {
	case name == "if":
		s = p.ifTag(t)
	case name == "for":
		s = p.forTag(t)
	case name == "set":
		s = p.setTag(t)
	case name == "macro":
		s = p.macroTag(t)
	case name == "generation":
		tag := &blockTag{}
		tag.body, _ = p.block(t, "endgeneration")
		s = tag
	case name == "filter":
		s = &output{filtered(p, t, "endfilter")}
	case name == "break":
		s = &loopControl{errBreak}
	case name == "continue":
		s = &loopControl{errContinue}
	case name == "else" || name == "elif" || strings.HasPrefix(name, "end"):
		p.fail(t.at, "%s without the tag that it belongs to", name)
	default:
		p.fail(t.at, "the tag %.60s is not supported", name)
	}
	p.expect("%}")
	return s
}

func (p *parser) ifTag(t token) statement {
	tag := &ifTag{}
	for {
		tag.conditions = append(tag.conditions, p.tuple(p.unconditional))
		list, end := p.block(t, "elif", "else", "endif")
		tag.bodies = append(tag.bodies, list)
		if end == "else" {
			list, _ = p.block(t, "endif")
			tag.bodies = append(tag.bodies, list)
		}
		if end != "elif" {
			return tag
		}
	}
}

func (p *parser) forTag(t token) statement {
	tag := &forTag{target: p.target(false)}
	p.expect("in")
	tag.items = p.tuple(p.unconditional)
	if p.take("if") {
		tag.filter = p.expression()
	}
	if p.is("recursive") {
		p.fail(t.at, "for: recursive is not supported")
	}
	var end string
	if tag.body, end = p.block(t, "else", "endfor"); end == "else" {
		tag.otherwise, _ = p.block(t, "endfor")
	}
	return tag
}

// target reads the target of an assignment: a name, an attribute of a namespace, or a tuple.
func (p *parser) target(attributes bool) expression {
	return p.tuple(func() expression {
		if p.take("(") {
			inner := p.target(attributes)
			p.expect(")")
			return inner
		}
		t := p.tokens[0]
		name := p.name()
		if _, constant := constants[name]; constant || slices.Contains(keywords, name) {
			p.unexpected(t, "a name")
		}
		if attributes && p.take(".") {
			return &attributeOf{&variable{name}, p.name()}
		}
		return &variable{name}
	})
}

func (p *parser) setTag(t token) statement {
	tag := &setTag{target: p.target(true)}
	if p.take("=") {
		tag.value = p.tuple(p.expression)
		return tag
	}
	if p.take("|") {
		tag.value = filtered(p, t, "endset")
		return tag
	}
	if _, several := tag.target.(*listOf); several {
		p.fail(t.at, "set: several names without a value")
	}
	tag.body, _ = p.block(t, "endset")
	return tag
}

// filtered reads filters, and the body of the tag that they apply to.
func filtered(p *parser, t token, end string) expression {
	inner := &capture{}
	e := filterOf(p, inner)
	for p.take("|") {
		e = filterOf(p, e)
	}
	inner.body, _ = p.block(t, end)
	return e
}

func (p *parser) macroTag(t token) statement {
	tag := &macroTag{name: p.name()}
	p.expect("(")
	p.list(")", func() {
		var value expression
		tag.params = append(tag.params, p.name())
		if p.take("=") {
			value = p.expression()
		} else if n := len(tag.defaults); n > 0 && tag.defaults[n-1] != nil {
			p.fail(t.at, "macro: a parameter without a default behind one with a default")
		}
		tag.defaults = append(tag.defaults, value)
	})
	if !slices.Contains(tag.params, "varargs") && !slices.Contains(tag.params, "kwargs") {
		p.macros++
		defer func() { p.macros-- }()
	}
	tag.body, _ = p.block(t, "endmacro")
	return tag
}
