package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits bound one call of a tool.
type Limits struct {
	Timeout time.Duration // 0: none
	Bytes   int           // longest output or error shown to the model; 0: no limit
	Secrets []string      // texts, such as API keys, that are replaced in outputs and errors
}

// Errors of a Limited tool that its arguments did not cause.
var (
	ErrTimeout = errors.New("the call timed out")
	ErrFailed  = errors.New("the tool failed, whatever its arguments") // the tool crashed, or its server is gone
)

// failed wraps an error as ErrFailed and keeps its text.
func failed(err error) error { return &callError{err.Error(), ErrFailed} }

// callError is an error as the model reads it, and its kind.
type callError struct {
	text string
	kind error // ErrTimeout, ErrFailed or nil
}

func (e *callError) Error() string { return e.text }
func (e *callError) Unwrap() error { return e.kind }

// Limited wraps a tool: it enforces the time-out, truncates output and errors, replaces secrets, and turns a panic into
// an error of the call.
func Limited(t Tool, l Limits) Tool { return limited{t, l} }

type limited struct {
	Tool
	limits Limits
}

func (t limited) Call(ctx context.Context, args json.RawMessage) (out string, err error) {
	if t.limits.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t.limits.Timeout, ErrTimeout)
		defer cancel()
	}
	defer func() {
		if p := recover(); p != nil {
			out, err = "", failed(fmt.Errorf("%s crashed: %v", t.Name(), p))
		}
		if err != nil && errors.Is(context.Cause(ctx), ErrTimeout) {
			err = &callError{fmt.Sprintf("%s took longer than %v", t.Name(), t.limits.Timeout), ErrTimeout}
		}
		if err != nil {
			text, kind := t.presentable(err.Error()), error(nil)
			for _, k := range []error{ErrTimeout, ErrFailed} {
				if errors.Is(err, k) {
					kind = k
				}
			}
			out, err = "", &callError{text, kind}
		}
		out = t.presentable(out)
	}()
	return t.Tool.Call(ctx, args)
}

func (t limited) presentable(s string) string {
	return Truncate(redact(s, t.limits.Secrets), t.limits.Bytes)
}

// redact returns s as valid UTF-8 without secrets.
func redact(s string, secrets []string) string {
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[redacted]")
		}
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Truncate cuts s, valid UTF-8, to at most max bytes at a character boundary and appends a note with the number of
// missing bytes. The note does not count in max. max 0 means no limit.
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
