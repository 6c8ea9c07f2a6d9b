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

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// TestManyWaiters: 300 rollouts wait for answers at once over one connection for events, while a worker answers many invocations at a time.
// Each rollout gets the answer to its own invocation.
func TestManyWaiters(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx, stop := context.WithCancel(t.Context())
		var worker, waiters sync.WaitGroup
		answerEach(ctx, t, help, &worker, func(Invocation) {})
		const n = 300
		for i := range n {
			waiters.Go(func() {
				v := call(i)
				if err := boss.Invocations.Submit(ctx, v); err != nil {
					t.Errorf("submit: %v", err)
				}
				r, err := boss.Invocations.Await(ctx, v)
				if err != nil || r.Text != "answer to "+v.Task {
					t.Errorf("%s: got %+v, want the answer to %q; error %v", v.ID(), r, v.Task, err)
				}
				if err := boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: v.Query, Rollout: v.Rollout, Format: true, Correct: float64(i % 2), Reward: 0.1, Calls: map[string]int{"help": 1}}); err != nil {
					t.Errorf("outcome: %v", err)
				}
			})
		}
		outcomes, err := help.Phases.Outcomes(ctx, TrainPhase(0), n)
		must(t, err)
		if !slices.IsSortedFunc(outcomes, func(a, b Outcome) int {
			return strings.Compare(a.Query+fmt.Sprintf("/%09d", a.Rollout), b.Query+fmt.Sprintf("/%09d", b.Rollout))
		}) {
			t.Error("outcomes are not in the order of their ids")
		}
		waiters.Wait()
		must(t, boss.Phases.End(ctx, TrainPhase(0)))
		worker.Wait()
		stop()
	})
}

// TestWriteOnce: writing the same value a second time succeeds, and writing another value is refused as a conflict.
func TestWriteOnce(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		v := call(1)
		other := v
		other.Task = "another"
		must(t, boss.Invocations.Submit(ctx, v))
		claimed, err := claimOne(ctx, help, TrainPhase(0))
		must(t, err)
		outcome := Outcome{Query: "q", Rollout: 2, Format: true, Correct: 1, Reward: 1, Calls: map[string]int{"b": 1, "a": 2}, Without: map[string][]float64{"a": {0, 0.5}}}
		worse := outcome
		worse.Reward = 0.5
		for _, test := range []struct {
			name          string
			same, another func() error
		}{
			{"invocation", func() error { return boss.Invocations.Submit(ctx, v) }, func() error { return boss.Invocations.Submit(ctx, other) }},
			{"answer", func() error { return help.Invocations.Complete(ctx, claimed, Result{Text: "a"}) }, func() error { return help.Invocations.Complete(ctx, claimed, Result{Text: "b"}) }},
			{"outcome", func() error { return boss.Phases.PublishOutcome(ctx, TrainPhase(0), outcome) }, func() error { return boss.Phases.PublishOutcome(ctx, TrainPhase(0), worse) }},
			{"plan", func() error { return boss.Phases.Begin(ctx, TrainPhase(0), Plan{Queries: []string{"q"}, Rollouts: 2}) }, func() error { return boss.Phases.Begin(ctx, TrainPhase(0), Plan{Queries: []string{"q"}, Rollouts: 3}) }},
			{"trajectories", func() error { return help.Phases.PublishTrajectories(ctx, TrainPhase(0), []string{"b", "a"}) }, func() error { return help.Phases.PublishTrajectories(ctx, TrainPhase(0), []string{"a"}) }},
		} {
			for range 2 {
				if err := test.same(); err != nil {
					t.Errorf("%s: %v", test.name, err)
				}
			}
			var conflict *ConflictError
			if err := test.another(); !errors.As(err, &conflict) {
				t.Errorf("%s: another value: got error %v, want a ConflictError", test.name, err)
			}
		}
		if r, err := boss.Invocations.Await(ctx, v); err != nil || r.Text != "a" {
			t.Errorf("after two answers: got %+v, want the first, a; error %v", r, err)
		}
		// The invocation was submitted twice and must be claimed once.
		must(t, boss.Phases.End(ctx, TrainPhase(0)))
		if v, err := claimOne(ctx, help, TrainPhase(0)); !errors.Is(err, ErrPhaseEnded) {
			t.Errorf("second claim: got %+v and error %v, want ErrPhaseEnded", v, err)
		}
	})
}

// TestTakeover: a worker that takes over a lost worker's place gets all invocations of the phase again, also
// answered ones, and also after the end of the phase. If the lost worker wakes up, its writes are refused.
func TestTakeover(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, dead := pair(t, b, Options{})
		for i := range 2 {
			must(t, boss.Invocations.Submit(t.Context(), call(i)))
		}
		first, err := claimOne(t.Context(), dead, TrainPhase(0))
		must(t, err)
		must(t, dead.Invocations.Complete(t.Context(), first, Result{Text: "answered"}))
		second, err := claimOne(t.Context(), dead, TrainPhase(0))
		must(t, err)
		killWorker(t, b, dead)
		must(t, boss.Phases.End(t.Context(), TrainPhase(0)))

		successor := join(t, b.open(t, Options{}), "help")
		if s := start(t, successor); s.Version != FromStart {
			t.Errorf("the successor starts from %v, want the beginning", s)
		}
		if successor.Epoch() != dead.Epoch()+1 || successor.Round.Nonce() != dead.Round.Nonce() {
			t.Errorf("epochs %d and %d, want one more; rounds %s and %s, want the same", dead.Epoch(), successor.Epoch(), dead.Round.Nonce(), successor.Round.Nonce())
		}
		for _, want := range []Invocation{first, second} {
			again, err := claimOne(t.Context(), successor, TrainPhase(0))
			must(t, err)
			if again.ID() != want.ID() || again.Task != want.Task {
				t.Errorf("the successor claimed %+v, want %+v", again, want)
			}
			must(t, successor.Invocations.Complete(t.Context(), again, Result{Text: "answered"}))
		}
		if v, err := claimOne(t.Context(), successor, TrainPhase(0)); !errors.Is(err, ErrPhaseEnded) {
			t.Errorf("third claim of the successor: got %+v and error %v, want ErrPhaseEnded", v, err)
		}
		var fenced *FencedError
		if err := dead.Invocations.Complete(t.Context(), second, Result{Text: "late"}); !errors.As(err, &fenced) || !EndsRoundOnly(err) {
			t.Errorf("the lost worker's answer: got error %v, want a FencedError", err)
		}
		if err := dead.Versions.Publish(t.Context(), 1); !errors.As(err, &fenced) {
			t.Errorf("the lost worker's version: got error %v, want a FencedError", err)
		}
		if r, err := boss.Invocations.Await(t.Context(), call(1)); err != nil || r.Text != "answered" {
			t.Errorf("got answer %+v, want the successor's; error %v", r, err)
		}
	})
}

// TestPoison: an invocation is given up after MaxDeliveries workers were lost while they had
// claimed it. An invocation that a lost worker had answered is not given up.
func TestPoison(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{MaxDeliveries: 2}
		boss, help := pair(t, b, o)
		claim := func(m *Member) Invocation {
			v, err := claimOne(t.Context(), m, TrainPhase(0))
			must(t, err)
			return v
		}
		for i := range 2 {
			must(t, boss.Invocations.Submit(t.Context(), call(i)))
		}
		harmless := claim(help)
		must(t, help.Invocations.Complete(t.Context(), harmless, Result{Text: "ok"}))
		for range 2 {
			for m := help; ; {
				if v := claim(m); v.ID() == call(1).ID() {
					break // the worker is lost while it has claimed this one
				}
				must(t, m.Invocations.Complete(t.Context(), harmless, Result{Text: "ok"}))
			}
			killWorker(t, b, help)
			help = join(t, b.open(t, o), "help")
			start(t, help)
		}
		must(t, help.Invocations.Complete(t.Context(), claim(help), Result{Text: "ok"}))
		must(t, boss.Phases.End(t.Context(), TrainPhase(0)))
		if v, err := claimOne(t.Context(), help, TrainPhase(0)); !errors.Is(err, ErrPhaseEnded) {
			t.Errorf("claim after the end of the phase: got %+v and error %v, want ErrPhaseEnded", v, err)
		}
		r, err := boss.Invocations.Await(t.Context(), call(1))
		if want := "given up after 2 workers of help were lost while they had claimed it"; err != nil || r.Failed != want {
			t.Errorf("the invocation that was given up: got %+v and error %v, want %q", r, err, want)
		}
	})
}

func TestSecondWorkerIsRefused(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{Lease: 5 * time.Second}
		join(t, b.open(t, o), "boss")
		_, err := b.open(t, o).Join(t.Context(), "boss", team, ignore)
		if want := "store: another worker of boss is alive in run test, or was within its lease of "; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	})
}

// TestHandshakeNamesDifferences: a worker with other settings is refused, and the error names each difference.
func TestHandshakeNamesDifferences(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		o := Options{Lease: time.Hour}
		join(t, b.open(t, o), "boss")
		other := team
		other.Agents, other.Config = []string{"boss", "help", "aide"}, map[string]string{"run.seed": "18", "x": "1"}
		_, err := b.open(t, o).Join(t.Context(), "help", other, ignore)
		want := "store: help differs from the worker(s) of boss: agents [boss help aide] here, [boss help] there; run.seed: 18 here, 17 there; x: 1 here, absent there"
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	})
}

// TestOtherProtocol: a worker refuses a round of another protocol version, and names both versions. So does the status.
func TestOtherProtocol(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss := join(t, b.open(t, Options{}), "boss")
		other := fmt.Sprintf(`{"protocol":%d,"agents":["boss","help"],"config":{"run.seed":"17"},"deterministic":true}`, ProtocolVersion+1)
		must(t, b.raw.HSet(t.Context(), boss.place.key("meta"), "agreement", other).Err())
		_, err := b.open(t, Options{}).Join(t.Context(), "help", team, ignore)
		want := fmt.Sprintf("store: help differs from the worker(s) of boss: protocol version %d here, %d there", ProtocolVersion, ProtocolVersion+1)
		if err == nil || err.Error() != want {
			t.Errorf("got error %v, want %s", err, want)
		}
		if _, err := statusOf(t, boss.place.Store); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d, and this program has", ProtocolVersion+1)) {
			t.Errorf("status: got error %v, want one that names both versions", err)
		}
	})
}

// TestPhasesAreApart: invocations with equal ids in an evaluation and in a training step are separate.
func TestPhasesAreApart(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		train, eval := call(0), call(0)
		eval.Phase, eval.Task = EvalPhase(0), "evaluated"
		must(t, boss.Invocations.Submit(ctx, train))
		must(t, boss.Invocations.Submit(ctx, eval))
		v, err := claimOne(ctx, help, EvalPhase(0))
		must(t, err)
		if v.Task != "evaluated" {
			t.Errorf("claimed %+v, want the evaluation's", v)
		}
		must(t, help.Invocations.Complete(ctx, v, Result{Text: "e"}))
		if r, err := boss.Invocations.Await(ctx, eval); err != nil || r.Text != "e" {
			t.Errorf("evaluation: got answer %+v, want e; error %v", r, err)
		}
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if r, err := boss.Invocations.Await(ctx, train); err == nil {
			t.Errorf("training: got answer %+v, want none", r)
		}
	})
}

// TestDeadlines: the error of a wait that takes too long names the agent, the missing value and
// the start of the wait, and reports whether the agent's worker is alive.
func TestDeadlines(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss := join(t, b.open(t, Options{Lease: time.Hour}), "boss")
		ctx := t.Context()
		must(t, b.raw.HSet(ctx, boss.place.key("versions"), "boss", 0).Err()) // the version that a started worker has
		must(t, boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: "q"}))
		must(t, boss.Phases.PublishTrajectories(ctx, TrainPhase(0), nil))
		must(t, boss.Checkpoints.PublishPart(ctx, 1, Part{}))
		must(t, boss.Checkpoints.PublishManifest(ctx, 1, strings.Repeat("ab", 32)))
		must(t, boss.Versions.Publish(ctx, 1))
		for _, test := range []struct {
			want string
			wait func() error
		}{
			{"for help (no worker of it is alive): the answer to q-0/3/help/0 of step-0", func() error { _, err := boss.Invocations.Await(ctx, call(3)); return err }},
			{"for boss (its worker is alive): the outcomes of step-0, 1 of 4 are there", func() error { _, err := boss.Phases.Outcomes(ctx, TrainPhase(0), 4); return err }},
			{"for help (no worker of it is alive): the list of its trajectories of step-0", func() error { _, err := boss.Phases.Trajectories(ctx, TrainPhase(0)); return err }},
			{"for help (no worker of it is alive): its part of checkpoint-1", func() error { _, err := boss.Checkpoints.Parts(ctx, 1); return err }},
			{"for help (no worker of it is alive): its manifest of checkpoint-1", func() error { _, err := boss.Checkpoints.Manifests(ctx, 1); return err }},
			{"for help (no worker of it is alive): version 1", func() error { return boss.Versions.Await(ctx, 1) }},
			{"for boss (its worker is alive): the beginning of step-9", func() error { _, err := boss.Phases.Plan(ctx, TrainPhase(9)); return err }},
			{"for boss (its worker is alive): an invocation of boss in step-0, or the phase's end", func() error { _, err := claimOne(ctx, boss, TrainPhase(0)); return err }},
		} {
			err := timedOut(boss, test.wait)
			var late *TimeoutError
			if !errors.As(err, &late) || !strings.HasSuffix(err.Error(), test.want) || late.Since.IsZero() || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got  %v\nwant … %s", err, test.want)
			}
		}
	})
}

// timedOut returns the error of a wait with a short timeout. It waits again if only the store itself was too slow.
func timedOut(m *Member, wait func() error) error {
	opt := &m.place.opt
	defer func(before time.Duration) { opt.Timeout = before }(opt.Timeout)
	opt.Timeout = 300 * time.Millisecond
	for {
		err := wait()
		var late *TimeoutError
		if !errors.As(err, &late) || !strings.HasPrefix(late.Whom, "the store") {
			return err
		}
	}
}

func TestCancelledWaitEndsWithItsCause(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss := join(t, b.open(t, Options{}), "boss")
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("changed my mind")
		time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
		if _, err := boss.Invocations.Await(ctx, call(0)); !errors.Is(err, why) {
			t.Errorf("got error %v, want %v", err, why)
		}
	})
}

// TestStopReachesEveryone: if one worker stops the run, the contexts and waits of all workers end with its reason.
func TestStopReachesEveryone(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		waiting := make(chan error, 1)
		go func() { _, err := boss.Invocations.Await(t.Context(), call(0)); waiting <- err }()
		must(t, help.Round.Stop(t.Context(), Failure, "the loss is NaN"))
		var stop *StopError
		if err := <-waiting; !errors.As(err, &stop) || *stop != (StopError{Agent: "help", Reason: "the loss is NaN", Kind: Failure}) {
			t.Errorf("the wait ended with %v, want the StopError of help", err)
		}
		<-boss.Context().Done()
		<-help.Context().Done()
		if err := context.Cause(boss.Context()); !errors.As(err, &stop) {
			t.Errorf("the member's context ended with %v, want a StopError", err)
		}
	})
}

func TestTrim(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		for step := range int64(3) {
			for _, p := range []Phase{TrainPhase(step), EvalPhase(step)} {
				v := call(0)
				v.Phase = p
				must(t, boss.Phases.Begin(ctx, p, Plan{Queries: []string{"q"}, Rollouts: 1}))
				must(t, boss.Invocations.Submit(ctx, v))
				claimed, err := claimOne(ctx, help, p)
				must(t, err)
				must(t, help.Invocations.Complete(ctx, claimed, Result{Text: "a"}))
				must(t, boss.Phases.PublishOutcome(ctx, p, Outcome{Query: "q"}))
				must(t, boss.Phases.PublishTrajectories(ctx, p, nil))
			}
			must(t, boss.Versions.Publish(ctx, step+1))
		}
		must(t, boss.Checkpoints.Trim(ctx, 1))
		keys, err := b.raw.Keys(ctx, "*").Result()
		must(t, err)
		left := 0
		for _, key := range keys {
			if strings.Contains(key, "step-0") || strings.Contains(key, "eval-1") {
				t.Errorf("key %s still exists", key)
			}
			if strings.Contains(key, "step-2") || strings.Contains(key, "eval-2") {
				left++
			}
			if !strings.HasPrefix(key, "mgrpo:{test}:") {
				t.Errorf("key %s does not have the run's prefix", key)
			}
		}
		if left != 12 {
			t.Errorf("%d keys of the last phases are left, want 12: %v", left, keys)
		}
	})
}

// TestBarrier: no worker begins before all are ready. A worker that takes over a place later does not wait.
func TestBarrier(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		ctx := t.Context()
		boss, help := pair(t, b, Options{})
		met, late := make(chan error, 1), make(chan []string, 100)
		go func() { met <- boss.Round.Barrier(ctx, Ready, func(agents []string) { late <- agents }) }()
		if got := <-late; !slices.Equal(got, []string{"help"}) {
			t.Errorf("boss waits for %v, want [help]", got)
		}
		select {
		case err := <-met:
			t.Errorf("boss began before help was ready: %v", err)
		default:
		}
		alone := func(agents []string) { t.Errorf("help waits for %v, want no wait", agents) }
		must(t, help.Round.Barrier(ctx, Ready, alone))
		must(t, <-met)
		killWorker(t, b, help)
		help = join(t, b.open(t, Options{}), "help")
		must(t, help.Round.Barrier(ctx, Ready, alone))
		must(t, help.Leave(ctx))
		must(t, boss.Leave(ctx))

		boss = join(t, b.open(t, Options{}), "boss")
		err := timedOut(boss, func() error { return boss.Round.Barrier(ctx, Finished, func([]string) {}) })
		if want := "for help (no worker of it is alive): being finished"; err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got  %v\nwant … %s", err, want)
		}
	})
}

// TestOver: a worker was killed after all had finished, and is started again. It waits for the old lease, and the other workers leave
// meanwhile. Then Join returns ErrRunComplete. A worker that has not finished begins a new round instead.
func TestOver(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		ctx := t.Context()
		boss, help := pair(t, b, Options{})
		done := team
		done.Complete = true
		met := make(chan error, 1)
		go func() { met <- boss.Round.Barrier(ctx, Finished, func([]string) {}) }()
		must(t, help.Round.Barrier(ctx, Finished, func([]string) {}))
		must(t, <-met)
		waits, over := make(chan string, 1), make(chan error, 1)
		again := b.open(t, Options{})
		go func() {
			_, err := again.Join(ctx, "boss", done, func(what string) { waits <- what })
			over <- err
		}()
		<-waits // it waits for the old lease
		must(t, help.Leave(ctx))
		killWorker(t, b, boss)
		if err := <-over; !errors.Is(err, ErrRunComplete) {
			t.Errorf("a finished worker joins after the run: got error %v, want ErrRunComplete", err)
		}
		join(t, again, "boss")
		if m, err := b.open(t, Options{}).Join(ctx, "help", done, ignore); err != nil {
			t.Errorf("a finished worker joins a new round: got error %v", err)
		} else {
			must(t, m.Leave(ctx))
		}
	})
}

// TestOnlyLeasesExpire: leases have a time to live, and no other key has one.
func TestOnlyLeasesExpire(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, _ := pair(t, b, Options{})
		ctx := t.Context()
		must(t, boss.Invocations.Submit(ctx, call(0)))
		must(t, boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: "q"}))
		keys, err := b.raw.Keys(ctx, "*").Result()
		must(t, err)
		for _, key := range keys {
			ttl, err := b.raw.PTTL(ctx, key).Result()
			must(t, err)
			if expires := ttl > 0; expires != strings.Contains(key, ":lease:") {
				t.Errorf("key %s has a time to live of %v, want one: %v", key, ttl, !expires)
			}
		}
	})
}

// TestMalformedEntries: reading an entry that this program cannot have written returns an error that names the key.
func TestMalformedEntries(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		put := func(key, field, value string) { must(t, b.raw.HSet(ctx, "mgrpo:{test}:"+key, field, value).Err()) }
		put("result:step-0", "q-0/0/help/0", `{"text":1}`)
		put("outcome:step-0", "q/0", `{"query":"q","rollout":1}`)
		put("plan:step-0", "plan", `{"queries":["q","q"],"rollouts":1}`)
		put("trajectories:step-0", "boss", `[1]`)
		put("part:checkpoint-1", "boss", `{"files":[{"path":"../../boss.yaml","size":3,"sha256":"`+strings.Repeat("ab", 32)+`"}]}`)
		put("manifest:checkpoint-1", "help", `"the newest"`)
		put("versions", "help", "many")
		stream := "mgrpo:{test}:stream:step-0:help"
		must(t, b.raw.Do(ctx, "XADD", stream, "*", "id", "q/0/help/0", "v", `{"phase":{"kind":"step","step":0},"query":"q","rollout":0,"agent":"boss","index":0,"task":""}`).Err())
		for name, read := range map[string]func() error{
			"result":       func() error { _, err := boss.Invocations.Await(ctx, call(0)); return err },
			"outcome":      func() error { _, err := boss.Phases.Outcomes(ctx, TrainPhase(0), 1); return err },
			"plan":         func() error { _, err := help.Phases.Plan(ctx, TrainPhase(0)); return err },
			"trajectories": func() error { _, err := boss.Phases.Trajectories(ctx, TrainPhase(0)); return err },
			"part":         func() error { _, err := boss.Checkpoints.Parts(ctx, 1); return err },
			"manifest":     func() error { _, err := boss.Checkpoints.Manifests(ctx, 1); return err },
			"versions":     func() error { return boss.Versions.Await(ctx, 1) },
			"stream":       func() error { _, err := claimOne(ctx, help, TrainPhase(0)); return err },
		} {
			var bad *MalformedError
			if err := read(); !errors.As(err, &bad) || !strings.Contains(bad.Key, ":"+name) {
				t.Errorf("%s: got error %v, want a MalformedError with the key", name, err)
			}
		}
	})
}

// TestWipedStore: the first write after the store was wiped is refused, and ends the member's context.
func TestWipedStore(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, _ := pair(t, b, Options{})
		must(t, b.raw.FlushAll(t.Context()).Err())
		var fenced *FencedError
		if err := boss.Phases.PublishOutcome(t.Context(), TrainPhase(0), Outcome{Query: "q"}); !errors.As(err, &fenced) || fenced.Now != "" {
			t.Errorf("got error %v, want a FencedError without a present epoch", err)
		}
		<-boss.Context().Done()
	})
}

func TestBadValuesAreNotWritten(t *testing.T) {
	b := embeddedBackend(t)
	boss, _ := pair(t, b, Options{})
	ctx := t.Context()
	for name, err := range map[string]error{
		"no query":        boss.Invocations.Submit(ctx, Invocation{Phase: TrainPhase(0), Agent: "help"}),
		"no phase":        boss.Invocations.Submit(ctx, Invocation{Query: "q", Agent: "help"}),
		"agent's name":    boss.Invocations.Submit(ctx, Invocation{Phase: TrainPhase(0), Query: "q", Agent: "a:b"}),
		"long text":       boss.Invocations.Submit(ctx, Invocation{Phase: TrainPhase(0), Query: "q", Agent: "help", Task: strings.Repeat("x", MaxText+1)}),
		"NaN reward":      boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: "q", Reward: math.NaN()}),
		"a high score":    boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: "q", Correct: 1e308}),
		"no call without": boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: "q", Calls: map[string]int{"help": 2}, Without: map[string][]float64{"help": {1}}}),
		"not called":      boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: "q", Without: map[string][]float64{"help": {}}}),
		"no score":        boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: "q", Calls: map[string]int{"help": 1}, Without: map[string][]float64{"help": {-0.1}}}),
		"repeated query":  boss.Phases.Begin(ctx, TrainPhase(0), Plan{Queries: []string{"q", "q"}, Rollouts: 1}),
		"outer file":      boss.Checkpoints.PublishPart(ctx, 1, Part{Files: []durable.File{{Path: "../../x", SHA256: strings.Repeat("ab", 32)}}}),
		"long endpoint":   boss.Checkpoints.PublishPart(ctx, 1, Part{Endpoint: &Endpoint{URL: strings.Repeat("x", MaxText)}}),
		"short digest":    boss.Checkpoints.PublishManifest(ctx, 1, "abcd"),
		"negative index":  boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: "q", Rollout: -1}),
	} {
		if err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}
