package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/tokens"
)

// Limits that bound the recursion of parser and renderer.
const (
	maxTagTokens = 1 << 12
	maxNesting   = 100 // of brackets in a tag, and of blocks
)

// lexer splits a template into tokens as Jinja2 does with trim_blocks and lstrip_blocks. It applies white space control to
// the text, so that gonja's parser receives plain delimiters.
type lexer struct {
	rest      string
	line      int
	lineStart bool // the previous tag removed a line end
	out       []*tokens.Token
}

func lex(source string) ([]*tokens.Token, error) {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{rest: source, line: 1, lineStart: true}
	for l.rest != "" {
		i := nextTag(l.rest)
		if i < 0 {
			l.data(l.rest, false)
			break
		}
		if err := l.tag(i); err != nil {
			return nil, fmt.Errorf("line %d: %w", l.line, err)
		}
	}
	l.emit(tokens.EOF, "")
	return l.out, nil
}

// nextTag returns the index of the next {{, {% or {#.
func nextTag(s string) int {
	for i := 0; ; i++ {
		n := strings.IndexByte(s[i:], '{')
		if n < 0 {
			return -1
		}
		i += n
		if i+1 < len(s) && strings.IndexByte("{%#", s[i+1]) >= 0 {
			return i
		}
	}
}

func (l *lexer) emit(kind tokens.Type, val string) {
	l.out = append(l.out, &tokens.Token{Type: kind, Val: val, Line: l.line})
}

// data emits the text before a tag. block reports whether lstrip_blocks applies to it.
func (l *lexer) data(text string, block bool) {
	lines := strings.Count(text, "\n")
	if block {
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
			text = text[:start]
		}
	}
	if text != "" {
		l.emit(tokens.Data, text)
	}
	l.line += lines
}

// tag reads the data before the tag at rest[i], and the tag.
func (l *lexer) tag(i int) error {
	text, kind := l.rest[:i], l.rest[i+1]
	body := l.rest[i+2:]
	sign := byte(0)
	if body != "" && (body[0] == '-' || body[0] == '+') {
		sign = body[0]
		body = body[1:]
	}
	if sign == '-' {
		lines := strings.Count(text, "\n")
		l.data(strings.TrimRightFunc(text, isSpace), false)
		l.line += lines - strings.Count(strings.TrimRightFunc(text, isSpace), "\n")
	} else {
		l.data(text, kind != '{' && sign != '+')
	}
	switch kind {
	case '#':
		return l.comment(body)
	case '{':
		return l.expression(body, tokens.VariableBegin, "}}")
	}
	if raw := strings.TrimLeftFunc(body, isSpace); strings.HasPrefix(raw, "raw") {
		if end := strings.TrimLeftFunc(raw[3:], isSpace); strings.HasPrefix(end, "%}") || strings.HasPrefix(end, "-%}") {
			return l.raw(body[:len(body)-len(end)], end)
		}
	}
	return l.expression(body, tokens.BlockBegin, "%}")
}

func (l *lexer) comment(body string) error {
	end := strings.Index(body, "#}")
	if end < 0 {
		return fmt.Errorf("a comment does not end")
	}
	l.line += strings.Count(body[:end], "\n")
	sign := byte(0)
	if end > 0 {
		sign = body[end-1]
	}
	l.after(body[end+2:], sign, true)
	return nil
}

func (l *lexer) raw(opening, body string) error {
	l.line += strings.Count(opening, "\n")
	l.after(body[strings.Index(body, "%}")+2:], body[0], false)
	body = l.rest
	for at := 0; ; {
		i := strings.Index(body[at:], "{%")
		if i < 0 {
			return fmt.Errorf("a raw block does not end")
		}
		i += at
		at = i + 2
		tag := body[at:]
		stripBefore := strings.HasPrefix(tag, "-")
		tag, found := strings.CutPrefix(strings.TrimLeftFunc(strings.TrimPrefix(tag, "-"), isSpace), "endraw")
		tag = strings.TrimLeftFunc(tag, isSpace)
		sign := byte(0)
		if strings.HasPrefix(tag, "-") || strings.HasPrefix(tag, "+") {
			sign, tag = tag[0], tag[1:]
		}
		if !found || !strings.HasPrefix(tag, "%}") {
			continue
		}
		text := body[:i]
		if stripBefore {
			text = strings.TrimRightFunc(text, isSpace)
		}
		l.data(text, !stripBefore)
		l.after(tag[2:], sign, true)
		return nil
	}
}

// after continues after a tag that ended with sign. block reports whether trim_blocks applies.
func (l *lexer) after(rest string, sign byte, block bool) {
	l.rest = rest
	switch {
	case sign == '-':
		l.rest = strings.TrimLeftFunc(rest, isSpace)
	case block && sign != '+':
		l.rest = strings.TrimPrefix(rest, "\n")
	}
	swallowed := rest[:len(rest)-len(l.rest)]
	l.lineStart = strings.HasSuffix(swallowed, "\n")
	l.line += strings.Count(swallowed, "\n")
}

// expression reads the tokens up to the end of a tag.
func (l *lexer) expression(s string, begin tokens.Type, end string) error {
	val, endType := "{{", tokens.VariableEnd
	if begin == tokens.BlockBegin {
		val, endType = "{%", tokens.BlockEnd
	}
	l.emit(begin, val)
	var open []byte
	for first := len(l.out); ; {
		trimmed := strings.TrimLeftFunc(s, isSpace)
		l.line += strings.Count(s[:len(s)-len(trimmed)], "\n")
		if s = trimmed; s == "" {
			return fmt.Errorf("a tag does not end")
		}
		if len(open) == 0 {
			sign := byte(0)
			if t := strings.TrimPrefix(s, "-"); len(t) < len(s) && strings.HasPrefix(t, end) {
				sign, s = '-', t
			} else if t := strings.TrimPrefix(s, "+"); len(t) < len(s) && strings.HasPrefix(t, end) && end == "%}" {
				sign, s = '+', t
			}
			if strings.HasPrefix(s, end) {
				l.emit(endType, end)
				l.after(s[2:], sign, end == "%}")
				return nil
			}
		}
		if len(l.out)-first > maxTagTokens {
			return fmt.Errorf("a tag of more than %d tokens", maxTagTokens)
		}
		n, err := l.token(s, &open)
		if err != nil {
			return err
		}
		l.line += strings.Count(s[:n], "\n")
		s = s[n:]
	}
}

// token emits the token at the start of s and returns its length.
func (l *lexer) token(s string, open *[]byte) (int, error) {
	switch c := s[0]; {
	case c == '"' || c == '\'':
		return l.str(s)
	case c >= '0' && c <= '9':
		return l.number(s), nil
	case c == '(' || c == '[' || c == '{':
		if len(*open) == maxNesting {
			return 0, fmt.Errorf("brackets nested deeper than %d", maxNesting)
		}
		*open = append(*open, c+map[byte]byte{'(': 1, '[': 2, '{': 2}[c])
	case c == ')' || c == ']' || c == '}':
		if len(*open) == 0 || (*open)[len(*open)-1] != c {
			return 0, fmt.Errorf("%q without its opening bracket", c)
		}
		*open = (*open)[:len(*open)-1]
	}
	if n := nameLen(s); n > 0 {
		l.name(s[:n])
		return n, nil
	}
	for _, n := range []int{2, 1} {
		if n <= len(s) {
			if kind, ok := operators[s[:n]]; ok {
				l.emit(kind, s[:n])
				return n, nil
			}
		}
	}
	r, _ := utf8.DecodeRuneInString(s)
	return 0, fmt.Errorf("unexpected %q in a tag", r)
}

var operators = map[string]tokens.Type{
	"+": tokens.Addition, "-": tokens.Subtraction, "/": tokens.Division, "//": tokens.FloorDivision, "*": tokens.Multiply,
	"%": tokens.Modulo, "**": tokens.Power, "~": tokens.Tilde, "[": tokens.LeftBracket, "]": tokens.RightBracket,
	"(": tokens.LeftParenthesis, ")": tokens.RightParenthesis, "{": tokens.LeftBrace, "}": tokens.RightBrace,
	"==": tokens.Equals, "!=": tokens.Ne, ">": tokens.GreaterThan, ">=": tokens.GreaterThanOrEqual,
	"<": tokens.LowerThan, "<=": tokens.LowerThanOrEqual, "=": tokens.Assign, ".": tokens.Dot, ":": tokens.Colon,
	"|": tokens.Pipe, ",": tokens.Comma,
}

var keywords = map[string]tokens.Type{
	"in": tokens.In, "is": tokens.Is, "and": tokens.And, "or": tokens.Or, "not": tokens.Not,
}

func (l *lexer) name(s string) {
	if s == "none" {
		s = "None" // gonja's parser expects this spelling
	}
	if kind, ok := keywords[s]; ok {
		l.emit(kind, s)
		return
	}
	l.emit(tokens.Name, s)
}

// number emits an integer or a float. A float needs digits on both sides of the point.
func (l *lexer) number(s string) int {
	n := digitsLen(s)
	kind := tokens.Integer
	afterDot := len(l.out) > 0 && l.out[len(l.out)-1].Type == tokens.Dot
	if n < len(s) && s[n] == '.' && digitsLen(s[n+1:]) > 0 && !afterDot {
		n += 1 + digitsLen(s[n+1:])
		kind = tokens.Float
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') && !afterDot {
		sign := 0
		if n+1 < len(s) && (s[n+1] == '+' || s[n+1] == '-') {
			sign = 1
		}
		if digits := digitsLen(s[n+1+sign:]); digits > 0 {
			n += 1 + sign + digits
			kind = tokens.Float
		}
	}
	val := strings.ReplaceAll(s[:n], "_", "")
	if kind == tokens.Integer {
		if val = strings.TrimLeft(val, "0"); val == "" { // gonja would read a leading 0 as octal
			val = "0"
		}
	}
	l.emit(kind, val)
	return n
}

func digitsLen(s string) int {
	n := 0
	for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] == '_' && n > 0) {
		n++
	}
	return n
}

func nameLen(s string) int {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return i
		}
	}
	return len(s)
}

// str emits a string. Adjacent string literals are joined.
func (l *lexer) str(s string) (int, error) {
	end := 1
	for ; end < len(s) && s[end] != s[0]; end++ {
		if s[end] == '\\' {
			end++
		}
	}
	if end >= len(s) {
		return 0, fmt.Errorf("a string does not end")
	}
	text, err := unescape(s[1:end])
	if err != nil {
		return 0, err
	}
	text = strings.ReplaceAll(text, `\`, `\\`) // gonja's parser removes one level of backslashes
	if last := l.out[len(l.out)-1]; last.Type == tokens.String {
		last.Val += text
	} else {
		l.emit(tokens.String, text)
	}
	return end + 1, nil
}

var escapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r", 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v",
	'\\': `\`, '\'': "'", '"': `"`, '\n': ""}

var hexEscapes = map[byte]int{'x': 2, 'u': 4, 'U': 8}

// unescape decodes Python's string escapes. Unknown escapes stay unchanged.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out.WriteByte(s[i])
			continue
		}
		i++
		c := s[i]
		known, ok := escapes[c]
		switch {
		case ok:
			out.WriteString(known)
		case hexEscapes[c] > 0:
			n := hexEscapes[c]
			if i+n >= len(s) {
				return "", fmt.Errorf(`the escape \%c is cut short`, c)
			}
			v, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil || !utf8.ValidRune(rune(v)) {
				return "", fmt.Errorf(`\%s is not a character`, s[i:i+1+n])
			}
			out.WriteRune(rune(v))
			i += n
		case c >= '0' && c <= '7':
			n := 1
			for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
				n++
			}
			v, _ := strconv.ParseUint(s[i:i+n], 8, 16)
			out.WriteRune(rune(v))
			i += n - 1
		case c == 'N':
			return "", fmt.Errorf(`escapes by name, \N, are not supported`)
		default:
			out.WriteByte('\\')
			out.WriteByte(c)
		}
	}
	return out.String(), nil
}

// isSpace reports what Python's str.isspace does for one character.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
