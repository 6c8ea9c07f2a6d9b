package jinja

import (
	"fmt"

	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// The statements of a template, as nodes of the parse tree.
type (
	ifTag struct {
		statement
		conditions []nodes.Expression
		bodies     []*nodes.Wrapper // one more element than conditions if there is an else
	}
	forTag struct {
		statement
		targets []string
		items   nodes.Expression
		filter  nodes.Expression // nil: none
		body    *nodes.Wrapper
		empty   *nodes.Wrapper // nil: no else
	}
	setTag struct {
		statement
		targets []nodes.Expression
		value   nodes.Expression // nil: the body
		body    *nodes.Wrapper
	}
	macroTag struct {
		statement
		name     string
		params   []string
		defaults []nodes.Expression // nil: none
		body     *nodes.Wrapper
	}
	blockTag struct { // generation
		statement
		body *nodes.Wrapper
	}
	loopTag struct { // break, continue
		statement
		signal error
	}
)

// statement implements gonja's interface of a node.
type statement struct{ at *tokens.Token }

func (s statement) Position() *tokens.Token { return s.at }
func (s statement) String() string          { return "statement" }

// tagParsers finds the parser of a tag by name. Tags that read other templates have no parser.
type tagParsers struct{}

func (tagParsers) Get(name string) (parser.ControlStructureParser, bool) {
	p, ok := map[string]parser.ControlStructureParser{
		"if": parseIf, "for": parseFor, "set": parseSet, "macro": parseMacro, "generation": parseGeneration,
		"break": parseLoop(errBreak), "continue": parseLoop(errContinue),
	}[name]
	return p, ok
}

func parseIf(p, args *parser.Parser) (nodes.ControlStructure, error) {
	tag := &ifTag{statement: statement{args.Current()}}
	for {
		condition, err := wholeExpression(args)
		if err != nil {
			return nil, err
		}
		tag.conditions = append(tag.conditions, condition)
		body, rest, err := p.WrapUntil("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		tag.bodies = append(tag.bodies, body)
		switch body.EndTag {
		case "elif":
			args = rest
			continue
		case "else":
			if err := noArgs(rest, "else"); err != nil {
				return nil, err
			}
			if body, rest, err = p.WrapUntil("endif"); err != nil {
				return nil, err
			}
			tag.bodies = append(tag.bodies, body)
		}
		return tag, noArgs(rest, "endif")
	}
}

func parseFor(p, args *parser.Parser) (nodes.ControlStructure, error) {
	tag := &forTag{statement: statement{args.Current()}}
	bracket := args.Match(tokens.LeftParenthesis) != nil
	for {
		name := args.Match(tokens.Name)
		if name == nil {
			return nil, args.Error("for: a name is missing", args.Current())
		}
		tag.targets = append(tag.targets, name.Val)
		if args.Match(tokens.Comma) == nil {
			break
		}
	}
	if bracket && args.Match(tokens.RightParenthesis) == nil || args.Match(tokens.In) == nil {
		return nil, args.Error("for: want names and then in", args.Current())
	}
	var err error
	if tag.items, err = args.ParseExpression(); err != nil {
		return nil, err
	}
	if args.MatchName("if") != nil {
		if tag.filter, err = args.ParseExpression(); err != nil {
			return nil, err
		}
	}
	if !args.End() { // for example recursive
		return nil, args.Error("for: not supported", args.Current())
	}
	var rest *parser.Parser
	if tag.body, rest, err = p.WrapUntil("else", "endfor"); err != nil {
		return nil, err
	}
	if tag.body.EndTag == "else" {
		if err := noArgs(rest, "else"); err != nil {
			return nil, err
		}
		if tag.empty, rest, err = p.WrapUntil("endfor"); err != nil {
			return nil, err
		}
	}
	return tag, noArgs(rest, "endfor")
}

func parseSet(p, args *parser.Parser) (nodes.ControlStructure, error) {
	tag := &setTag{statement: statement{args.Current()}}
	for {
		target, err := args.ParseVariableOrLiteral()
		if err != nil {
			return nil, err
		}
		switch target := target.(type) {
		case *nodes.Name, *nodes.GetAttribute:
			tag.targets = append(tag.targets, target)
		case *nodes.Tuple:
			tag.targets = append(tag.targets, target.Val...)
		default:
			return nil, args.Error("set: the target is neither a name nor an attribute of a namespace", args.Current())
		}
		if args.Match(tokens.Comma) == nil {
			break
		}
	}
	if args.Match(tokens.Assign) == nil {
		if !args.End() || len(tag.targets) != 1 {
			return nil, args.Error("set: want = or the end of the tag", args.Current())
		}
		body, rest, err := p.WrapUntil("endset")
		if err != nil {
			return nil, err
		}
		tag.body = body
		return tag, noArgs(rest, "endset")
	}
	value, err := args.ParseExpression()
	if err != nil {
		return nil, err
	}
	if args.Current(tokens.Comma) != nil { // a tuple without brackets
		tuple := &nodes.Tuple{Location: tag.at, Val: []nodes.Expression{value}}
		for args.Match(tokens.Comma) != nil && !args.End() {
			if value, err = args.ParseExpression(); err != nil {
				return nil, err
			}
			tuple.Val = append(tuple.Val, value)
		}
		value = tuple
	}
	tag.value = value
	return tag, noArgs(args, "set")
}

func parseMacro(p, args *parser.Parser) (nodes.ControlStructure, error) {
	tag := &macroTag{statement: statement{args.Current()}}
	name := args.Match(tokens.Name)
	if name == nil || args.Match(tokens.LeftParenthesis) == nil {
		return nil, args.Error("macro: want a name and parameters in brackets", args.Current())
	}
	tag.name = name.Val
	for args.Match(tokens.RightParenthesis) == nil {
		param := args.Match(tokens.Name)
		if param == nil {
			return nil, args.Error("macro: a parameter's name is missing", args.Current())
		}
		var value nodes.Expression
		if args.Match(tokens.Assign) != nil {
			var err error
			if value, err = args.ParseExpression(); err != nil {
				return nil, err
			}
		}
		tag.params, tag.defaults = append(tag.params, param.Val), append(tag.defaults, value)
		if args.Match(tokens.Comma) == nil && args.Current(tokens.RightParenthesis) == nil {
			return nil, args.Error("macro: want a comma or )", args.Current())
		}
	}
	if err := noArgs(args, "macro"); err != nil {
		return nil, err
	}
	body, rest, err := p.WrapUntil("endmacro")
	if err != nil {
		return nil, err
	}
	tag.body = body
	if name := rest.Match(tokens.Name); name != nil && name.Val != tag.name {
		return nil, fmt.Errorf("macro %s ends with endmacro %s", tag.name, name.Val)
	}
	return tag, noArgs(rest, "endmacro")
}

func parseGeneration(p, args *parser.Parser) (nodes.ControlStructure, error) {
	tag := &blockTag{statement: statement{args.Current()}}
	if err := noArgs(args, "generation"); err != nil {
		return nil, err
	}
	body, rest, err := p.WrapUntil("endgeneration")
	if err != nil {
		return nil, err
	}
	tag.body = body
	return tag, noArgs(rest, "endgeneration")
}

func parseLoop(signal error) parser.ControlStructureParser {
	return func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		return &loopTag{statement{args.Current()}, signal}, noArgs(args, signal.Error())
	}
}

func wholeExpression(args *parser.Parser) (nodes.Expression, error) {
	e, err := args.ParseExpression()
	if err != nil {
		return nil, err
	}
	return e, noArgs(args, "if")
}

func noArgs(args *parser.Parser, tag string) error {
	if args.End() {
		return nil
	}
	return args.Error(tag+": the tag should end here", args.Current())
}
