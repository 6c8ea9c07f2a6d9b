package main

import (
	"bytes"
	"io"
	"unicode"
)

// plainWriter writes texts of models and other programs, which must not control a terminal: it replaces control characters by
// question marks, except newlines and tabs, which console.Printable also replaces. Each write contains whole characters.
type plainWriter struct{ w io.Writer }

func (p plainWriter) Write(text []byte) (int, error) {
	printable := bytes.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '?'
		}
		return r
	}, text)
	if _, err := p.w.Write(printable); err != nil {
		return 0, err
	}
	return len(text), nil
}
