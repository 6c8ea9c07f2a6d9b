package tool

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestLimitedTimeout(t *testing.T) {
	slow := Func("slow", "", "x", "", func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
	got := callText(t, Limited(slow, Limits{Timeout: time.Millisecond}), "x", "")
	if want := "error: slow took longer than 1ms"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLimitedCallerCancels(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	slow := Func("slow", "", "x", "", func(ctx context.Context, _ string) (string, error) { return "", ctx.Err() })
	_, err := Limited(slow, Limits{Timeout: time.Hour}).Call(ctx, arg(t, "x", ""))
	if err == nil || strings.Contains(err.Error(), "longer") {
		t.Errorf("a cancelled call is not a slow one: %v", err)
	}
}

func TestLimitedOutput(t *testing.T) {
	said := strings.Repeat("é", 10)
	echo := Func("echo", "", "x", "", func(_ context.Context, s string) (string, error) { return s, nil })
	got := callText(t, Limited(echo, Limits{Bytes: 5}), "x", said)
	if want := "éé\n[16 more bytes not shown]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLimitedRedacts(t *testing.T) {
	limits := Limits{Secrets: []string{"sk-123", ""}}
	leak := Func("leak", "", "x", "", func(_ context.Context, s string) (string, error) {
		if s == "error" {
			return "", errors.New("GET http://host/?key=sk-123: 403")
		}
		return "the key is sk-123", nil
	})
	for _, mode := range []string{"error", "output"} {
		got := callText(t, Limited(leak, limits), "x", mode)
		if strings.Contains(got, "sk-123") || !strings.Contains(got, "[redacted]") {
			t.Errorf("%s: %q", mode, got)
		}
	}
}

func TestLimitedPanicIsAnError(t *testing.T) {
	crash := Func("crash", "", "x", "", func(context.Context, string) (string, error) { panic("boom") })
	if got, want := callText(t, Limited(crash, Limits{}), "x", ""), "error: crash crashed: boom"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFuncWrongArguments(t *testing.T) {
	echo := Func("echo", "", "x", "", func(_ context.Context, s string) (string, error) { return s, nil })
	for _, args := range []string{`[]`, `{}`, `{"x":1}`, `{"x":null}`, `{"X":"folded"}`, `{`, ``} {
		if out, err := echo.Call(t.Context(), []byte(args)); err == nil {
			t.Errorf("%s: accepted as %q", args, out)
		}
	}
}

func TestNamed(t *testing.T) {
	sums := Limited(Named(Calculator(), "sums"), Limits{})
	if sums.Name() != "sums" || callText(t, sums, "expression", "1+1") != "2" {
		t.Errorf("%s", sums.Name())
	}
}
