package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestDegenerate: a query is replaced if all its scored rollouts have equal rewards. Failed and unscored rollouts are ignored, and a query
// without a scored rollout is not replaced.
func TestDegenerate(t *testing.T) {
	cfg := load(t, t.TempDir())
	cfg.GRPO.Convention = "sample"
	ro := &rollouts{common: &common{name: "planner"}, normaliser: normaliser{rules: assemble.RulesOf(cfg, cfg.Main())}}
	for name, c := range map[string]struct {
		outcomes []store.Outcome
		want     bool
	}{
		"equal":   {[]store.Outcome{{Reward: 1}, {Rollout: 1, Reward: 1}, {Rollout: 2, Failed: "lost"}}, true},
		"rounded": {[]store.Outcome{{Reward: 0.3}, {Rollout: 1, Reward: 0.30000000000000004}}, true},
		"differ":  {[]store.Outcome{{Reward: 1}, {Rollout: 1}}, false},
		"unknown": {[]store.Outcome{{Unscored: "no judge"}}, false},
	} {
		if dead, err := ro.degenerate(t.Context(), c.outcomes); err != nil || dead != c.want {
			t.Errorf("%s: got %v, want %v; error %v", name, dead, c.want, err)
		}
	}
}

// numberedTask is a task whose replacements have the ids r0, r1 and so on, in the training order.
type numberedTask struct{ task.Task }

func (numberedTask) Train(i int64) task.Query {
	return task.Query{ID: fmt.Sprint("r", i-firstReplacement)}
}

// game returns the rollouts, plan and queries of a main agent: two rollouts each of "a", "b"
// and "c", and up to four replacements, "r0" to "r3".
func game(t *testing.T, sets ...string) (*rollouts, store.Plan, []task.Query) {
	cfg := load(t, t.TempDir(), append([]string{"grpo.resample=4", "grpo.rollouts=2"}, sets...)...)
	ro := &rollouts{common: &common{cfg: cfg, agent: cfg.Main(), name: "planner"}, normaliser: normaliser{rules: assemble.RulesOf(cfg, cfg.Main())},
		player: &play.Player{Options: play.Options{Task: numberedTask{}}}, queries: queries{cfg: cfg, task: numberedTask{}}}
	return ro, store.Plan{Queries: []string{"a", "b", "c"}, Rollouts: 2}, []task.Query{{ID: "a"}, {ID: "b"}, {ID: "c"}}
}

// outcome returns the outcome of rollout k of q. Rollouts of a query in `dead` have equal
// rewards, and rollouts of another query different ones.
func outcome(q task.Query, k int, dead ...string) store.Outcome {
	o := store.Outcome{Query: q.ID, Rollout: k}
	if !slices.Contains(dead, q.ID) {
		o.Reward = float64(k)
	}
	return o
}

// TestAnyOrderOfEndings: the order in which queries end changes neither the queries that are played nor the queries that remain.
func TestAnyOrderOfEndings(t *testing.T) {
	for name, c := range map[string]struct {
		dead            []string
		queries, played string
	}{
		"replacements":       {[]string{"a", "c", "r0", "r2"}, "r3 b r1", "a b c r0 r1 r2 r3"},
		"up to the bound":    {[]string{"a", "b", "c", "r0", "r1", "r3"}, "r3 r1 r2", "a b c r0 r1 r2 r3"},
		"none":               {nil, "a b c", "a b c"},
		"none of the plan's": {[]string{"r0"}, "a b c", "a b c"},
	} {
		for _, last := range []string{"a", "b", "c", "r0", "nobody"} {
			for _, limit := range []string{"1", "64"} {
				t.Run(name+", last "+last+", limit "+limit, func(t *testing.T) {
					ro, plan, queries := game(t, "agents.planner.engine.slots="+limit, "agents.planner.engine.conversations="+limit)
					var mu sync.Mutex
					played := map[string]bool{}
					got, err := ro.playAll(t.Context(), store.TrainPhase(0), plan, queries, func(_ context.Context, q task.Query, k int) (store.Outcome, error) {
						if q.ID == last {
							time.Sleep(5 * time.Millisecond)
						}
						mu.Lock()
						defer mu.Unlock()
						played[q.ID] = true
						return outcome(q, k, c.dead...), nil
					})
					names := strings.Join(slices.Sorted(maps.Keys(played)), " ")
					if err != nil || names != c.played || strings.Join(got.Queries, " ") != c.queries {
						t.Errorf("played %s, want %s; queries %v (replaced %v), want %s; error %v", names, c.played, got.Queries, got.Replaced, c.queries, err)
					}
				})
			}
		}
	}
}

// TestReplacementsDoNotWait: a replacement begins while another query is still being played.
func TestReplacementsDoNotWait(t *testing.T) {
	ro, plan, queries := game(t)
	begun := make(chan struct{})
	_, err := ro.playAll(t.Context(), store.TrainPhase(0), plan, queries, func(ctx context.Context, q task.Query, k int) (store.Outcome, error) {
		switch {
		case q.ID == "r0" && k == 0:
			close(begun)
		case q.ID == "b":
			select {
			case <-begun:
			case <-time.After(time.Hour):
				t.Error("the replacement did not begin while query b was played")
			}
		}
		return outcome(q, k, "a"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFailureWhileReplacing: an error of a replacement's rollout ends the other rollouts and is returned.
func TestFailureWhileReplacing(t *testing.T) {
	ro, plan, queries := game(t)
	broken := errors.New("broken")
	_, err := ro.playAll(t.Context(), store.TrainPhase(0), plan, queries, func(ctx context.Context, q task.Query, k int) (store.Outcome, error) {
		switch q.ID {
		case "r0":
			return store.Outcome{}, broken
		case "b":
			<-ctx.Done()
			return store.Outcome{}, ctx.Err()
		}
		return outcome(q, k, "a"), nil
	})
	if !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
}

// TestReplaced: replacements take the places of degenerate queries of the plan in the plan's order, and then the places of degenerate
// replacements. The plan that was passed does not change.
func TestReplaced(t *testing.T) {
	plan := store.Plan{Queries: []string{"a", "b", "c"}, Rollouts: 2}
	degenerate := map[string]bool{"c": true, "a": true, "r0": true, "r2": true}
	got := withReplacements(plan, []string{"r0", "r1", "r2"}, degenerate)
	if !slices.Equal(got.Queries, []string{"r2", "b", "r1"}) || !slices.Equal(got.Replaced, []string{"a", "c", "r0"}) {
		t.Errorf("got queries %v and replaced %v, want [r2 b r1] and [a c r0]", got.Queries, got.Replaced)
	}
	if !slices.Equal(plan.Queries, []string{"a", "b", "c"}) {
		t.Errorf("the plan that was passed changed to %v", plan.Queries)
	}
}

// TestOutcomesOfReplacedQueries: outcomes of replaced queries are separated from the others, and their rollouts count as played.
func TestOutcomesOfReplacedQueries(t *testing.T) {
	outcomes := []store.Outcome{{Query: "a"}, {Query: "b"}, {Query: "a", Rollout: 1}, {Query: "c"}}
	kept, gone := splitReplaced(outcomes, []string{"b", "c"})
	if len(kept) != 2 || kept[1].Rollout != 1 || len(gone) != 2 || gone[0].Query != "b" {
		t.Errorf("kept %v and removed %v, want the two outcomes of a kept", kept, gone)
	}
	if n := playedRollouts(store.Plan{Queries: []string{"a", "d", "e"}, Replaced: []string{"b", "c"}, Rollouts: 4}); n != 20 {
		t.Errorf("got %d rollouts played, want 20", n)
	}
}
