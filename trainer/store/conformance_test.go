package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
)

// 300 rollouts wait for answers at once, over one reader of events, while a worker has many of their
// invocations in flight. Everyone gets the answer to its own question.
func TestManyWaiters(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx, stop := context.WithCancel(t.Context())
		var worker, waiters sync.WaitGroup
		worker.Go(func() {
			for {
				v, err := help.Claim(ctx, Train(0))
				if errors.Is(err, ErrEnded) {
					return
				}
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				worker.Go(func() {
					if err := help.Complete(ctx, v, Result{Text: "answer to " + v.Task}); err != nil {
						t.Errorf("complete: %v", err)
					}
				})
			}
		})
		const n = 300
		for i := range n {
			waiters.Go(func() {
				v := call(i)
				if err := boss.Submit(ctx, v); err != nil {
					t.Errorf("submit: %v", err)
				}
				r, err := boss.Await(ctx, v)
				if err != nil || r.Text != "answer to "+v.Task {
					t.Errorf("%s: %+v, %v", v.ID(), r, err)
				}
				if err := boss.PublishOutcome(ctx, Train(0), Outcome{Query: v.Query, Rollout: v.Rollout, Format: true, Correct: float64(i % 2), Reward: 0.1, Calls: map[string]int{"help": 1}}); err != nil {
					t.Errorf("outcome: %v", err)
				}
			})
		}
		outcomes, err := help.Outcomes(ctx, Train(0), n)
		must(t, err)
		if !slices.IsSortedFunc(outcomes, func(a, b Outcome) int {
			return strings.Compare(a.Query+fmt.Sprintf("/%09d", a.Rollout), b.Query+fmt.Sprintf("/%09d", b.Rollout))
		}) {
			t.Error("outcomes are not in the order of their ids")
		}
		waiters.Wait()
		must(t, boss.End(ctx, Train(0)))
		worker.Wait()
		stop()
	})
}

// Everything may be written again as it was; nothing may be written again otherwise.
func TestWriteOnce(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		v := call(1)
		other := v
		other.Task = "another"
		must(t, boss.Submit(ctx, v))
		claimed, err := help.Claim(ctx, Train(0))
		must(t, err)
		outcome := Outcome{Query: "q", Rollout: 2, Format: true, Correct: 1, Reward: 1, Calls: map[string]int{"b": 1, "a": 2}}
		worse := outcome
		worse.Reward = 0.5
		for _, test := range []struct {
			name          string
			same, another func() error
		}{
			{"invocation", func() error { return boss.Submit(ctx, v) }, func() error { return boss.Submit(ctx, other) }},
			{"answer", func() error { return help.Complete(ctx, claimed, Result{Text: "a"}) }, func() error { return help.Complete(ctx, claimed, Result{Text: "b"}) }},
			{"outcome", func() error { return boss.PublishOutcome(ctx, Train(0), outcome) }, func() error { return boss.PublishOutcome(ctx, Train(0), worse) }},
			{"plan", func() error { return boss.Begin(ctx, Train(0), Plan{Queries: []string{"q"}, Rollouts: 2}) }, func() error { return boss.Begin(ctx, Train(0), Plan{Queries: []string{"q"}, Rollouts: 3}) }},
			{"holding", func() error { return help.PublishHolding(ctx, Train(0), []string{"b", "a"}) }, func() error { return help.PublishHolding(ctx, Train(0), []string{"a"}) }},
		} {
			for range 2 {
				if err := test.same(); err != nil {
					t.Errorf("%s: %v", test.name, err)
				}
			}
			var conflict *ConflictError
			if err := test.another(); !errors.As(err, &conflict) {
				t.Errorf("%s: another value was not refused as a conflict: %v", test.name, err)
			}
		}
		if r, err := boss.Await(ctx, v); err != nil || r.Text != "a" {
			t.Errorf("the first answer does not stand: %+v, %v", r, err)
		}
		// Submitted twice, handed out once.
		must(t, boss.End(ctx, Train(0)))
		if v, err := help.Claim(ctx, Train(0)); !errors.Is(err, ErrEnded) {
			t.Errorf("claimed %+v, %v", v, err)
		}
	})
}

// What a dead worker had claimed is handed out again, to the next worker of its agent, and the dead
// one, should it wake up, changes nothing any more.
func TestDeadWorker(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{Lease: time.Second}
		boss := join(t, b.open(t, o), "boss")
		dead, err := b.open(t, o).Join(t.Context(), "help", team)
		must(t, err)
		must(t, boss.Submit(t.Context(), call(0)))
		first, err := dead.Claim(t.Context(), Train(0))
		must(t, err)
		dead.cancel(errors.New("killed")) // it renews nothing any more
		dead.beats.Wait()

		heir := join(t, b.open(t, o), "help")
		if heir.Epoch() != dead.Epoch()+1 {
			t.Errorf("epochs %d, then %d", dead.Epoch(), heir.Epoch())
		}
		again, err := heir.Claim(t.Context(), Train(0))
		must(t, err)
		if again.ID() != first.ID() || again.Task != first.Task || again.Delivery != 2 {
			t.Errorf("handed out %+v, then %+v", first, again)
		}
		var fenced *FencedError
		if err := dead.Complete(t.Context(), first, Result{Text: "late"}); !errors.As(err, &fenced) {
			t.Errorf("the dead worker's answer: %v", err)
		}
		if err := dead.PublishVersion(t.Context(), 1); !errors.As(err, &fenced) {
			t.Errorf("the dead worker's version: %v", err)
		}
		must(t, heir.Complete(t.Context(), again, Result{Text: "in time"}))
		if r, err := boss.Await(t.Context(), call(0)); err != nil || r.Text != "in time" {
			t.Errorf("answer %+v, %v", r, err)
		}
	})
}

// A slow worker keeps what it has claimed for longer than a lease.
func TestSlowWorkerKeepsItsClaim(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{Lease: 400 * time.Millisecond})
		must(t, boss.Submit(t.Context(), call(0)))
		v, err := help.Claim(t.Context(), Train(0))
		must(t, err)
		for range 12 { // each asks the server at once, over three leases
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if again, err := help.Claim(ctx, Train(0)); err == nil {
				t.Errorf("handed out again while it was worked on: %+v", again)
			}
			cancel()
		}
		pending := func() []redis.XPendingExt {
			p, err := b.raw.XPendingExt(t.Context(), &redis.XPendingExtArgs{Stream: help.key("stream", "step-0", "help"), Group: "workers", Start: "-", End: "+", Count: 10}).Result()
			must(t, err)
			return p
		}
		if p := pending(); len(p) != 1 || p[0].RetryCount != 1 {
			t.Errorf("while it is worked on, the server has %+v; want one delivery", p)
		}
		must(t, help.Complete(t.Context(), v, Result{Text: "slow"}))
		if p := pending(); len(p) != 0 {
			t.Errorf("completed, and still pending: %+v", p)
		}
	})
}

// An invocation that kills its workers is given up.
func TestPoison(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		must(t, boss.Submit(t.Context(), call(0)))
		v, err := help.Claim(t.Context(), Train(0))
		must(t, err)
		for range maxDeliveries { // as if so many workers had been lost
			help.mu.Lock()
			clear(help.inFlight)
			help.mu.Unlock()
			must(t, b.raw.Do(t.Context(), "XCLAIM", help.key("stream", "step-0", "help"), "workers", "lost", 0, v.entry, "IDLE", 100000).Err())
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := help.Claim(ctx, Train(0)); done <- err }()
		r, err := boss.Await(t.Context(), call(0))
		cancel()
		<-done
		if want := "given up after 6 workers of help were lost over it"; err != nil || r.Failed != want {
			t.Errorf("got %+v, %v; want %q", r, err, want)
		}
	})
}

func TestSecondWorkerIsRefused(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{Lease: time.Second}
		join(t, b.open(t, o), "boss")
		_, err := b.open(t, o).Join(t.Context(), "boss", team)
		if want := "store: another worker of boss is alive in run test; one agent has one worker"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

func TestHandshakeSaysWhatDiffers(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{Lease: 400 * time.Millisecond}
		join(t, b.open(t, o), "boss")
		for _, test := range []struct {
			hello Hello
			want  string
		}{
			{Hello{Agents: []string{"boss", "help", "aide"}, Config: map[string]string{"run.seed": "18", "x": "1"}},
				"store: help differs from the worker(s) of boss: agents [boss help aide] here, [boss help] there; run.seed: 18 here, 17 there; x: 1 here, absent there"},
			{Hello{Agents: team.Agents, Config: team.Config, Version: 3},
				"store: help starts at version 3, but in run test, where boss is alive, it is at version 0; stop all workers and resume them from the same checkpoint"},
		} {
			_, err := b.open(t, o).Join(t.Context(), "help", test.hello)
			if err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		}
	})
}

// A team that resumes from a checkpoint finds nothing of the steps after it, and can redo them with
// another result.
func TestResumeDropsLaterSteps(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		ctx := t.Context()
		s := b.open(t, Options{})
		boss, err := s.Join(ctx, "boss", team)
		must(t, err)
		help, err := s.Join(ctx, "help", team)
		must(t, err)
		for step := range int64(3) {
			must(t, boss.Begin(ctx, Train(step), Plan{Queries: []string{"q"}, Rollouts: 1}))
			must(t, boss.PublishOutcome(ctx, Train(step), Outcome{Query: "q", Reward: 0.5}))
			for _, m := range []*Member{boss, help} {
				must(t, m.PublishVersion(ctx, step+1))
			}
		}
		must(t, boss.Stop(ctx, "enough"))
		must(t, boss.Leave(ctx))
		must(t, help.Leave(ctx))

		hello := team
		hello.Version = 2
		s = b.open(t, Options{})
		boss, err = s.Join(ctx, "boss", hello)
		must(t, err)
		defer boss.Leave(ctx)
		if o, err := boss.Outcomes(ctx, Train(1), 1); err != nil || o[0].Reward != 0.5 {
			t.Errorf("outcomes before the checkpoint: %v, %v", o, err)
		}
		must(t, boss.PublishOutcome(ctx, Train(2), Outcome{Query: "q", Reward: 0.75}))
		must(t, boss.PublishVersion(ctx, 3))
		versions, err := boss.Versions(ctx)
		must(t, err)
		if d := cmp.Diff(map[string]int64{"boss": 3, "help": 2}, versions); d != "" {
			t.Errorf("versions (-want +got):\n%s", d)
		}
	})
}

func TestRoundOfAStep(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		plan := Plan{Queries: []string{"b", "a#epoch=2"}, Rollouts: 2}
		var wg sync.WaitGroup
		wg.Go(func() {
			got, err := help.Plan(ctx, Train(7))
			if d := cmp.Diff(plan, got); err != nil || d != "" {
				t.Errorf("plan: %v\n%s", err, d)
			}
			holdings, err := help.Holdings(ctx, Train(7))
			if d := cmp.Diff(map[string][]string{"boss": {"a", "b"}, "help": {}}, holdings); err != nil || d != "" {
				t.Errorf("holdings: %v\n%s", err, d)
			}
			if err := help.Barrier(ctx, 1); err != nil {
				t.Errorf("barrier: %v", err)
			}
		})
		must(t, boss.Begin(ctx, Train(7), plan))
		must(t, boss.PublishHolding(ctx, Train(7), []string{"b", "a"}))
		must(t, help.PublishHolding(ctx, Train(7), nil))
		for range 2 { // repeating it changes nothing
			must(t, help.PublishVersion(ctx, 1))
		}
		must(t, boss.PublishVersion(ctx, 1))
		wg.Wait()
		if err := help.PublishVersion(ctx, 3); err == nil || !strings.Contains(err.Error(), "version 3 of help cannot follow version 1") {
			t.Errorf("a version was skipped: %v", err)
		}
	})
}

// An evaluation and a training step with equal ids do not meet.
func TestPhasesAreApart(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		train, eval := call(0), call(0)
		eval.Phase, eval.Task = Eval(0), "evaluated"
		must(t, boss.Submit(ctx, train))
		must(t, boss.Submit(ctx, eval))
		v, err := help.Claim(ctx, Eval(0))
		must(t, err)
		if v.Task != "evaluated" {
			t.Errorf("claimed %+v", v)
		}
		must(t, help.Complete(ctx, v, Result{Text: "e"}))
		if r, err := boss.Await(ctx, eval); err != nil || r.Text != "e" {
			t.Errorf("answer %+v, %v", r, err)
		}
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if r, err := boss.Await(ctx, train); err == nil {
			t.Errorf("the training's invocation has the evaluation's answer: %+v", r)
		}
	})
}

// A wait that takes too long says for whom, for what, since when, and whether they are alive.
func TestDeadlines(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss := join(t, b.open(t, Options{Timeout: 300 * time.Millisecond, Lease: time.Minute}), "boss")
		ctx := t.Context()
		must(t, boss.PublishOutcome(ctx, Train(0), Outcome{Query: "q"}))
		must(t, boss.PublishHolding(ctx, Train(0), nil))
		must(t, boss.PublishVersion(ctx, 1))
		for _, test := range []struct {
			want string
			wait func() error
		}{
			{"for help (no worker of it is alive): the answer to q-0/3/help/0 of step-0", func() error { _, err := boss.Await(ctx, call(3)); return err }},
			{"for boss (its worker is alive): the outcomes of step-0, 1 of 4 are there", func() error { _, err := boss.Outcomes(ctx, Train(0), 4); return err }},
			{"for help (no worker of it is alive): the list of trajectories it holds of step-0", func() error { _, err := boss.Holdings(ctx, Train(0)); return err }},
			{"for help (no worker of it is alive): version 1", func() error { return boss.Barrier(ctx, 1) }},
			{"for boss (its worker is alive): the beginning of step-9", func() error { _, err := boss.Plan(ctx, Train(9)); return err }},
			{"for boss (its worker is alive): an invocation of boss in step-0, or the phase's end", func() error { _, err := boss.Claim(ctx, Train(0)); return err }},
		} {
			err := test.wait()
			var late *TimeoutError
			if !errors.As(err, &late) || !strings.HasSuffix(err.Error(), test.want) || late.Since.IsZero() || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got  %v\nwant … %s", err, test.want)
			}
		}
	})
}

func TestCancelledWaitEndsWithItsCause(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss := join(t, b.open(t, Options{}), "boss")
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("changed my mind")
		time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
		if _, err := boss.Await(ctx, call(0)); !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
	})
}

// Whoever stops the run stops everyone, waits included, and the first reason stands.
func TestStopReachesEveryone(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		waiting := make(chan error, 1)
		go func() { _, err := boss.Await(t.Context(), call(0)); waiting <- err }()
		must(t, help.Fail(t.Context(), "the loss is NaN"))
		var stop *StopError
		if err := <-waiting; !errors.As(err, &stop) || *stop != (StopError{Agent: "help", Reason: "the loss is NaN", Failed: true}) {
			t.Errorf("the wait ended with %v", err)
		}
		<-boss.Context().Done()
		<-help.Done()
		if err := context.Cause(boss.Context()); !errors.As(err, &stop) {
			t.Errorf("the member's context ended with %v", err)
		}
	})
}

func TestTrim(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		for step := range int64(3) {
			for _, p := range []Phase{Train(step), Eval(step)} {
				v := call(0)
				v.Phase = p
				must(t, boss.Begin(ctx, p, Plan{Queries: []string{"q"}, Rollouts: 1}))
				must(t, boss.Submit(ctx, v))
				claimed, err := help.Claim(ctx, p)
				must(t, err)
				must(t, help.Complete(ctx, claimed, Result{Text: "a"}))
				must(t, boss.PublishOutcome(ctx, p, Outcome{Query: "q"}))
				must(t, boss.PublishHolding(ctx, p, nil))
			}
			must(t, boss.PublishVersion(ctx, step+1))
		}
		must(t, boss.Trim(ctx, 1))
		keys, err := b.raw.Keys(ctx, "*").Result()
		must(t, err)
		left := 0
		for _, key := range keys {
			if strings.Contains(key, "step-0") || strings.Contains(key, "eval-1") {
				t.Errorf("%s is still there", key)
			}
			if strings.Contains(key, "step-2") || strings.Contains(key, "eval-2") {
				left++
			}
			if !strings.HasPrefix(key, "mgrpo:{test}:") {
				t.Errorf("%s is not a key of the run", key)
			}
		}
		if left != 12 {
			t.Errorf("%d keys of the last phases are left, want 12: %v", left, keys)
		}
	})
}

// Nobody begins before all are ready, a worker that takes a place over later does not wait, and a run that
// is begun anew has forgotten who was ready.
func TestMeet(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		ctx := t.Context()
		s := b.open(t, Options{})
		boss, err := s.Join(ctx, "boss", team)
		must(t, err)
		met, late := make(chan error, 1), make(chan []string, 100)
		go func() { met <- boss.Meet(ctx, func(agents []string) { late <- agents }) }()
		if got := <-late; !slices.Equal(got, []string{"help"}) {
			t.Errorf("waits for %v", got)
		}
		help, err := s.Join(ctx, "help", team)
		must(t, err)
		select {
		case err := <-met:
			t.Errorf("met one who is not ready: %v", err)
		default:
		}
		alone := func(agents []string) { t.Errorf("waits for %v", agents) }
		must(t, help.Meet(ctx, alone))
		must(t, <-met)
		must(t, help.Leave(ctx))
		help, err = s.Join(ctx, "help", team)
		must(t, err)
		must(t, help.Meet(ctx, alone))
		must(t, help.Leave(ctx))
		must(t, boss.Leave(ctx))

		boss = join(t, b.open(t, Options{Timeout: 300 * time.Millisecond}), "boss")
		err = boss.Meet(ctx, func([]string) {})
		if want := "for help (no worker of it is alive): being ready to begin"; err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got  %v\nwant … %s", err, want)
		}
	})
}

// Nothing but leases expires.
func TestOnlyLeasesExpire(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, _ := pair(t, b, Options{})
		ctx := t.Context()
		must(t, boss.Submit(ctx, call(0)))
		must(t, boss.PublishOutcome(ctx, Train(0), Outcome{Query: "q"}))
		keys, err := b.raw.Keys(ctx, "*").Result()
		must(t, err)
		for _, key := range keys {
			ttl, err := b.raw.PTTL(ctx, key).Result()
			must(t, err)
			if expires := ttl > 0; expires != strings.Contains(key, ":lease:") {
				t.Errorf("%s has a time to live of %v", key, ttl)
			}
		}
	})
}

// Entries that this program cannot have written are errors that name the key.
func TestMalformedEntries(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		put := func(key, field, value string) { must(t, b.raw.HSet(ctx, "mgrpo:{test}:"+key, field, value).Err()) }
		put("result:step-0", "q-0/0/help/0", `{"text":1}`)
		put("outcome:step-0", "q/0", `{"query":"q","rollout":1}`)
		put("plan:step-0", "plan", `{"queries":["q","q"],"rollouts":1}`)
		put("holding:step-0", "boss", `[1]`)
		put("versions", "help", "many")
		stream := "mgrpo:{test}:stream:step-0:help"
		must(t, b.raw.Do(ctx, "XADD", stream, "*", "v", `{"phase":{"kind":"step","step":0},"query":"q","rollout":0,"agent":"boss","index":0,"task":""}`).Err())
		for name, read := range map[string]func() error{
			"result":   func() error { _, err := boss.Await(ctx, call(0)); return err },
			"outcome":  func() error { _, err := boss.Outcomes(ctx, Train(0), 1); return err },
			"plan":     func() error { _, err := help.Plan(ctx, Train(0)); return err },
			"holding":  func() error { _, err := boss.Holdings(ctx, Train(0)); return err },
			"versions": func() error { return boss.Barrier(ctx, 1) },
			"stream":   func() error { _, err := help.Claim(ctx, Train(0)); return err },
		} {
			var bad *MalformedError
			if err := read(); !errors.As(err, &bad) || !strings.Contains(bad.Key, ":"+name) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A store that was wiped is noticed by the next write.
func TestWipedStore(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, _ := pair(t, b, Options{})
		must(t, b.raw.FlushAll(t.Context()).Err())
		var fenced *FencedError
		if err := boss.PublishOutcome(t.Context(), Train(0), Outcome{Query: "q"}); !errors.As(err, &fenced) || fenced.Now != "" {
			t.Errorf("got %v", err)
		}
		<-boss.Context().Done()
	})
}

func TestBadValuesAreNotWritten(t *testing.T) {
	b := embeddedBackend(t)
	boss, _ := pair(t, b, Options{})
	ctx := t.Context()
	for name, err := range map[string]error{
		"no query":       boss.Submit(ctx, Invocation{Phase: Train(0), Agent: "help"}),
		"no phase":       boss.Submit(ctx, Invocation{Query: "q", Agent: "help"}),
		"agent's name":   boss.Submit(ctx, Invocation{Phase: Train(0), Query: "q", Agent: "a:b"}),
		"long text":      boss.Submit(ctx, Invocation{Phase: Train(0), Query: "q", Agent: "help", Task: strings.Repeat("x", MaxText+1)}),
		"NaN reward":     boss.PublishOutcome(ctx, Train(0), Outcome{Query: "q", Reward: math.NaN()}),
		"repeated query": boss.Begin(ctx, Train(0), Plan{Queries: []string{"q", "q"}, Rollouts: 1}),
		"negative index": boss.PublishOutcome(ctx, Train(0), Outcome{Query: "q", Rollout: -1}),
	} {
		if err == nil {
			t.Errorf("%s: written", name)
		}
	}
}

// Whatever stands in the store, decoding gives a value within bounds or an error.
func FuzzDecode(f *testing.F) {
	f.Add(`{"phase":{"kind":"step","step":3},"query":"q","rollout":0,"agent":"help","index":0,"task":"t"}`)
	f.Add(`{"query":"q","rollout":1,"format":true,"correct":1,"reward":0.1,"calls":{"help":2}}`)
	f.Add(`{"queries":["a","b"],"rollouts":8}`)
	f.Add(`["a","b"]`)
	f.Add(`{"text":"a","failed":"NaN"}`)
	f.Add(`{"protocol":1,"agents":["a"],"config":{"k":"v"}}`)
	f.Add("\x00\xff")
	f.Fuzz(func(t *testing.T, text string) {
		check := func(v any, err error) {
			var bad *MalformedError
			if err != nil && !errors.As(err, &bad) {
				t.Errorf("%T: %v", v, err)
			}
			if err == nil {
				if _, err := encode(v); err != nil {
					t.Errorf("%T is read and cannot be written: %v", v, err)
				}
			}
		}
		i, err := decode[Invocation]("k", text)
		check(i, err)
		r, err := decode[Result]("k", text)
		check(r, err)
		o, err := decode[Outcome]("k", text)
		check(o, err)
		p, err := decode[Plan]("k", text)
		check(p, err)
		h, err := decode[holding]("k", text)
		check(h, err)
		g, err := decode[greeting]("k", text)
		check(g, err)
	})
}
