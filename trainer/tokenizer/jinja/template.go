// Package jinja renders Hugging Face chat templates with the semantics of Jinja2 on Python values.
package jinja

import "errors"

// Template is a parsed template, safe for concurrent use.
type Template struct{}

// Parse reads a template.
func Parse(source string) (*Template, error) { return &Template{}, nil }

// Render executes the template with variables that are ordered values.
func (t *Template) Render(vars map[string]any) (string, error) {
	return "", errors.New("jinja: not there yet")
}
