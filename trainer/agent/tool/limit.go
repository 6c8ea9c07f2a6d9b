package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits bounds a conversation's use of a tool.
type Limits struct {
	Calls int // calls of one conversation; 0: any number
	Bytes int // longest output or error shown to the model; 0: no limit
}

// Errors of a call that do not depend on its arguments.
var (
	ErrTimeout = errors.New("the call timed out")
	ErrFailed  = errors.New("the tool failed, whatever its arguments") // the tool crashed, or its server is gone
	errRefused = errors.New("the conversation may not call the tool again")
)

// kinds are the errors that distinguish failed calls, by the names under which they are stored.
var kinds = map[string]error{"timeout": ErrTimeout, "failed": ErrFailed}

// kindOf returns the kind of an error, or nil if a call with other arguments might succeed.
func kindOf(err error) (name string, kind error) {
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			return name, kind
		}
	}
	return "", nil
}

// Failed wraps an error as ErrFailed and keeps its text.
func Failed(err error) error { return &callError{err.Error(), ErrFailed} }

// callError is an error with another text, which the model reads.
type callError struct {
	text string
	err  error // ErrTimeout, ErrFailed, errRefused, another error with its kind, or nil
}

func (e *callError) Error() string { return e.text }
func (e *callError) Unwrap() error { return e.err }

// Limited wraps a tool. It refuses calls of a conversation beyond the limit, and truncates outputs and errors.
func Limited(t Tool, l Limits) Tool {
	return withCall(t, func(ctx context.Context, args json.RawMessage) (string, error) {
		if o, ok := OriginOf(ctx); ok && l.Calls > 0 && o.Call >= l.Calls {
			return "", &callError{fmt.Sprintf("%s was called %d times, and no more calls are allowed: go on with what you know", t.Name(), l.Calls),
				errRefused}
		}
		out, err := t.Call(ctx, args)
		if err != nil {
			return "", &callError{Truncate(err.Error(), l.Bytes), err}
		}
		return Truncate(out, l.Bytes), nil
	})
}

// Redact returns s as valid UTF-8 without secrets.
func Redact(s string, secrets []string) string {
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[redacted]")
		}
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// RedactError returns an error that wraps err and whose text has no secrets.
func RedactError(err error, secrets []string) error {
	return &callError{Redact(err.Error(), secrets), err}
}

// Truncate cuts s, which must be valid UTF-8, to at most max bytes at a character boundary and appends a note with the
// number of missing bytes. The note does not count towards max. max 0 means no limit.
func Truncate(s string, max int) string {
	if max <= 0 || len(s) <= max {
		return s
	}
	end := max
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s\n[%d more bytes not shown]", s[:end], len(s)-end)
}
