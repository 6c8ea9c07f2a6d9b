package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
)

// TestCachedFlood: a long answer is cut at a limit before it is stored, so that a replay returns the same text as the first call.
func TestCachedFlood(t *testing.T) {
	flood := Func("flood", "", "x", "", func(context.Context, string) (string, error) { return strings.Repeat("<", maxKept+1), nil })
	dir, want := t.TempDir(), strings.Repeat("<", maxKept)+"\n[1 more bytes not shown]"
	for _, replay := range []bool{false, true} {
		if out, err := Cached(flood, tooltest.Cache(t, dir, replay), "flood", nil).Call(t.Context(), tooltest.Arg(t, "x", "")); err != nil || out != want {
			t.Errorf("replay %v: got %d bytes, want %d; error %v", replay, len(out), len(want), err)
		}
	}
}

// TestCached: a replay returns a tool's recorded answers, including errors and their kinds, without calling the tool.
func TestCached(t *testing.T) {
	calls := 0
	moody := WithCallPolicy(Func("moody", "", "x", "", func(_ context.Context, mood string) (string, error) {
		calls++
		switch mood {
		case "bad":
			return "", errors.New("no such page")
		case "mad":
			panic("boom")
		case "slow":
			return "", &callError{"moody took longer than 1ms", ErrTimeout}
		}
		return fmt.Sprintf("%s %d", mood, calls), nil
	}), CallPolicy{})
	dir := t.TempDir()
	ask := func(replay bool) (said []string) {
		c := Cached(moody, tooltest.Cache(t, dir, replay), "moody", nil)
		for _, args := range []string{`{"x": "a"}`, `{"x": "bad"}`, `{"x": "mad"}`, `{"x": "slow"}`, `{"y": 1.50, "x": "b"}`, "{\"x\":\"b\",\n\"y\":1.50}", `{`} {
			out, err := c.Call(t.Context(), json.RawMessage(args))
			kind, _ := kindOf(err)
			said = append(said, fmt.Sprintf("%s|%v|%s", out, err, kind))
		}
		return said
	}
	first := ask(false)
	for i, want := range []string{"a 1|<nil>|", "|no such page|", "|moody crashed: boom|failed", "|moody took longer than 1ms|timeout", "b 5|<nil>|", "b 5|<nil>|", "|the arguments are not JSON: unexpected EOF|"} {
		if first[i] != want {
			t.Errorf("call %d: got %q, want %q", i, first[i], want)
		}
	}
	for _, replay := range []bool{false, true} {
		if got := ask(replay); fmt.Sprint(got) != fmt.Sprint(first) || calls != 5 {
			t.Errorf("replay %v: got %q after %d calls, want %q after 5", replay, got, calls, first)
		}
	}
	_, err := Cached(moody, tooltest.Cache(t, dir, true), "moody", nil).Call(t.Context(), tooltest.Arg(t, "x", "new"))
	if !errors.Is(err, recorded.ErrMissing) || calls != 5 {
		t.Errorf("a question that was not recorded: got error %v after %d calls, want ErrMissing after 5", err, calls)
	}
	if _, err := Cached(moody, tooltest.Cache(t, dir, true), "another", nil).Call(t.Context(), tooltest.Arg(t, "x", "a")); !errors.Is(err, recorded.ErrMissing) {
		t.Errorf("another service: got error %v, want ErrMissing", err)
	}
}

// TestCachedKeepsNot: the cache does not store calls that the end of the conversation
// cancelled, and calls that are refused without asking the tool.
func TestCachedKeepsNot(t *testing.T) {
	dir := t.TempDir()
	slow := Func("slow", "", "x", "", func(ctx context.Context, _ string) (string, error) { return "", ctx.Err() })
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Cached(slow, tooltest.Cache(t, dir, false), "slow", nil).Call(over, tooltest.Arg(t, "x", "")); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: got error %v", err)
	}
	refuse := func(json.RawMessage) error { return errors.New("not on the list") }
	if _, err := Cached(slow, tooltest.Cache(t, dir, true), "slow", refuse).Call(t.Context(), tooltest.Arg(t, "x", "")); err == nil || err.Error() != "not on the list" {
		t.Errorf("a refused call: got error %v", err)
	}
	if _, err := Cached(slow, tooltest.Cache(t, dir, true), "slow", nil).Call(t.Context(), tooltest.Arg(t, "x", "")); !errors.Is(err, recorded.ErrMissing) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a replay of both: got error %v, want ErrMissing with the folder", err)
	}
}
