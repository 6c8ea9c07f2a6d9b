package main

import (
	"bytes"
	"io"
	"unicode"
)

// plain writes texts of models and other programs, which must not control a terminal: it replaces control characters by
// question marks, except newlines and tabs, which console.Printable also replaces. Each write contains whole characters.
type plain struct{ w io.Writer }

func (p plain) Write(text []byte) (int, error) {
	shown := bytes.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '?'
		}
		return r
	}, text)
	if _, err := p.w.Write(shown); err != nil {
		return 0, err
	}
	return len(text), nil
}
