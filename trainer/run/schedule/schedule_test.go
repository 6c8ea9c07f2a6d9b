package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// follow executes a schedule and returns its commands: "roll 0", "train 0", "save 1" and so on, with rollouts as early as possible. best
// has the versions whose evaluations are better than all earlier ones. A stop is requested in the phase stopAt ("roll 1", "evaluate 2").
func follow(t *testing.T, s Options, st State, best map[int64]bool, stopAt string) []string {
	t.Helper()
	var out []string
	for range 1000 {
		if n, ok := s.RollOut(st); ok {
			what := fmt.Sprintf("roll %d", n)
			out = append(out, what)
			var err error
			if st, err = s.RolledOut(st, n, Result{Stop: what == stopAt}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		next := s.Next(st)
		if next.Kind == End {
			return out
		}
		what := fmt.Sprintf("%s %d", next.Kind, next.Version)
		out = append(out, what)
		var err error
		if st, err = s.Done(st, next, Result{Best: best[next.Version], Stop: what == stopAt}); err != nil {
			t.Fatalf("%v after %v", err, out)
		}
	}
	t.Fatalf("the schedule did not end: %v", out[:20])
	return nil
}

// TestSchedules: schedules with different settings, starts and stops have the expected commands.
func TestSchedules(t *testing.T) {
	afresh := Begin(None, None, None)
	all := Options{Steps: 4, CheckpointEvery: 2, EvalEvery: 2, EvalFirst: true, HasHeldOut: true, ColdStarts: true}
	set := func(change func(*Options)) Options {
		s := all
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		s      Options
		from   State
		best   []int64
		stopAt string
		want   string
	}{
		"whole": {s: all, from: afresh, best: []int64{0, 4},
			want: "cold start 0, await team 0, save 0, evaluate 0, save 0, roll 0, train 0, roll 1, train 1, save 2, evaluate 2, save 2, roll 2, train 2, roll 3, train 3, save 4, evaluate 4, save 4, finish 4"},
		"nothing held out": {s: set(func(s *Options) { s.HasHeldOut = false; s.CheckpointEvery = 3 }), from: afresh,
			want: "cold start 0, await team 0, save 0, roll 0, train 0, roll 1, train 1, roll 2, train 2, save 3, roll 3, train 3, save 4, finish 4"},
		"the best between checkpoints": {s: set(func(s *Options) { s.CheckpointEvery = 0; s.EvalFirst = false; s.EvalEvery = 1 }), from: afresh, best: []int64{1, 3},
			want: "cold start 0, await team 0, save 0, roll 0, train 0, evaluate 1, save 1, roll 1, train 1, evaluate 2, roll 2, train 2, evaluate 3, save 3, roll 3, train 3, save 4, evaluate 4, save 4, finish 4"},
		"a random start is not kept": {s: set(func(s *Options) { s.Steps = 1; s.ColdStarts = false }), from: afresh, best: []int64{0},
			want: "cold start 0, await team 0, evaluate 0, roll 0, train 0, save 1, evaluate 1, save 1, finish 1"},
		"resumed": {s: all, from: Begin(2, 2, 0),
			want: "await team 2, roll 2, train 2, roll 3, train 3, save 4, evaluate 4, save 4, finish 4"},
		"resumed before its evaluation": {s: all, from: Begin(2, 0, 0),
			want: "await team 2, evaluate 2, save 2, roll 2, train 2, roll 3, train 3, save 4, evaluate 4, save 4, finish 4"},
		"resumed at the end": {s: all, from: Begin(4, 2, 0), want: "await team 4, evaluate 4, save 4, finish 4"},
		"no steps":           {s: set(func(s *Options) { s.Steps = 0; s.EvalFirst = false }), from: afresh, want: "cold start 0, await team 0, save 0, evaluate 0, save 0, finish 0"},
		"stopped in a step":  {s: all, from: afresh, stopAt: "roll 1", want: "cold start 0, await team 0, save 0, evaluate 0, save 0, roll 0, train 0, roll 1, save 1, finish 1"},
		"stopped before an evaluation": {s: all, from: afresh, stopAt: "evaluate 2",
			want: "cold start 0, await team 0, save 0, evaluate 0, save 0, roll 0, train 0, roll 1, train 1, save 2, evaluate 2, finish 2"},
		"stopped in its cold start":               {s: all, from: afresh, stopAt: "cold start 0", want: "cold start 0"},
		"stopped because of another's cold start": {s: all, from: afresh, stopAt: "await team 0", want: "cold start 0, await team 0"},
		"stopped at once":                         {s: all, from: afresh, stopAt: "evaluate 0", want: "cold start 0, await team 0, save 0, evaluate 0, finish 0"},
		"ahead": {s: set(func(s *Options) { s.Steps = 6; s.MaxLag = 2; s.EvalEvery = 0; s.EvalFirst = false }), from: afresh,
			want: "cold start 0, await team 0, save 0, roll 0, roll 1, roll 2, train 0, roll 3, train 1, save 2, roll 4, train 2, roll 5, train 3, save 4, train 4, train 5, save 6, evaluate 6, save 6, finish 6"},
		"ahead, up to an evaluation": {s: set(func(s *Options) { s.MaxLag = 3; s.EvalFirst = false; s.CheckpointEvery = 0 }), from: afresh,
			want: "cold start 0, await team 0, save 0, roll 0, roll 1, train 0, train 1, evaluate 2, roll 2, roll 3, train 2, train 3, save 4, evaluate 4, save 4, finish 4"},
		"stopped while ahead": {s: set(func(s *Options) { s.MaxLag = 3; s.HasHeldOut = false; s.CheckpointEvery = 0 }), from: afresh, stopAt: "roll 2",
			want: "cold start 0, await team 0, save 0, roll 0, roll 1, roll 2, train 0, train 1, save 2, finish 2"},
	} {
		t.Run(name, func(t *testing.T) {
			best := map[int64]bool{}
			for _, v := range test.best {
				best[v] = true
			}
			if got := strings.Join(follow(t, test.s, test.from, best, test.stopAt), ", "); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestOnlyTheNextCommandIsAccepted: a command that was not the next one is an error.
func TestOnlyTheNextCommandIsAccepted(t *testing.T) {
	s := Options{Steps: 2}
	st := Begin(None, None, None)
	if _, err := s.Done(st, Command{Train, 0}, Result{}); err == nil || err.Error() != "schedule: command {train 0} was done, but {cold start 0} is next" {
		t.Errorf("train before the cold start: got error %v", err)
	}
	if _, err := s.RolledOut(st, 1, Result{}); err == nil {
		t.Error("step 1 was rolled out before step 0 without an error")
	}
	st.ColdStarted, st.Ready = true, true
	if _, err := s.Done(st, Command{AwaitRollouts, 0}, Result{}); err == nil {
		t.Error("AwaitRollouts was accepted as a command that can be done")
	}
}

// worker is a worker of TestTeams: its state, and the data that survive its death.
type worker struct {
	State
	saved, evaluated, best int64    // state in the newest checkpoint that all workers have
	log                    []string // steps that were trained
}

// TestTeams: the workers of a team follow their schedules in any order that the store allows. All workers train, save, evaluate and meet
// together, and a worker rolls out at most MaxLag steps ahead. Now and then the whole team dies and continues from a checkpoint that all
// have. No worker waits for ever, and all workers train every step in order, once in the history that survives.
func TestTeams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Options{
			Steps: rapid.Int64Range(0, 9).Draw(t, "steps"), CheckpointEvery: rapid.Int64Range(0, 4).Draw(t, "checkpoint"),
			EvalEvery: rapid.Int64Range(0, 4).Draw(t, "eval"), EvalFirst: rapid.Bool().Draw(t, "first"),
			HasHeldOut: rapid.Bool().Draw(t, "holds out"), ColdStarts: rapid.Bool().Draw(t, "cold starts"),
			MaxLag: rapid.Int64Range(0, 3).Draw(t, "lag"),
		}
		stopAt := rapid.Int64Range(0, 12).Draw(t, "stop")
		team := make([]*worker, rapid.IntRange(1, 3).Draw(t, "workers"))
		for i := range team {
			team[i] = &worker{State: Begin(None, None, None), saved: None, evaluated: None, best: None}
		}
		deaths := rapid.IntRange(0, 3).Draw(t, "deaths")
		for moves := 0; ; moves++ {
			if moves > 2000 {
				t.Fatalf("the run did not end: %+v", *team[0])
			}
			if deaths > 0 && rapid.IntRange(0, 15).Draw(t, "dies") == 0 {
				deaths--
				for _, w := range team {
					w.State = Begin(w.saved, w.evaluated, w.best)
					w.log = slices.DeleteFunc(w.log, func(line string) bool {
						var n int64
						trained, _ := fmt.Sscanf(line, "train %d", &n)
						return trained == 1 && n >= w.Version
					})
				}
			}
			if over := step(t, s, team, stopAt); over {
				break
			}
		}
		end := min(s.Steps, max(stopAt, team[0].Version))
		for i, w := range team {
			if !w.Over || w.Version != team[0].Version || w.Saved != w.Version || w.Version > end {
				t.Fatalf("worker %d ended as %+v", i, w.State)
			}
			if want := trained(w.Version); !slices.Equal(w.log, want) {
				t.Fatalf("worker %d trained %v, want %v", i, w.log, want)
			}
		}
	})
}

func trained(to int64) (out []string) {
	for n := range to {
		out = append(out, fmt.Sprintf("train %d", n))
	}
	return out
}

// step has one worker, or all together, execute the next command. It reports whether the run is over.
func step(t *rapid.T, s Options, team []*worker, stopAt int64) (over bool) {
	move := func(w *worker, st State, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if st.Version < w.Version || st.RolledOut < st.Version || st.RolledOut > st.Version+s.MaxLag+1 {
			t.Fatalf("impossible change of state from %+v to %+v", w.State, st)
		}
		w.State = st
	}
	i := rapid.IntRange(0, len(team)-1).Draw(t, "who")
	for range team { // looks for a worker that can continue alone
		w := team[i%len(team)]
		i++
		if n, ok := s.RollOut(w.State); ok {
			behind := slices.ContainsFunc(team, func(o *worker) bool { return n > o.Version+s.MaxLag })
			if behind { // the barrier of the version before must prevent this
				t.Fatalf("a worker at %+v rolls out step %d while another is more than %d versions behind", w.State, n, s.MaxLag)
			}
			st, err := s.RolledOut(w.State, n, Result{Stop: n >= stopAt})
			move(w, st, err)
			return false
		}
		if next := s.Next(w.State); next.Kind == ColdStart {
			st, err := s.Done(w.State, next, Result{})
			move(w, st, err)
			return false
		}
	}
	next := s.Next(team[0].State)
	for _, w := range team {
		if other := s.Next(w.State); other != next {
			t.Fatalf("two workers have different next commands, %v and %v: %+v, %+v", next, other, team[0].State, w.State)
		}
	}
	switch next.Kind {
	case End:
		return true
	case AwaitRollouts:
		t.Fatalf("all workers wait: %+v", team[0].State)
	}
	best := rapid.Bool().Draw(t, "best")
	for _, w := range team {
		st, err := s.Done(w.State, next, Result{Best: best, Stop: next.Kind == Evaluate && next.Version >= stopAt})
		move(w, st, err)
		switch next.Kind {
		case Save:
			w.saved, w.evaluated, w.best = w.Saved, w.EvaluationSaved, w.Best
		case Train:
			w.log = append(w.log, fmt.Sprintf("train %d", next.Version))
		}
	}
	return false
}

// TestTakesRollouts: a worker takes complete rollouts at once. It waits for others if the next command needs them or the lag
// must be exact.
func TestTakesRollouts(t *testing.T) {
	for name, test := range map[string]struct {
		exact, begun, complete bool
		next                   Kind
		want                   bool
	}{
		"needed":             {begun: true, next: AwaitRollouts, want: true},
		"complete":           {begun: true, complete: true, next: Save, want: true},
		"in progress":        {begun: true, next: Train},
		"in progress, exact": {exact: true, begun: true, next: Train, want: true},
		"none, exact":        {exact: true, next: Train},
	} {
		if got := (Options{ExactLag: test.exact}).TakesRollouts(Command{Kind: test.next}, test.begun, test.complete); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
