package callformat

import (
	"cmp"
	"encoding/json"
	"errors"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// literals reads values in the notation of Python and Gemma 4, and converts them to JSON. The
// values are texts in single or double quotes or between <|"|>, numbers, True, true, False,
// false, None, null, lists, tuples, and objects whose keys may be without quotes.
type literals struct {
	text    string
	at      int
	python  bool // all literals of Python are read, not only those that JSON and Gemma 4 also have
	lenient bool // a quote closes a text only if the notation can continue after it: some templates do not escape quotes
}

var errLiteral = errors.New("not a literal")

const (
	gemmaQuote      = `<|"|>`
	maxLiteralDepth = 100
)

// literalOf reads a text that consists of one literal.
func literalOf(text string) (json.RawMessage, error) {
	p := &literals{text: text}
	v, err := p.value(0)
	if p.space(); err != nil || p.at < len(text) {
		return nil, errLiteral
	}
	return v, nil
}

func (p *literals) space() { p.at = skipSpace(p.text, p.at) }

// next reports whether a mark follows, and skips it.
func (p *literals) next(mark string) bool {
	if !strings.HasPrefix(p.text[p.at:], mark) {
		return false
	}
	p.at += len(mark)
	return true
}

func (p *literals) value(depth int) (json.RawMessage, error) {
	if depth > maxLiteralDepth {
		return nil, errLiteral
	}
	p.space()
	rest := p.text[p.at:]
	switch {
	case rest == "":
		return nil, errLiteral
	case strings.HasPrefix(rest, gemmaQuote) || rest[0] == '"' || rest[0] == '\'':
		s, err := p.str()
		for p.python && !p.lenient && err == nil && p.adjacent() { // Python joins texts that follow each other
			var more string
			more, err = p.str()
			s += more
		}
		return quoted(s), err
	case rest[0] == '[':
		return p.list("]", depth)
	case rest[0] == '(':
		return p.list(")", depth)
	case rest[0] == '{':
		return p.object(depth)
	}
	return p.word()
}

// word reads a number or a named constant.
func (p *literals) word() (json.RawMessage, error) {
	rest := p.text[p.at:]
	n := strings.IndexFunc(rest, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("+-._", r))
	})
	if n < 0 {
		n = len(rest)
	}
	word := rest[:n]
	p.at += n
	switch word {
	case "True", "true":
		return json.RawMessage("true"), nil
	case "False", "false":
		return json.RawMessage("false"), nil
	case "None", "null":
		return json.RawMessage("null"), nil
	}
	if p.python && (word == "r" || word == "R") && p.at < len(p.text) && strings.IndexByte(`"'`, p.text[p.at]) >= 0 {
		return p.raw()
	}
	if p.python {
		word = plainNumber(word)
	}
	if word == "" || !json.Valid([]byte(word)) {
		return nil, errLiteral
	}
	return json.RawMessage(word), nil
}

// plainNumber converts a Python number to JSON's notation. It returns any other word unchanged.
func plainNumber(word string) string {
	sign, digits := "", strings.TrimLeft(word, "+-")
	if strings.Count(word[:len(word)-len(digits)], "-")%2 == 1 {
		sign = "-"
	}
	if whole, ok := new(big.Int).SetString(digits, 0); ok && pythonInteger.MatchString(digits) {
		return sign + whole.String()
	}
	if m := pythonFloat.FindStringSubmatch(digits); m != nil && m[1]+m[2] != "" && strings.ContainsAny(digits, ".eE") {
		plain := cmp.Or(strings.TrimLeft(m[1], "0_"), "0")
		if m[2] != "" {
			plain += "." + m[2]
		}
		return sign + strings.ReplaceAll(plain+m[3], "_", "")
	}
	return word
}

var (
	pythonInteger = regexp.MustCompile(`^(?:[1-9](?:_?\d)*|0(?:_?0)*|0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+)$`)
	pythonFloat   = regexp.MustCompile(`^(\d(?:_?\d)*)?(?:\.(\d(?:_?\d)*)?)?([eE][+-]?\d+)?$`)
)

// adjacent reports whether another text in quotes follows, and skips the white space before it.
func (p *literals) adjacent() bool {
	at := skipSpace(p.text, p.at)
	if at == len(p.text) || strings.IndexByte(`"'`, p.text[at]) < 0 {
		return false
	}
	p.at = at
	return true
}

// raw reads a raw text of Python, r'...': backslashes belong to the text, and a quote after a backslash does not end it.
func (p *literals) raw() (json.RawMessage, error) {
	quote := p.text[p.at]
	for end := p.at + 1; end < len(p.text); end++ {
		switch p.text[end] {
		case '\\':
			end++
		case quote:
			text := p.text[p.at+1 : end]
			p.at = end + 1
			return quoted(text), nil
		}
	}
	return nil, errLiteral
}

// items reads items with commas between them, and the mark after the last.
func (p *literals) items(end string, read func() error) error {
	for {
		p.space()
		if p.next(end) {
			return nil
		}
		if err := read(); err != nil {
			return err
		}
		p.space()
		if !p.next(",") && !strings.HasPrefix(p.text[p.at:], end) {
			return errLiteral
		}
	}
}

func (p *literals) list(end string, depth int) (json.RawMessage, error) {
	p.at++
	var items []string
	err := p.items(end, func() error {
		v, err := p.value(depth + 1)
		items = append(items, string(v))
		return err
	})
	return json.RawMessage("[" + strings.Join(items, ", ") + "]"), err
}

func (p *literals) object(depth int) (json.RawMessage, error) {
	p.at++
	return p.pairs(":", "}", depth+1)
}

// pairs reads keys and values with a mark between them, and the mark after the last value.
func (p *literals) pairs(between, end string, depth int) (json.RawMessage, error) {
	var out fields
	err := p.items(end, func() error {
		key, err := p.key(between)
		if err != nil {
			return err
		}
		v, err := p.value(depth)
		out.set(key, v)
		return err
	})
	return out.json(), err
}

// key reads a key, with or without quotes, and the mark that must follow it.
func (p *literals) key(follows string) (key string, err error) {
	rest := p.text[p.at:]
	if strings.HasPrefix(rest, gemmaQuote) || rest != "" && (rest[0] == '"' || rest[0] == '\'') {
		key, err = p.str()
	} else {
		n := strings.IndexAny(rest, follows+"(){}[],'\"\n")
		if n <= 0 {
			return "", errLiteral
		}
		key = strings.TrimSpace(rest[:n])
		p.at += n
	}
	p.space()
	if err != nil || key == "" || !p.next(follows) {
		return "", errLiteral
	}
	return key, nil
}

// str reads a text with its quotes.
func (p *literals) str() (string, error) {
	if p.next(gemmaQuote) {
		text, _, closed := strings.Cut(p.text[p.at:], gemmaQuote)
		if !closed {
			return "", errLiteral
		}
		p.at += len(text) + len(gemmaQuote)
		return text, nil
	}
	quote := p.text[p.at]
	p.at++
	if triple := strings.Repeat(string(quote), 2); !p.lenient && strings.HasPrefix(p.text[p.at:], triple) {
		p.at += 2
		text, _, closed := strings.Cut(p.text[p.at:], triple+string(quote))
		if !closed {
			return "", errLiteral
		}
		p.at += len(text) + 3
		return text, nil
	}
	var b strings.Builder
	for p.at < len(p.text) {
		c := p.text[p.at]
		p.at++
		switch {
		case c == quote && (!p.lenient || p.closes(p.at)):
			return b.String(), nil
		case c == '\\' && p.at < len(p.text):
			p.escape(&b)
		default:
			b.WriteByte(c)
		}
	}
	return "", errLiteral
}

// closes reports whether the text after index i can follow a closing quote: the end of a list or a call, or another
// item.
func (p *literals) closes(i int) bool {
	rest := strings.TrimLeft(p.text[i:], " \t\r\n")
	if rest == "" {
		return true
	}
	switch rest[0] {
	case ')', ']', '}', ':':
		return true
	case ',':
		rest = strings.TrimLeft(rest[1:], " \t\r\n")
		if rest == "" || strings.ContainsRune("\"'[{(-0123456789)]}", rune(rest[0])) {
			return true
		}
		n := strings.IndexFunc(rest, func(r rune) bool { return !isNameRune(r) })
		return n > 0 && strings.ContainsRune("=:,)]}", rune(rest[n])) || n < 0
	}
	return false
}

func isNameRune(r rune) bool {
	return r == '_' || r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= utf8.RuneSelf
}

var escapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r", 'b': "\b", 'f': "\f", '\\': `\`, '\'': "'", '"': `"`, '/': "/", '\n': ""}

// escape reads an escape after its backslash. An unknown escape keeps its backslash, as in Python.
func (p *literals) escape(b *strings.Builder) {
	c := p.text[p.at]
	p.at++
	if s, ok := escapes[c]; ok {
		b.WriteString(s)
		return
	}
	if size := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]; size > 0 && p.at+size <= len(p.text) {
		if r, ok := hex(p.text[p.at : p.at+size]); ok {
			p.at += size
			b.WriteRune(p.surrogate(r))
			return
		}
	}
	b.WriteByte('\\')
	b.WriteByte(c)
}

// surrogate joins a high surrogate with the low one that follows it. JSON writes characters above U+FFFF in this way.
func (p *literals) surrogate(r rune) rune {
	if p.at+6 > len(p.text) || p.text[p.at:p.at+2] != `\u` {
		return r
	}
	low, _ := hex(p.text[p.at+2 : p.at+6])
	joined := utf16.DecodeRune(r, low)
	if joined == utf8.RuneError {
		return r
	}
	p.at += 6
	return joined
}

func hex(digits string) (r rune, ok bool) {
	n, err := strconv.ParseUint(digits, 16, 32)
	return rune(n), err == nil && n <= utf8.MaxRune
}
