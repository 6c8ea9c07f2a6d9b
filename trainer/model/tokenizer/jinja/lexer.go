package jinja

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxTagTokens is the largest number of tokens in a tag. It bounds the depth of a chain of operators or filters.
const maxTagTokens = 1 << 12

type kind int

// The kinds of tokens. A symbol is an operator, a bracket or a tag's delimiter.
const (
	kindText kind = iota // between tags
	kindNumber
	kindName
	kindString
	kindSymbol
	kindEnd // of the template
)

type token struct {
	kind kind
	text string // a string is without quotes and escapes
	at   int    // offset in the source
}

// is reports whether a token is a symbol or name.
func (t token) is(text string) bool {
	return t.text == text && (t.kind == kindSymbol || t.kind == kindName)
}

// lexer splits a template into tokens as Jinja2 does with trim_blocks and lstrip_blocks. It applies white space control to
// the text.
type lexer struct {
	source    string
	at        int
	lineStart bool // the previous tag removed a line end
	tokens    []token
}

const (
	space  = `[\s\v\x1c-\x1f\x{85}\pZ]*` // isSpace
	digits = `[0-9](?:_?[0-9])*`
)

// The forms of tags. A sign is - or +.
var (
	tagStart   = regexp.MustCompile(`\{([{%#])([-+]?)`)
	commentEnd = regexp.MustCompile(`([-+]?)#\}`)
	rawStart   = regexp.MustCompile(`^` + space + `raw` + space + `(-?)%\}`)
	rawEnd     = regexp.MustCompile(`\{%([-+]?)` + space + `endraw` + space + `([-+]?)%\}`)
	outputEnd  = regexp.MustCompile(`^(-?)(\}\})`)
	blockEnd   = regexp.MustCompile(`^([-+]?)(%\})`)
)

// tokenForms has the forms of tokens in a tag, a group for each kind. An integer other than 0 has no leading 0.
var tokenForms = regexp.MustCompile(`(?s)^(?:` +
	`(` + digits + `(?:\.` + digits + `(?:[eE][-+]?` + digits + `)?|[eE][-+]?` + digits + `)|` +
	`0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+|[1-9](?:_?[0-9])*|0(?:_?0)*)|` +
	`([\pL_][\pL\p{Nd}_]*)|` +
	`("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|` +
	`(//|\*\*|[=!<>]=|[-+*/%~()[\]{}<>=.:|,]))`)

func lex(source string) ([]token, error) {
	l := &lexer{source: source, lineStart: true}
	for {
		text, tag := l.match(tagStart)
		if tag == nil {
			l.text(text, "", false)
			l.at = len(source)
			l.emit(kindEnd, "the end of the template", l.at)
			return l.tokens, nil
		}
		l.text(text, tag[2], tag[1] != "{")
		if err := l.tag(tag[1]); err != nil {
			return nil, inLine(source, l.at, err)
		}
	}
}

// match finds a form in the rest of the source and moves behind it. It returns the text before the form, and the form's
// groups: nil if there is none.
func (l *lexer) match(form *regexp.Regexp) (before string, groups []string) {
	rest := l.source[l.at:]
	m := form.FindStringSubmatchIndex(rest)
	if m == nil {
		return rest, nil
	}
	l.at += m[1]
	for i := 0; i < len(m); i += 2 {
		groups = append(groups, rest[max(m[i], 0):max(m[i+1], 0)])
	}
	return rest[:m[0]], groups
}

func (l *lexer) emit(kind kind, text string, at int) {
	l.tokens = append(l.tokens, token{kind, text, at})
}

// text emits the text before a tag with a sign. lstrip_blocks applies to blocks and comments without a sign.
func (l *lexer) text(text, sign string, block bool) {
	switch {
	case sign == "-":
		text = strings.TrimRightFunc(text, isSpace)
	case block && sign == "":
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
			text = text[:start]
		}
	}
	if text != "" {
		l.emit(kindText, text, l.at)
	}
}

// trim removes white space behind a tag that ends with a sign. trim_blocks applies to blocks and comments without a sign.
func (l *lexer) trim(sign string, block bool) {
	rest := l.source[l.at:]
	kept := rest
	switch {
	case sign == "-":
		kept = strings.TrimLeftFunc(rest, isSpace)
	case block && sign == "":
		kept = strings.TrimPrefix(rest, "\n")
	}
	l.at += len(rest) - len(kept)
	l.lineStart = strings.HasSuffix(rest[:len(rest)-len(kept)], "\n")
}

// tag reads a tag behind its start {{, {% or {#.
func (l *lexer) tag(kind string) error {
	switch kind {
	case "#":
		_, end := l.match(commentEnd)
		if end == nil {
			return errors.New("a comment does not end")
		}
		l.trim(end[1], true)
		return nil
	case "{":
		return l.code("{{", outputEnd)
	}
	_, raw := l.match(rawStart)
	if raw == nil {
		return l.code("{%", blockEnd)
	}
	l.trim(raw[1], false)
	text, end := l.match(rawEnd)
	if end == nil {
		return errors.New("a raw block does not end")
	}
	l.text(text, end[1], true)
	l.trim(end[2], true)
	return nil
}

// code reads the tokens of a tag. `open` holds the closing brackets that are still expected, the innermost last.
func (l *lexer) code(start string, end *regexp.Regexp) error {
	begin, first, open := l.at, len(l.tokens), ""
	l.emit(kindSymbol, start, begin)
	for len(l.tokens)-first <= maxTagTokens {
		l.at += len(l.source[l.at:]) - len(strings.TrimLeftFunc(l.source[l.at:], isSpace))
		if open == "" {
			if _, sign := l.match(end); sign != nil {
				l.emit(kindSymbol, sign[2], l.at)
				l.trim(sign[1], start == "{%")
				return nil
			}
		}
		if l.at == len(l.source) {
			l.at = begin
			return errors.New("a tag does not end")
		}
		if err := l.token(&open); err != nil {
			return err
		}
	}
	return fmt.Errorf("a tag of more than %d tokens", maxTagTokens)
}

func (l *lexer) token(open *string) error {
	at := l.at
	_, m := l.match(tokenForms)
	switch {
	case m == nil:
		r, _ := utf8.DecodeRuneInString(l.source[at:])
		if r == '"' || r == '\'' {
			return errors.New("a string does not end")
		}
		return fmt.Errorf("unexpected %q in a tag", r)
	case m[kindNumber] != "":
		if l.source[at-1] == '.' { // x.0.1 has two integers
			m[kindNumber], _, _ = strings.Cut(m[kindNumber], ".")
			l.at = at + len(m[kindNumber])
		}
		l.emit(kindNumber, m[kindNumber], at)
	case m[kindName] != "":
		l.emit(kindName, m[kindName], at)
	case m[kindString] != "":
		text, err := unescape(m[kindString][1 : len(m[kindString])-1])
		if err != nil {
			l.at = at
			return err
		}
		l.emit(kindString, text, at)
	default:
		l.emit(kindSymbol, m[kindSymbol], at)
		return balance(open, m[kindSymbol])
	}
	return nil
}

// balance keeps track of brackets.
func balance(open *string, symbol string) error {
	if i := strings.Index("([{", symbol); i >= 0 {
		*open += ")]}"[i : i+1]
	} else if strings.Contains(")]}", symbol) {
		rest, ok := strings.CutSuffix(*open, symbol)
		if !ok {
			return fmt.Errorf("%q without its opening bracket", symbol)
		}
		*open = rest
	}
	return nil
}

// isSpace reports whether Python's str.isspace accepts a character.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
