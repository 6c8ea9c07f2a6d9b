package store

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestStopThatIsNotAnnounced: a worker that missed the announcement of a stop notices the stop when it renews its lease.
func TestStopThatIsNotAnnounced(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, _ := pair(t, b, Options{Lease: time.Second})
		must(t, b.raw.HSet(t.Context(), "mgrpo:{test}:stop", "agent", "help", "reason", "x", "kind", "rewind").Err())
		<-boss.Context().Done()
		if err := context.Cause(boss.Context()); !EndsRoundOnly(err) {
			t.Errorf("the member's context ended with %v, want a rewind", err)
		}
		must(t, b.raw.Del(t.Context(), "mgrpo:{test}:stop").Err())
	})
}

// TestOnlyTheLostCount: if a process loses its place and takes it again, the invocations that
// it had claimed do not count a lost worker. They do if another process takes the place.
func TestOnlyTheLostCount(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{process: "the same"}
		boss, err := b.open(t, Options{}).Join(t.Context(), "boss", team, ignore)
		must(t, err)
		help, err := b.open(t, o).Join(t.Context(), "help", team, ignore)
		must(t, err)
		start(t, boss, help)
		for i, next := range []struct {
			process string
			lost    string
		}{{"the same", ""}, {"another", "1"}} {
			must(t, boss.Invocations.Submit(t.Context(), call(0)))
			_, err := claimOne(t.Context(), help, TrainPhase(0))
			must(t, err)
			killWorker(t, b, help)
			help, err = b.open(t, Options{process: next.process}).Join(t.Context(), "help", team, ignore)
			must(t, err)
			if got := b.raw.HGet(t.Context(), "mgrpo:{test}:lost:step-0", call(0).ID()).Val(); got != next.lost {
				t.Errorf("takeover %d: the invocation counts %q lost workers, want %q", i, got, next.lost)
			}
		}
	})
}

// TestLossesAreTrimmed: the counts of workers lost in a step are deleted once a checkpoint
// contains the step, also if the next round did not begin the step again.
func TestLossesAreTrimmed(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		must(t, boss.Invocations.Submit(t.Context(), call(0)))
		_, err := claimOne(t.Context(), help, TrainPhase(0))
		must(t, err)
		killWorker(t, b, help)
		killWorker(t, b, boss)
		boss, _ = pair(t, b, Options{})
		keys := []string{"mgrpo:{test}:lost:step-0", "mgrpo:{test}:losses"}
		for _, key := range keys {
			if b.raw.Exists(t.Context(), key).Val() != 1 {
				t.Errorf("after the loss: key %s does not exist", key)
			}
		}
		must(t, boss.Phases.Begin(t.Context(), TrainPhase(1), Plan{Queries: []string{"q"}, Rollouts: 1}))
		must(t, boss.Checkpoints.Trim(t.Context(), 1))
		for _, key := range keys {
			if b.raw.Exists(t.Context(), key).Val() != 0 {
				t.Errorf("after Trim: key %s still exists", key)
			}
		}
	})
}

// TestManyAtOnce: a claim returns up to n available invocations in the order of their submission, without those that were given up.
func TestManyAtOnce(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{MaxDeliveries: 1}
		boss, help := pair(t, b, o)
		for i := range 5 {
			must(t, boss.Invocations.Submit(t.Context(), call(i)))
		}
		claim := func(n int, want ...int) {
			t.Helper()
			vs, err := help.Invocations.Claim(t.Context(), TrainPhase(0), n)
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
		must(t, help.Invocations.Complete(t.Context(), call(0), Result{Text: "ok"}))
		killWorker(t, b, help) // it had claimed 1 and not answered it
		help = join(t, b.open(t, o), "help")
		start(t, help)
		claim(3, 0, 2)
		claim(100, 3, 4)
		if r, err := boss.Invocations.Await(t.Context(), call(1)); err != nil || r.Failed == "" {
			t.Errorf("invocation 1, claimed by the lost worker: got %+v and error %v, want a failed result", r, err)
		}
		must(t, boss.Phases.End(t.Context(), TrainPhase(0)))
		if vs, err := help.Invocations.Claim(t.Context(), TrainPhase(0), 100); !errors.Is(err, ErrPhaseEnded) {
			t.Errorf("claim after the end of the phase: got %+v and error %v, want ErrPhaseEnded", vs, err)
		}
		if _, err := help.Invocations.Claim(t.Context(), TrainPhase(0), 0); err == nil {
			t.Error("a claim of 0 invocations: got no error")
		}
	})
}

// TestForsakenCommands: a command whose caller no longer waits is not sent.
func TestForsakenCommands(t *testing.T) {
	var b batches
	b.running = maxBatches // so that a new command waits
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.do(ctx, nil); !errors.Is(err, ctx.Err()) {
		t.Errorf("got error %v, want %v", err, ctx.Err())
	}
	if left := b.next(); left != nil {
		t.Errorf("%d commands would be sent, want 0", len(left))
	}
}
