package router

import (
	"fmt"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

func anywhere(int) bool { return true }

// TestRouter: a conversation keeps its engine under any load. The rollouts of a query use one
// engine until it has more than its share of turns. Queries are spread over the engines.
func TestRouter(t *testing.T) {
	r := New(2)
	key := func(query, rollout int) policy.Key {
		return policy.Key{Query: fmt.Sprint("q", query), Rollout: rollout}
	}
	homes := map[int]int{}
	for query := range 8 {
		first := r.Enter(key(query, 0), anywhere)
		r.Leave(first)
		second := r.Enter(key(query, 1), anywhere)
		r.Leave(second)
		if first != second {
			t.Errorf("two rollouts of query %d went to different engines, although both are idle", query)
		}
		homes[first]++
	}
	if homes[0] != 4 || homes[1] != 4 {
		t.Errorf("got queries by engine %v, want 4 each", homes)
	}
	r.Forget()
	at, load := map[int]int{}, map[int]int{}
	for rollout := range 40 {
		at[rollout] = r.Enter(key(1, rollout), anywhere)
		load[at[rollout]]++
	}
	if load[0] > 26 || load[1] > 26 { // the share of each is 20 of 40; a quarter more and one are allowed
		t.Errorf("got conversations of one query by engine %v, want at most 26 each", load)
	}
	for rollout := range 40 {
		if again := r.Enter(key(1, rollout), anywhere); again != at[rollout] {
			t.Errorf("the next turn of a conversation went to engine %d, want %d", again, at[rollout])
		}
		r.Leave(at[rollout])
		r.Leave(at[rollout])
	}
	if n := r.MostInFlight(); n != 41 {
		t.Errorf("got at most %d turns in flight, want 41", n)
	}
}

// TestRouterWithoutOne: engines that are not able are not chosen, also for conversations that they had, unless no engine is able.
func TestRouterWithoutOne(t *testing.T) {
	r := New(3)
	k := policy.Key{Query: "q"}
	first := r.Enter(k, anywhere)
	without := func(engine int) bool { return engine != first }
	second := r.Enter(k, without)
	if second == first {
		t.Errorf("engine %d was chosen although it is not able", first)
	}
	if again := r.Enter(k, anywhere); again != second {
		t.Errorf("the conversation continued at engine %d, want %d, which had its newest turn", again, second)
	}
	if r.Enter(policy.Key{Query: "other"}, func(int) bool { return false }) == second {
		t.Error("if no engine is able, the one with the most turns was chosen")
	}
}
