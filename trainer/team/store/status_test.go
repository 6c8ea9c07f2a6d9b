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
	return ReadStatus(ctx, s.opts)
}

// mustStatus wants a status that waits for exactly what is given.
func mustStatus(t *testing.T, s *Store, when string, waits ...string) *Status {
	t.Helper()
	got, err := statusOf(t, s)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if !slices.Equal(got.WaitsFor(), waits) {
		t.Errorf("%s: it waits for %q, want %q", when, got.WaitsFor(), waits)
	}
	return got
}

// begin brings members that have all joined to where phases begin.
func begin(t *testing.T, members ...*Member) {
	t.Helper()
	start(t, members...)
	var g errgroup.Group
	for _, m := range members {
		g.Go(func() error { return m.Meet(t.Context(), Ready, func([]string) {}) })
	}
	must(t, g.Wait())
}

// A step as somebody sees it who looks at the store.
func TestStatus(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		s := b.open(t, Options{})
		_, err := statusOf(t, s)
		var empty *EmptyError
		if !errors.As(err, &empty) {
			t.Fatalf("an empty store: %v", err)
		}
		boss := join(t, s, "boss")
		st := mustStatus(t, s, "one is there", "help: a worker", "boss: its worker to be ready to begin")
		if a := st.Agents; len(a) != 2 || !a[0].Alive || a[0].LeaseLeft <= 0 || a[0].Epoch < 1 || a[1].Alive || st.Round != 1 || st.Nonce != boss.Nonce() {
			t.Errorf("one is there: %+v", st)
		}
		help := join(t, b.open(t, Options{}), "help")
		begin(t, boss, help)
		mustStatus(t, s, "both are ready")

		ctx := t.Context()
		must(t, boss.Begin(ctx, Train(0), Plan{Queries: []string{"q", "r"}, Rollouts: 2}))
		mustStatus(t, s, "begun", "boss: rollouts of step-0, 0 of 4 are there")
		must(t, boss.Submit(ctx, call(0)))
		must(t, boss.Submit(ctx, call(1)))
		v, err := claimOne(ctx, help, Train(0))
		must(t, err)
		st = mustStatus(t, s, "claimed", "boss: rollouts of step-0, 0 of 4 are there; calls without an answer: 2")
		if a := st.Agents[1]; a.InHandAll != 1 || len(a.InHand) != 1 || a.InHand[0].ID != v.ID() || a.InHand[0].Phase != "step-0" || a.InHand[0].Delivery != 1 || a.InHand[0].Age < 0 {
			t.Errorf("in hand: %+v", a)
		}
		must(t, help.Complete(ctx, v, Result{Text: "x"}))
		for _, q := range []string{"q", "r"} {
			for k := range 2 {
				must(t, boss.PublishOutcome(ctx, Train(0), Outcome{Query: q, Rollout: k}))
			}
		}
		must(t, boss.End(ctx, Train(0)))
		must(t, boss.PublishTrajectories(ctx, Train(0), []string{"a"}))
		mustStatus(t, s, "played", "help: the list of its trajectories of step-0")
		must(t, help.PublishTrajectories(ctx, Train(0), nil))
		mustStatus(t, s, "agreed", "boss, help: version 1")
		must(t, boss.PublishVersion(ctx, 1))
		st = mustStatus(t, s, "one has learned", "help: version 1")
		if a := st.Agents; *a[0].Version != 1 || a[0].Lag != 0 || *a[1].Version != 0 || a[1].Lag != 1 {
			t.Errorf("one has learned: %+v", a)
		}
		must(t, help.PublishVersion(ctx, 1))
		must(t, boss.PublishPart(ctx, 1, Part{}))
		mustStatus(t, s, "a checkpoint", "help: its part of checkpoint-1")
		must(t, help.PublishPart(ctx, 1, Part{}))
		mustStatus(t, s, "its manifest", "boss, help: its manifest of checkpoint-1")
		digest := strings.Repeat("ab", 32)
		must(t, help.PublishManifest(ctx, 1, digest))
		mustStatus(t, s, "one has it", "boss: its manifest of checkpoint-1")
		must(t, boss.PublishManifest(ctx, 1, digest))
		mustStatus(t, s, "between two phases")
		must(t, help.PublishManifest(ctx, 4, digest)) // as who goes on from a checkpoint does
		mustStatus(t, s, "a manifest without parts", "boss: its manifest of checkpoint-4")
		must(t, boss.PublishManifest(ctx, 4, digest))

		must(t, help.Fail(ctx, "out of memory"))
		st = mustStatus(t, s, "stopped", "boss, help: its worker to leave the stopped round")
		if st.Stop == nil || *st.Stop != (StopStatus{"help", "out of memory", Failure}) {
			t.Errorf("stopped: %+v", st.Stop)
		}
		if _, err := json.Marshal(st); err != nil {
			t.Error(err)
		}
	})
}

// A worker that was killed has its place until its lease expires: what shows it before is that its lease is not renewed.
func TestStatusOfASilentWorker(t *testing.T) {
	b := embeddedBackend(t)
	boss := join(t, b.open(t, Options{}), "boss")
	for lease, missing := range map[time.Duration]bool{
		time.Hour: true, // the worker was last seen three quarters of an hour ago, as far as the reader knows
		0:         false,
	} {
		o := boss.opts
		o.Lease = lease
		st, err := ReadStatus(t.Context(), o)
		must(t, err)
		if a := st.Agents[0]; !a.Alive || a.Missing() != missing || missing && a.Silent < 1800 {
			t.Errorf("a lease of %v: %+v", lease, a)
		}
	}
}

// A plan without queries ends the run: nothing is waited for.
func TestStatusOfAStop(t *testing.T) {
	b := embeddedBackend(t)
	boss, help := pair(t, b, Options{})
	begin(t, boss, help)
	must(t, help.AskStop(t.Context()))
	must(t, boss.Begin(t.Context(), Train(0), Plan{Rollouts: 1}))
	if st := mustStatus(t, boss.Store, "asked to stop"); st.Asked != "help" {
		t.Errorf("asked by %q", st.Asked)
	}
}

// What cannot have been written by a worker is an error that names its key, not a crash.
func TestStatusOfSpoiltKeys(t *testing.T) {
	for key, spoil := range map[string][]any{
		"meta":          {"HSET", "meta", "hello", `{"protocol":"x"}`},
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
			must(t, boss.Begin(t.Context(), Train(0), Plan{Queries: []string{"q"}, Rollouts: 1}))
			must(t, boss.Submit(t.Context(), call(0)))
			_, err := claimOne(t.Context(), help, Train(0))
			must(t, err)
			if spoil[0] == "LPUSH" {
				must(t, b.raw.Del(t.Context(), boss.key(spoil[1].(string))).Err())
			}
			spoil[1] = boss.key(spoil[1].(string))
			must(t, b.raw.Do(t.Context(), spoil...).Err())
			_, err = statusOf(t, boss.Store)
			var malformed *MalformedError
			if spoil[0] == "LPUSH" { // a key of another type is the server's to refuse
				if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
					t.Errorf("%v", err)
				}
			} else if !errors.As(err, &malformed) || !strings.Contains(err.Error(), key) {
				t.Errorf("%v does not name %s", err, key)
			}
		})
	}
}

// A run without checkpoints has more phases than a status shows: it shows the newest.
func TestStatusOfALongRun(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		begin(t, boss, help)
		const steps = 2*statusPhases + 5
		old := make([]any, 0, 2*steps)
		for n := range steps {
			old = append(old, n, Train(int64(n)).String())
		}
		must(t, b.raw.Do(t.Context(), append([]any{"ZADD", boss.key("phases")}, old...)...).Err())
		names, err := boss.newestPhases(t.Context())
		if err != nil || len(names) != statusPhases || names[len(names)-1] != Train(steps-1).String() || names[0] != Train(steps-statusPhases).String() {
			t.Errorf("%d phases, %v", len(names), err)
		}
	})
}

// A status can be read at any moment of a run.
func TestStatusWhileOthersWrite(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		begin(t, boss, help)
		var g errgroup.Group
		done := make(chan struct{})
		looks := 0
		g.Go(func() error {
			for {
				st, err := statusOf(t, boss.Store)
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
			p := Train(n)
			must(t, boss.Begin(ctx, p, Plan{Queries: []string{"q"}, Rollouts: 2}))
			for k := range 2 {
				must(t, boss.PublishOutcome(ctx, p, Outcome{Query: "q", Rollout: k}))
			}
			must(t, boss.End(ctx, p))
			for _, m := range []*Member{boss, help} {
				must(t, m.PublishTrajectories(ctx, p, nil))
				must(t, m.PublishVersion(ctx, n+1))
			}
			must(t, boss.Trim(ctx, n))
		}
		close(done)
		must(t, g.Wait())
		if looks == 0 {
			t.Error("nobody looked")
		}
	})
}

// A phase's name that was read is the name that is written.
func FuzzParsePhase(f *testing.F) {
	for _, name := range []string{"step-0", "eval-12", "checkpoint-9223372036854775807", "checkpoint-3", "step-01", "step--1", "step-+1", "stop-1", "step", "-", "step-1 ", "step-99999999999999999999"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		p, err := parsePhase(name)
		if err == nil && (p.String() != name || p.Step < 0) {
			t.Errorf("%q is read as %v", name, p)
		}
	})
}
