package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// statusOf reads the status of the run that a store is connected to.
func statusOf(t *testing.T, s *Store) (*Status, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	return ReadStatus(ctx, s.opt)
}

// mustStatus reads the status and checks what the run waits for.
func mustStatus(t *testing.T, s *Store, when string, waits ...string) *Status {
	t.Helper()
	got, err := statusOf(t, s)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if !slices.Equal(got.WaitsFor(), waits) {
		t.Errorf("%s: the run waits for %q, want %q", when, got.WaitsFor(), waits)
	}
	return got
}

// begin starts members that have all joined, and waits until all are ready for the first phase.
func begin(t *testing.T, members ...*Member) {
	t.Helper()
	start(t, members...)
	var g errgroup.Group
	for _, m := range members {
		g.Go(func() error { return m.Round.Barrier(t.Context(), Ready, func([]string) {}) })
	}
	must(t, g.Wait())
}

// TestStatus reads the status at each point of a training step and a checkpoint: what the run waits for, and each agent's state.
func TestStatus(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		s := b.open(t, Options{})
		_, err := statusOf(t, s)
		var empty *EmptyError
		if !errors.As(err, &empty) {
			t.Fatalf("an empty store: got error %v, want an EmptyError", err)
		}
		boss := join(t, s, "boss")
		st := mustStatus(t, s, "one worker has joined", "help: a worker", "boss: its worker to be ready to begin")
		if a := st.Agents; len(a) != 2 || !a[0].Alive || a[0].LeaseLeft <= 0 || a[0].Epoch < 1 || a[1].Alive || st.Round != 1 || st.Nonce != boss.Round.Nonce() {
			t.Errorf("one worker has joined: got %+v, want only boss alive, in round 1", st)
		}
		help := join(t, b.open(t, Options{}), "help")
		begin(t, boss, help)
		mustStatus(t, s, "both are ready")

		ctx := t.Context()
		must(t, boss.Phases.Begin(ctx, TrainPhase(0), Plan{Queries: []string{"q", "r"}, Rollouts: 2}))
		mustStatus(t, s, "begun", "boss: rollouts of step-0, 0 of 4 are there")
		must(t, boss.Invocations.Submit(ctx, call(0)))
		must(t, boss.Invocations.Submit(ctx, call(1)))
		v, err := claimOne(ctx, help, TrainPhase(0))
		must(t, err)
		st = mustStatus(t, s, "claimed", "boss: rollouts of step-0, 0 of 4 are there; calls without an answer: 2")
		if a := st.Agents[1]; a.ClaimedCount != 1 || len(a.Claimed) != 1 || a.Claimed[0].ID != v.ID() || a.Claimed[0].Phase != "step-0" || a.Claimed[0].Delivery != 1 || a.Claimed[0].Age < 0 {
			t.Errorf("claimed: got %+v, want invocation %s claimed", a, v.ID())
		}
		must(t, help.Invocations.Complete(ctx, v, Result{Text: "x"}))
		for _, q := range []string{"q", "r"} {
			for k := range 2 {
				must(t, boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: q, Rollout: k}))
			}
		}
		must(t, boss.Phases.End(ctx, TrainPhase(0)))
		must(t, boss.Phases.PublishTrajectories(ctx, TrainPhase(0), []string{"a"}))
		mustStatus(t, s, "played", "help: the list of its trajectories of step-0")
		must(t, help.Phases.PublishTrajectories(ctx, TrainPhase(0), nil))
		mustStatus(t, s, "agreed", "boss, help: version 1")
		must(t, boss.Versions.Publish(ctx, 1))
		st = mustStatus(t, s, "one agent has learned", "help: version 1")
		if a := st.Agents; *a[0].Version != 1 || a[0].Lag != 0 || *a[1].Version != 0 || a[1].Lag != 1 {
			t.Errorf("one agent has learned: got %+v, want versions 1 and 0, lags 0 and 1", a)
		}
		must(t, help.Versions.Publish(ctx, 1))
		must(t, boss.Checkpoints.PublishPart(ctx, 1, Part{}))
		mustStatus(t, s, "one part of the checkpoint", "help: its part of checkpoint-1")
		must(t, help.Checkpoints.PublishPart(ctx, 1, Part{}))
		mustStatus(t, s, "both parts of the checkpoint", "boss, help: its manifest of checkpoint-1")
		digest := strings.Repeat("ab", 32)
		must(t, help.Checkpoints.PublishManifest(ctx, 1, digest))
		mustStatus(t, s, "one manifest of the checkpoint", "boss: its manifest of checkpoint-1")
		must(t, boss.Checkpoints.PublishManifest(ctx, 1, digest))
		mustStatus(t, s, "between two phases")
		must(t, help.Checkpoints.PublishManifest(ctx, 4, digest)) // a worker that resumes from a checkpoint does this
		mustStatus(t, s, "a manifest without parts", "boss: its manifest of checkpoint-4")
		must(t, boss.Checkpoints.PublishManifest(ctx, 4, digest))

		must(t, help.Round.Stop(ctx, Failure, "out of memory"))
		st = mustStatus(t, s, "stopped", "boss, help: its worker to leave the stopped round")
		if st.Stop == nil || *st.Stop != (StopStatus{"help", "out of memory", Failure}) {
			t.Errorf("stopped: got %+v, want help's failure, out of memory", st.Stop)
		}
		if _, err := json.Marshal(st); err != nil {
			t.Error(err)
		}
	})
}

// TestStatusOfASilentWorker: a killed worker keeps its place until its lease expires. Before
// that, the status shows how long the lease has not been renewed.
func TestStatusOfASilentWorker(t *testing.T) {
	b := embeddedBackend(t)
	boss := join(t, b.open(t, Options{}), "boss")
	for lease, missing := range map[time.Duration]bool{
		// Far longer than the lease that the worker set, so the reader concludes that it was not renewed for most of an hour.
		time.Hour: true,
		0:         false,
	} {
		o := boss.place.opt
		o.Lease = lease
		st, err := ReadStatus(t.Context(), o)
		must(t, err)
		if a := st.Agents[0]; !a.Alive || a.Missing() != missing || missing && a.Silent < 1800 {
			t.Errorf("read with a lease of %v: got %+v, want missing: %v", lease, a, missing)
		}
	}
}

// TestStatusOfAStop: a plan without queries ends the run, so the run waits for nothing. The status names the agent that asked for the stop.
func TestStatusOfAStop(t *testing.T) {
	b := embeddedBackend(t)
	boss, help := pair(t, b, Options{})
	begin(t, boss, help)
	must(t, help.Round.AskStop(t.Context()))
	must(t, boss.Phases.Begin(t.Context(), TrainPhase(0), Plan{Rollouts: 1}))
	if st := mustStatus(t, boss.place.Store, "asked to stop"); st.Asked != "help" {
		t.Errorf("the stop was asked for by %q, want help", st.Asked)
	}
}

// TestStatusOfSpoiltKeys: a value that no worker can have written is an error that names its key.
func TestStatusOfSpoiltKeys(t *testing.T) {
	for key, spoil := range map[string][]any{
		"meta":          {"HSET", "meta", "agreement", `{"protocol":"x"}`},
		"meta round":    {"HSET", "meta", "round", "-1"},
		"versions boss": {"HSET", "versions", "boss", "1e9"},
		"epochs help":   {"HSET", "epochs", "help", strings.Repeat("9", 100)},
		"phases":        {"ZADD", "phases", 0, "step-00"},
		"claimed:help":  {"HSET", "claimed:help", "step-0", "x"},
		"lost:step-0":   {"HSET", "lost:step-0", "q-0/0/help/0", "many"},
		"plan:step-0":   {"HSET", "plan:step-0", "plan", "[]"},
		"another type":  {"LPUSH", "versions", "x"},
	} {
		t.Run(key, func(t *testing.T) {
			b := embeddedBackend(t)
			boss, help := pair(t, b, Options{})
			begin(t, boss, help)
			must(t, boss.Phases.Begin(t.Context(), TrainPhase(0), Plan{Queries: []string{"q"}, Rollouts: 1}))
			must(t, boss.Invocations.Submit(t.Context(), call(0)))
			_, err := claimOne(t.Context(), help, TrainPhase(0))
			must(t, err)
			if spoil[0] == "LPUSH" {
				must(t, b.raw.Del(t.Context(), boss.place.key(spoil[1].(string))).Err())
			}
			spoil[1] = boss.place.key(spoil[1].(string))
			must(t, b.raw.Do(t.Context(), spoil...).Err())
			_, err = statusOf(t, boss.place.Store)
			var malformed *MalformedError
			if spoil[0] == "LPUSH" { // the server refuses to read a key of another type
				if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
					t.Errorf("got error %v, want WRONGTYPE", err)
				}
			} else if !errors.As(err, &malformed) || !strings.Contains(err.Error(), key) {
				t.Errorf("got error %v, want a MalformedError that names %s", err, key)
			}
		})
	}
}

// TestStatusOfALongRun: if a run has more phases than a status shows, the status shows the newest.
func TestStatusOfALongRun(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		begin(t, boss, help)
		const steps = 2*statusPhases + 5
		old := make([]any, 0, 2*steps)
		for n := range steps {
			old = append(old, n, TrainPhase(int64(n)).String())
		}
		must(t, b.raw.Do(t.Context(), append([]any{"ZADD", boss.place.key("phases")}, old...)...).Err())
		names, err := phaseNames(t.Context(), boss.place.Store)
		if err != nil || len(names) != statusPhases || names[len(names)-1] != TrainPhase(steps-1).String() || names[0] != TrainPhase(steps-statusPhases).String() {
			t.Errorf("got %d phases %v, want the newest %d; error %v", len(names), names, statusPhases, err)
		}
	})
}

// TestStatusWhileOthersWrite: the status can be read, and is consistent, while workers write and trim.
func TestStatusWhileOthersWrite(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		begin(t, boss, help)
		var g errgroup.Group
		done := make(chan struct{})
		looks := 0
		g.Go(func() error {
			for {
				st, err := statusOf(t, boss.place.Store)
				if err != nil {
					return err
				}
				for _, p := range st.Phases {
					if p.Outcomes > 2 || p.Rollouts > 2 {
						return fmt.Errorf("%+v", p)
					}
				}
				st.WaitsFor()
				looks++
				select {
				case <-done:
					return nil
				default:
				}
			}
		})
		ctx := t.Context()
		for n := range int64(20) {
			p := TrainPhase(n)
			must(t, boss.Phases.Begin(ctx, p, Plan{Queries: []string{"q"}, Rollouts: 2}))
			for k := range 2 {
				must(t, boss.Phases.PublishOutcome(ctx, p, Outcome{Query: "q", Rollout: k}))
			}
			must(t, boss.Phases.End(ctx, p))
			for _, m := range []*Member{boss, help} {
				must(t, m.Phases.PublishTrajectories(ctx, p, nil))
				must(t, m.Versions.Publish(ctx, n+1))
			}
			must(t, boss.Checkpoints.Trim(ctx, n))
		}
		close(done)
		must(t, g.Wait())
		if looks == 0 {
			t.Error("the status was never read during the run")
		}
	})
}

// FuzzParsePhase: a phase that is parsed from a name has this name.
func FuzzParsePhase(f *testing.F) {
	for _, name := range []string{"step-0", "eval-12", "checkpoint-9223372036854775807", "checkpoint-3", "step-01", "step--1", "step-+1", "stop-1", "step", "-", "step-1 ", "step-99999999999999999999"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		p, err := parsePhase(name)
		if err == nil && (p.String() != name || p.Step < 0) {
			t.Errorf("%q is parsed as %v", name, p)
		}
	})
}
