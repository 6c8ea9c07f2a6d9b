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
		ctx, cancel = context.WithTimeoutCause(ctx, t.limits.Timeout, errTimeout)
		defer cancel()
	}
	defer func() {
		if p := recover(); p != nil {
			out, err = "", fmt.Errorf("%s crashed: %v", t.Name(), p)
		}
		if err != nil && errors.Is(context.Cause(ctx), errTimeout) {
			err = fmt.Errorf("%s took longer than %v", t.Name(), t.limits.Timeout)
		}
		if err != nil {
			out, err = "", errors.New(t.presentable(err.Error()))
		}
		out = t.presentable(out)
	}()
	return t.Tool.Call(ctx, args)
}

var errTimeout = errors.New("the time of the call is over")

func (t limited) presentable(s string) string {
	for _, secret := range t.limits.Secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[redacted]")
		}
	}
	return Truncate(strings.ToValidUTF8(s, "\uFFFD"), t.limits.Bytes)
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
