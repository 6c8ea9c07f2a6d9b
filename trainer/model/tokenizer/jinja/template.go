// Package jinja renders Hugging Face chat templates. gonja parses them, and this package evaluates them as Jinja2 does with
// Python values: undefined values fail when used, None is not converted to text, integers have any size, dictionaries keep
// their order. gonja's own evaluator is more lenient, so it is not used. gonja's lexer does not support an inline if in an
// expression, line breaks in a tag, or Python string escapes, so lex.go and desugar.go prepare the input of its parser.
//
// A template can only compute text from its variables: there is no include, import, file or environment access, and steps,
// memory and output are bounded.
package jinja

import (
	"errors"
	"fmt"
	"time"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// maxSource is the size of the largest template, in bytes.
const maxSource = 1 << 20

// Template is a parsed template, safe for concurrent use.
type Template struct{ root *nodes.Template }

// Parse parses a template with Hugging Face's settings: trim_blocks, lstrip_blocks, break and continue, and the
// generation block.
func Parse(source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("the template is larger than %d bytes", maxSource)
	}
	list, err := lex(source)
	if err != nil {
		return nil, err
	}
	if list, err = desugar(list); err != nil {
		return nil, err
	}
	defer func() { // gonja's parser panics on some malformed tags
		if recover() != nil {
			t, err = nil, errors.New("the template is malformed: a tag ends too early")
		}
	}()
	root, err := parser.NewParser("template", tokens.NewStream(list), config.New(), nil, tagParsers{}).Parse()
	if err != nil {
		return nil, err
	}
	return &Template{root}, nil
}

// Render executes the template. The variables are values of package ordered. strftime_now formats now.
func (t *Template) Render(vars map[string]any, now time.Time) (string, error) {
	r := &renderer{now: now}
	globals := &scope{vars: map[string]any{}}
	for name, f := range functions {
		globals.vars[name] = f
	}
	top := &scope{vars: map[string]any{}, parent: globals}
	for name, v := range vars {
		top.vars[name] = v
	}
	if err := r.nodes(t.root.Nodes, top); err != nil {
		return "", err
	}
	return r.out.String(), nil
}
