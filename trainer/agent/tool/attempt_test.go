package tool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

func TestCallPolicyTimeout(t *testing.T) {
	slow := Func("slow", "", "x", "", func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
	got := tooltest.CallText(t, WithCallPolicy(slow, CallPolicy{Timeout: time.Millisecond}), "x", "")
	if want := "error: slow took longer than 1ms"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCallPolicyCallerCancels(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	slow := Func("slow", "", "x", "", func(ctx context.Context, _ string) (string, error) { return "", ctx.Err() })
	_, err := WithCallPolicy(slow, CallPolicy{Timeout: time.Hour}).Call(ctx, tooltest.Arg(t, "x", ""))
	if err == nil || strings.Contains(err.Error(), "longer") {
		t.Errorf("a cancelled call: got error %v, want no time-out", err)
	}
}

func TestCallPolicyRedacts(t *testing.T) {
	how := CallPolicy{Secrets: []string{"sk-123", ""}}
	leak := Func("leak", "", "x", "", func(_ context.Context, s string) (string, error) {
		if s == "error" {
			return "", errors.New("GET http://host/?key=sk-123: 403")
		}
		return "the key is sk-123", nil
	})
	for _, mode := range []string{"error", "output"} {
		got := tooltest.CallText(t, WithCallPolicy(leak, how), "x", mode)
		if strings.Contains(got, "sk-123") || !strings.Contains(got, "[redacted]") {
			t.Errorf("%s: %q", mode, got)
		}
	}
}

func TestCallPolicyPanicIsAnError(t *testing.T) {
	crash := Func("crash", "", "x", "", func(context.Context, string) (string, error) { panic("boom") })
	if got, want := tooltest.CallText(t, WithCallPolicy(crash, CallPolicy{}), "x", ""), "error: crash crashed: boom"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// patient returns a tool with attempts whose waits take no time, and the list of its waits.
func patient(t Tool, how CallPolicy) (*retryingTool, *[]time.Duration) {
	var waits []time.Duration
	w := WithCallPolicy(t, how).(*retryingTool)
	w.wait = func(ctx context.Context, d time.Duration) error {
		waits = append(waits, d)
		return ctx.Err()
	}
	return w, &waits
}

// TestCallPolicyRetries: a call with a temporary error is repeated up to the limit. A call with a permanent error is not.
func TestCallPolicyRetries(t *testing.T) {
	busy := &retry.Transient{Err: Failed(errors.New("busy"))}
	for name, c := range map[string]struct {
		fails  []error
		want   string
		calls  int
		failed bool
	}{
		"works":                {nil, "fine", 1, false},
		"busy twice":           {[]error{busy, busy}, "fine", 3, false},
		"busy too long":        {[]error{busy, busy, busy}, "error: after 3 attempts: busy", 3, true},
		"an error of the call": {[]error{errors.New("no such page")}, "error: no such page", 1, false},
		"a failure":            {[]error{Failed(errors.New("no key"))}, "error: no key", 1, true},
		"a long rest":          {[]error{&retry.Transient{Err: Failed(errors.New("busy")), After: time.Hour}}, "error: the server asks to wait 1h0m0s, but the longest wait is 30s: busy", 1, true},
	} {
		calls, retried := 0, 0
		moody := Func("moody", "", "x", "", func(context.Context, string) (string, error) {
			if calls++; calls <= len(c.fails) {
				return "", c.fails[calls-1]
			}
			return "fine", nil
		})
		w, waits := patient(moody, CallPolicy{Retries: 2, Retried: func() { retried++ }})
		out, err := w.Call(t.Context(), tooltest.Arg(t, "x", ""))
		if err != nil {
			out = "error: " + err.Error()
		}
		if out != c.want || calls != c.calls || retried != c.calls-1 || len(*waits) != retried || errors.Is(err, ErrFailed) != c.failed {
			t.Errorf("%s: got %q after %d calls, %d retries and waits %v; want %q after %d calls", name, out, calls, retried, *waits, c.want, c.calls)
		}
	}
}

// TestCallPolicyTimeoutRetries: a call that timed out is repeated, up to the limit.
func TestCallPolicyTimeoutRetries(t *testing.T) {
	var calls atomic.Int32
	slow := Func("slow", "", "x", "", func(ctx context.Context, _ string) (string, error) {
		if calls.Add(1) < 3 {
			<-ctx.Done()
			return "", ctx.Err()
		}
		return "at last", nil
	})
	w, _ := patient(slow, CallPolicy{Retries: 2, Timeout: 20 * time.Millisecond})
	if got := tooltest.CallText(t, w, "x", ""); got != "at last" {
		t.Errorf("got %q, want at last", got)
	}
	calls.Store(-10)
	w.policy.Retries = 1
	if _, err := w.Call(t.Context(), tooltest.Arg(t, "x", "")); !errors.Is(err, ErrTimeout) || err.Error() != "after 2 attempts: slow took longer than 20ms" {
		t.Errorf("got error %v, want a time-out after 2 attempts", err)
	}
}

// TestCallPolicyParallel: the number of concurrent attempts is limited, and a waiting caller can be cancelled.
func TestCallPolicyParallel(t *testing.T) {
	var now, most atomic.Int32
	begun, end := make(chan struct{}, 10), make(chan struct{})
	busy := WithCallPolicy(Func("busy", "", "x", "", func(context.Context, string) (string, error) {
		for n := now.Add(1); ; {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		defer now.Add(-1)
		begun <- struct{}{}
		<-end
		return "", nil
	}), CallPolicy{Gate: NewGate(3, 0)}).(*retryingTool)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { tooltest.CallText(t, busy, "x", "") })
	}
	for range 3 {
		<-begun
	}
	if taken := len(busy.policy.Gate.slots); taken != 3 {
		t.Errorf("three attempts have taken %d slots, want 3", taken)
	}
	hasty, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := busy.Call(hasty, tooltest.Arg(t, "x", "")); !strings.Contains(fmt.Sprint(err), context.Canceled.Error()) {
		t.Errorf("a cancelled caller: got error %v, want %v", err, context.Canceled)
	}
	close(end)
	wg.Wait()
	if m := most.Load(); m != 3 {
		t.Errorf("got %d concurrent attempts, want 3", m)
	}
}

// TestCallPolicyRate: attempts begin at the allowed rate, repeated ones included. Tools with a common gate share the rate.
func TestCallPolicyRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, began := NewGate(0, 4), time.Now()
		begins := func(ctx context.Context, want time.Duration) {
			t.Helper()
			if err := g.turn(ctx, retry.Sleep); err != nil || time.Since(began) != want {
				t.Errorf("an attempt began after %v, want %v; error %v", time.Since(began), want, err)
			}
		}
		begins(t.Context(), 0)
		begins(t.Context(), 250*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		begins(t.Context(), 500*time.Millisecond)
		time.Sleep(time.Hour)
		begins(t.Context(), time.Hour+500*time.Millisecond)
		// Callers that give up do not use up turns.
		hasty, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var given sync.WaitGroup
		for range 1000 {
			given.Go(func() {
				if err := g.turn(hasty, retry.Sleep); err == nil {
					t.Error("an attempt began too early")
				}
			})
		}
		given.Wait()
		begins(t.Context(), time.Hour+750*time.Millisecond)
	})
	fine := Func("fine", "", "x", "", func(context.Context, string) (string, error) { return "", nil })
	gate := NewGate(0, 0.001) // shared by two tools of a server
	paced, waits := patient(fine, CallPolicy{Gate: gate})
	other, more := patient(fine, CallPolicy{Gate: gate})
	for range 2 {
		tooltest.CallText(t, paced, "x", "")
	}
	tooltest.CallText(t, other, "x", "")
	*waits = append(*waits, *more...)
	if n := len(*waits); n != 2 {
		t.Errorf("%d of three calls waited, want 2: %v", n, *waits)
	}
}
