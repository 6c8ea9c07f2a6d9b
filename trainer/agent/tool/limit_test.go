package tool

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
)

// TestLimitedCalls: calls of a conversation beyond its limit are refused. Other callers do not count.
func TestLimitedCalls(t *testing.T) {
	echo := Limited(Func("echo", "", "x", "", func(_ context.Context, s string) (string, error) { return s, nil }), Limits{Calls: 2})
	for call, want := range []string{"hi", "hi", "error: echo was called 2 times, and no more calls are allowed: go on with what you know"} {
		out, err := echo.Call(WithOrigin(t.Context(), Origin{Call: call}), tooltest.Arg(t, "x", "hi"))
		if err != nil {
			out = "error: " + err.Error()
		}
		if out != want || errors.Is(err, errRefused) != (call == 2) {
			t.Errorf("call %d: got %q, want %q", call, out, want)
		}
	}
	if got := tooltest.CallText(t, echo, "x", "hi"); got != "hi" {
		t.Errorf("a call without a conversation: got %q", got)
	}
}

func TestLimitedOutput(t *testing.T) {
	said := strings.Repeat("é", 10)
	echo := Func("echo", "", "x", "", func(_ context.Context, s string) (string, error) { return s, nil })
	got := tooltest.CallText(t, Limited(echo, Limits{Bytes: 5}), "x", said)
	if want := "éé\n[16 more bytes not shown]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFuncWrongArguments(t *testing.T) {
	echo := Func("echo", "", "x", "", func(_ context.Context, s string) (string, error) { return s, nil })
	for _, args := range []string{`[]`, `{}`, `{"x":1}`, `{"x":null}`, `{"X":"folded"}`, `{`, ``} {
		if out, err := echo.Call(t.Context(), []byte(args)); err == nil {
			t.Errorf("wrong arguments %s: got %q, want an error", args, out)
		}
	}
}

func TestNamed(t *testing.T) {
	sums := WithCallPolicy(Named(Calculator(), "sums"), CallPolicy{})
	if sums.Name() != "sums" || tooltest.CallText(t, sums, "expression", "1+1") != "2" {
		t.Errorf("got name %s", sums.Name())
	}
}
