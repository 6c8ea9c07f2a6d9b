package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// position is the origin of a value: a place in a file, or a --set argument.
type position struct {
	source    string // the file's name, or the argument
	line, col int    // from 1; 0 if source is an argument
}

func (p position) String() string {
	if p.line == 0 {
		return p.source
	}
	return fmt.Sprintf("%s:%d:%d", p.source, p.line, p.col)
}

// Error is one mistake in a configuration.
type Error struct {
	Where string // file:line:column, or the --set argument
	Key   string // the key's path, such as grpo.eps_low; empty if the text is not YAML
	Msg   string // the mistake and its remedy

	pos   position
	cause error // cause of a Fault
}

// Unwrap returns the cause of a Fault, for errors.Is.
func (e *Error) Unwrap() error { return e.cause }

func (e *Error) Error() string {
	if e.Key == "" {
		return e.Where + ": " + e.Msg
	}
	return e.Where + ": " + e.Key + ": " + e.Msg
}

// Errors holds every mistake found in a configuration, in the order of the file.
type Errors []*Error

func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the single mistakes, for errors.As.
func (es Errors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

// add appends a mistake.
func (es *Errors) add(p position, key, format string, args ...any) {
	*es = append(*es, &Error{Where: p.String(), Key: key, Msg: fmt.Sprintf(format, args...), pos: p})
}

// Err returns nil if there is no mistake. Otherwise it sorts es by place: the file first, then the arguments as given.
func (es Errors) Err() error {
	if len(es) == 0 {
		return nil
	}
	slices.SortStableFunc(es, func(a, b *Error) int {
		if (a.pos.line == 0) != (b.pos.line == 0) {
			return cmp.Compare(b.pos.line, a.pos.line)
		}
		return cmp.Or(cmp.Compare(a.pos.line, b.pos.line), cmp.Compare(a.pos.col, b.pos.col))
	})
	return es
}

// Fault returns an Error for a mistake that is detected only when a value is used, such as a missing model.
func (c *Config) Fault(key string, err error) *Error {
	pos := nearestPlace(c.at, key)
	msg := err.Error()
	if pos.line == 0 && pos.source != "" && errors.Is(err, fs.ErrNotExist) {
		msg += "; a relative path starts from the folder of the configuration, " + cmp.Or(c.dir, ".")
	}
	return &Error{Where: pos.String(), Key: key, Msg: msg, pos: pos, cause: err}
}
