package jinja

import (
	"errors"
	"fmt"

	"github.com/nikolalohinski/gonja/v2/tokens"
)

// conditional is the name of the function that replaces an inline if, because gonja's parser supports `a if c else b`
// only as a whole tag. No template can write this name.
const conditional = "\x00if"

// desugar rewrites the tokens of each tag for gonja's parser: `a if c else b` becomes conditional(c, a, b), and the right
// side of `in` gets brackets, because the parser accepts only a name or literal there. It also bounds the nesting of
// blocks.
func desugar(list []*tokens.Token) ([]*tokens.Token, error) {
	var out []*tokens.Token
	depth := 0
	for i := 0; i < len(list); i++ {
		t := list[i]
		out = append(out, t)
		if t.Type != tokens.VariableBegin && t.Type != tokens.BlockBegin {
			continue
		}
		end := i + 1
		for list[end].Type != tokens.VariableEnd && list[end].Type != tokens.BlockEnd {
			end++
		}
		body, err := desugarTag(list[i+1:end], t.Type == tokens.BlockBegin, &depth)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", t.Line, err)
		}
		out = append(out, body...)
		i = end - 1
	}
	return out, nil
}

func desugarTag(body []*tokens.Token, block bool, depth *int) ([]*tokens.Token, error) {
	if len(body) == 0 {
		return nil, errors.New("an empty tag")
	}
	if !block {
		return desugarExpression(body, 0)
	}
	name, rest := body[0], body[1:]
	if err := countNesting(name.Val, rest, depth); err != nil {
		return nil, err
	}
	if name.Val == "for" {
		rest, err := desugarFor(rest)
		return append([]*tokens.Token{name}, rest...), err
	}
	rest, err := desugarExpression(rest, 0)
	return append([]*tokens.Token{name}, rest...), err
}

func countNesting(name string, rest []*tokens.Token, depth *int) error {
	switch name {
	case "set":
		for _, t := range rest {
			if t.Type == tokens.Assign {
				return nil
			}
		}
		*depth++
	case "if", "for", "macro", "generation":
		*depth++
	case "endset", "endif", "endfor", "endmacro", "endgeneration":
		*depth--
	}
	if *depth > maxNesting {
		return fmt.Errorf("blocks nested deeper than %d", maxNesting)
	}
	return nil
}

// desugarFor rewrites the expressions of a for tag but keeps `for x in` and the filtering `if`.
func desugarFor(body []*tokens.Token) ([]*tokens.Token, error) {
	in := find(body, func(t *tokens.Token) bool { return t.Type == tokens.In })
	if in < 0 {
		return nil, errors.New("a for without in")
	}
	out := append([]*tokens.Token{}, body[:in+1]...)
	body = body[in+1:]
	if filter := find(body, isName("if")); filter >= 0 {
		items, err := desugarExpression(body[:filter], 0)
		if err != nil {
			return nil, err
		}
		out = append(append(out, items...), body[filter])
		body = body[filter+1:]
	}
	rest, err := desugarExpression(body, 0)
	return append(out, rest...), err
}

// find returns the index of the first matching token outside brackets, or -1.
func find(list []*tokens.Token, match func(*tokens.Token) bool) int {
	depth := 0
	for i, t := range list {
		if depth == 0 && match(t) {
			return i
		}
		depth += nesting(t)
	}
	return -1
}

func nesting(t *tokens.Token) int {
	switch t.Type {
	case tokens.LeftParenthesis, tokens.LeftBracket, tokens.LeftBrace:
		return 1
	case tokens.RightParenthesis, tokens.RightBracket, tokens.RightBrace:
		return -1
	}
	return 0
}

func isName(name string) func(*tokens.Token) bool {
	return func(t *tokens.Token) bool { return t.Type == tokens.Name && t.Val == name }
}

func isSeparator(t *tokens.Token) bool {
	return t.Type == tokens.Comma || t.Type == tokens.Colon || t.Type == tokens.Assign
}

// desugarExpression rewrites each part between separators.
func desugarExpression(list []*tokens.Token, depth int) ([]*tokens.Token, error) {
	var out []*tokens.Token
	for {
		end := find(list, isSeparator)
		part := list
		if end >= 0 {
			part = list[:end]
		}
		part, err := desugarConditional(part, depth)
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
		if end < 0 {
			return out, nil
		}
		trailing := end == len(list)-1 && list[end].Type == tokens.Comma && depth > 0 && isDict(out)
		if !trailing {
			out = append(out, list[end])
		}
		list = list[end+1:]
	}
}

// isDict reports whether tokens between brackets are the content of a dictionary {…}. The parser does not accept a trailing
// comma there.
func isDict(inside []*tokens.Token) bool {
	return find(inside, func(t *tokens.Token) bool { return t.Type == tokens.Colon }) >= 0
}

// desugarConditional rewrites an expression without separators.
func desugarConditional(list []*tokens.Token, depth int) ([]*tokens.Token, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("inline ifs nested deeper than %d", maxNesting)
	}
	at := find(list, isName("if"))
	if at < 0 {
		return desugarOperators(list, depth)
	}
	then, rest := list[:at], list[at+1:]
	condition, otherwise := rest, []*tokens.Token(nil)
	if end := find(rest, isName("else")); end >= 0 {
		condition, otherwise = rest[:end], rest[end+1:]
		if len(otherwise) == 0 {
			return nil, errors.New("nothing after else")
		}
	}
	if len(then) == 0 || len(condition) == 0 {
		return nil, errors.New("an inline if without a value or a condition")
	}
	line := list[at].Line
	token := func(kind tokens.Type, val string) *tokens.Token {
		return &tokens.Token{Type: kind, Val: val, Line: line}
	}
	out := []*tokens.Token{token(tokens.Name, conditional), token(tokens.LeftParenthesis, "(")}
	for i, part := range [][]*tokens.Token{condition, then, otherwise} {
		if len(part) == 0 {
			continue
		}
		rewritten, err := desugarOperators(part, depth+1)
		if i == 2 {
			rewritten, err = desugarConditional(part, depth+1)
		}
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, token(tokens.Comma, ","))
		}
		out = append(out, rewritten...)
	}
	return append(out, token(tokens.RightParenthesis, ")")), nil
}

var comparisons = map[tokens.Type]bool{tokens.Equals: true, tokens.Ne: true, tokens.GreaterThan: true,
	tokens.GreaterThanOrEqual: true, tokens.LowerThan: true, tokens.LowerThanOrEqual: true, tokens.In: true}

// desugarOperators puts the right side of each `in` in brackets and rewrites the content of brackets.
func desugarOperators(list []*tokens.Token, depth int) ([]*tokens.Token, error) {
	var out []*tokens.Token
	opened := -1 // line of the bracket that `in` opened
	compared := false
	closeIn := func() {
		if opened >= 0 {
			out = append(out, &tokens.Token{Type: tokens.RightParenthesis, Val: ")", Line: opened})
		}
		opened = -1
	}
	for i := 0; i < len(list); i++ {
		t := list[i]
		isTest := i > 0 && (list[i-1].Type == tokens.Is || list[i-1].Type == tokens.Not && i > 1 && list[i-2].Type == tokens.Is)
		switch {
		case t.Type == tokens.And || t.Type == tokens.Or:
			closeIn()
			compared = false
		case comparisons[t.Type] && !isTest:
			if compared {
				return nil, errors.New("a chain of comparisons (a < b < c) is not supported")
			}
			compared = true
		}
		out = append(out, t)
		if t.Type == tokens.In && !isTest {
			opened = t.Line
			out = append(out, &tokens.Token{Type: tokens.LeftParenthesis, Val: "(", Line: t.Line})
		}
		if nesting(t) != 1 {
			continue
		}
		end := i + 1 + find(list[i+1:], func(t *tokens.Token) bool { return nesting(t) < 0 })
		inside, err := desugarExpression(list[i+1:end], depth+1)
		if err != nil {
			return nil, err
		}
		out = append(append(out, inside...), list[end])
		i = end
	}
	closeIn()
	return out, nil
}
