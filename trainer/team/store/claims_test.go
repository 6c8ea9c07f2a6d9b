package store

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// A stop of which the announcement was lost is heard of when the lease is renewed.
func TestStopThatIsNotAnnounced(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, _ := pair(t, b, Options{Lease: time.Second})
		must(t, b.raw.HSet(t.Context(), "mgrpo:{test}:stop", "agent", "help", "reason", "x", "kind", "rewind").Err())
		<-boss.Context().Done()
		if err := context.Cause(boss.Context()); !Rewinds(err) {
			t.Errorf("got %v", err)
		}
		must(t, b.raw.Del(t.Context(), "mgrpo:{test}:stop").Err())
	})
}

// A worker whose place was lost, though it was not, takes it again with what it had in hand. That costs the
// invocation nothing; the worker's death does.
func TestOnlyTheLostCount(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{process: "the same"}
		boss, err := b.open(t, Options{}).Join(t.Context(), "boss", team, silent)
		must(t, err)
		help, err := b.open(t, o).Join(t.Context(), "help", team, silent)
		must(t, err)
		start(t, boss, help)
		for i, next := range []struct {
			process string
			lost    string
		}{{"the same", ""}, {"another", "1"}} {
			must(t, boss.Submit(t.Context(), call(0)))
			_, err := claimOne(t.Context(), help, Train(0))
			must(t, err)
			die(t, b, help)
			help, err = b.open(t, Options{process: next.process}).Join(t.Context(), "help", team, silent)
			must(t, err)
			if got := b.raw.HGet(t.Context(), "mgrpo:{test}:lost:step-0", call(0).ID()).Val(); got != next.lost {
				t.Errorf("%d: %q workers count as lost, want %q", i, got, next.lost)
			}
		}
	})
}

// Who was lost over an invocation is forgotten when a checkpoint holds what came of the step, also where the round
// after it did not begin the phase again.
func TestLossesAreTrimmed(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		must(t, boss.Submit(t.Context(), call(0)))
		_, err := claimOne(t.Context(), help, Train(0))
		must(t, err)
		die(t, b, help)
		die(t, b, boss)
		boss, _ = pair(t, b, Options{})
		keys := []string{"mgrpo:{test}:lost:step-0", "mgrpo:{test}:losses"}
		for _, key := range keys {
			if b.raw.Exists(t.Context(), key).Val() != 1 {
				t.Errorf("%s is not there", key)
			}
		}
		must(t, boss.Begin(t.Context(), Train(1), Plan{Queries: []string{"q"}, Rollouts: 1}))
		must(t, boss.Trim(t.Context(), 1))
		for _, key := range keys {
			if b.raw.Exists(t.Context(), key).Val() != 0 {
				t.Errorf("%s is left", key)
			}
		}
	})
}

// A claim takes what there is, in the order in which it was submitted and as many as were asked for. What is given up
// is not among them.
func TestManyAtOnce(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{MaxDeliveries: 1}
		boss, help := pair(t, b, o)
		for i := range 5 {
			must(t, boss.Submit(t.Context(), call(i)))
		}
		claim := func(n int, want ...int) {
			t.Helper()
			vs, err := help.Claim(t.Context(), Train(0), n)
			must(t, err)
			got := make([]int, len(vs))
			for i, v := range vs {
				got[i] = v.Rollout
			}
			if !slices.Equal(got, want) {
				t.Errorf("claimed %v, want %v", got, want)
			}
		}
		claim(2, 0, 1)
		must(t, help.Complete(t.Context(), call(0), Result{Text: "ok"}))
		die(t, b, help) // with 1 in hand
		help = join(t, b.open(t, o), "help")
		start(t, help)
		claim(3, 0, 2)
		claim(100, 3, 4)
		if r, err := boss.Await(t.Context(), call(1)); err != nil || r.Failed == "" {
			t.Errorf("what a worker was lost over was answered with %+v, %v", r, err)
		}
		must(t, boss.End(t.Context(), Train(0)))
		if vs, err := help.Claim(t.Context(), Train(0), 100); !errors.Is(err, ErrEnded) {
			t.Errorf("claimed %+v, %v", vs, err)
		}
		if _, err := help.Claim(t.Context(), Train(0), 0); err == nil {
			t.Error("a claim of nothing is possible")
		}
	})
}

// A command that nobody waits for any more is not sent.
func TestForsakenCommands(t *testing.T) {
	var b batches
	b.running = maxBatches // as if all batches were on their way
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.do(ctx, nil); !errors.Is(err, ctx.Err()) {
		t.Errorf("got %v", err)
	}
	if left := b.next(); left != nil {
		t.Errorf("%d are sent", len(left))
	}
}
