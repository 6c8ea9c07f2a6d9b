// Package jinja renders Hugging Face chat templates as Jinja2 does with Python values. Undefined values
// fail when used, None is not converted to text, integers have any size, dictionaries keep their order. A
// lexer splits a template into tokens, a parser builds nodes from them, and a renderer evaluates the nodes.
//
// A template can only compute text from its variables: there is no include, import, file or environment access, and
// steps, memory and output are bounded.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package jinja

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
)

// maxSource is the size of the largest template, in bytes.
const maxSource = 1 << 20

// Template is a parsed template, safe for concurrent use.
type Template struct {
	source string
	body   body
}

// Parse parses a template with Hugging Face's settings: trim_blocks, lstrip_blocks, break and continue, and the
// generation block. Errors name the line.
func Parse(source string) (*Template, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("the template is larger than %d bytes", maxSource)
	}
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	source = strings.TrimSuffix(source, "\n")
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{source: source, tokens: tokens}
	list, _ := p.statements(token{})
	if p.err != nil {
		return nil, p.err
	}
	return &Template{source, list}, nil
}

// Render executes the template. The variables are values of package ordered. strftime_now formats now.
func (t *Template) Render(vars map[string]any, now time.Time) (string, error) {
	r := &renderer{source: t.source, now: now}
	globals := &scope{vars: functions} // no template assigns to it
	top := globals.inner()
	maps.Copy(top.vars, vars)
	if err := t.body.run(r, top); err != nil {
		return "", err
	}
	return r.out.String(), nil
}

// lineError is an error with its line in the template.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// inLine adds the line of an offset in the source to an error without a line, so that the error names the innermost line.
func inLine(source string, at int, err error) error {
	var inner *lineError
	if err == nil || err == errBreak || err == errContinue || errors.As(err, &inner) {
		return err
	}
	return &lineError{1 + strings.Count(source[:at], "\n"), err}
}
