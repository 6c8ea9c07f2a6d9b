package tool

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
)

// TestMeter: calls, errors, crashes, time-outs and refusals are counted separately, by the
// tool's name. A call that the end of its conversation cancelled does not count.
func TestMeter(t *testing.T) {
	var m Meter
	moody := m.Counted(Limited(WithCallPolicy(Named(Func("moody", "", "x", "", func(ctx context.Context, mood string) (string, error) {
		switch mood {
		case "bad":
			return "", errors.New("no such page")
		case "mad":
			panic("boom")
		case "slow":
			<-ctx.Done()
			return "", ctx.Err()
		}
		return "fine", nil
	}), "web"), CallPolicy{Timeout: time.Millisecond}), Limits{Calls: 10}))
	for _, mood := range []string{"good", "bad", "good", "mad", "slow", "bad"} {
		tooltest.CallText(t, moody, "x", mood)
	}
	if _, err := moody.Call(t.Context(), []byte("{}")); err == nil {
		t.Error("a call without its argument was accepted")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := moody.Call(over, tooltest.Arg(t, "x", "slow")); err == nil {
		t.Error("a call after the end of its conversation was answered")
	}
	wall, done := context.WithTimeout(t.Context(), time.Microsecond)
	defer done()
	<-wall.Done()
	if _, err := moody.Call(wall, tooltest.Arg(t, "x", "slow")); err == nil {
		t.Error("a call at the end of its conversation's time was answered")
	}
	full := WithOrigin(t.Context(), Origin{Call: 10})
	if _, err := moody.Call(full, tooltest.Arg(t, "x", "good")); !errors.Is(err, errRefused) {
		t.Errorf("the eleventh call: got error %v, want errRefused", err)
	}
	m.Retried("web")
	for range 100 {
		m.Lost("web: gone")
	}
	usage, lost := m.Take()
	if len(lost) == 0 || len(lost) > 10 || lost[0] != "web: gone" {
		t.Errorf("got lost servers %q, want 1 to 10 entries", lost)
	}
	got := usage["web"]
	if got.Time < time.Millisecond {
		t.Errorf("got a time of %v, want a millisecond or more", got.Time)
	}
	got.Time = 0
	want := Usage{Calls: 9, Refused: 1, Retries: 1, Errors: 4, Failures: 1, Timeouts: 2, Example: "context deadline exceeded"}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if again, lost := m.Take(); len(again) != 0 || len(lost) != 0 {
		t.Errorf("the second Take: got %+v and %q, want nothing", again, lost)
	}
}
