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
	Bytes   int           // of output or error shown to the model; 0: all
	Secrets []string      // replaced wherever a tool's output or error repeats them (API keys)
}

// Errors of a Limited tool's call, beside those that its arguments may have caused.
var (
	ErrTimeout = errors.New("the time of the call is over")
	ErrFailed  = errors.New("the tool failed, whatever its arguments") // it crashed, or its server is gone
)

// failed marks an error as ErrFailed without a change of its text.
func failed(err error) error { return &callError{err.Error(), ErrFailed} }

// callError is what a model reads of an error, and of which kind it is.
type callError struct {
	text string
	kind error // ErrTimeout, ErrFailed or nil
}

func (e *callError) Error() string { return e.text }
func (e *callError) Unwrap() error { return e.kind }

// Limited wraps a tool so that a call ends within its time, says no more than it may, repeats no secret,
// and a panic in it is an error of this one call.
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

// redact is s as valid UTF-8 without secrets.
func redact(s string, secrets []string) string {
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[redacted]")
		}
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Truncate cuts valid UTF-8 to at most max bytes, at the start of a character, and says how much is
// missing. max 0 leaves it whole. The note comes on top of max.
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
