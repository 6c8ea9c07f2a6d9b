// Package jinja renders Hugging Face chat templates. gonja parses them; what the parsed template means is
// decided here, because it has to be what Jinja2 makes of Python values: undefined values that fail when
// used, None that does not turn into text, integers of any size, dictionaries in order. gonja's own
// evaluator is more forgiving, and its lexer does not know inline ifs in an expression, line breaks in a
// tag, or Python's string escapes: lex.go and desugar.go stand before its parser.
//
// A template can do nothing but compute text from its variables: there is no include, import, file or
// environment, and steps, memory and output are bounded.
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

// Parse reads a template with Hugging Face's settings: trim_blocks, lstrip_blocks, break and continue, and
// the generation block.
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
	defer func() { // gonja's parser runs past the end of some malformed tags
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

// Render executes the template with variables that are ordered values. now is what strftime_now prints.
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
