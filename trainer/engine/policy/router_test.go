package policy

import (
	"fmt"
	"testing"
)

func anywhere(int) bool { return true }

// A conversation keeps its engine whatever the load is, a query has one until that has more than its share, and queries are spread.
func TestRouter(t *testing.T) {
	r := NewRouter(2)
	key := func(query, rollout int) Key { return Key{Query: fmt.Sprint("q", query), Rollout: rollout} }
	homes := map[int]int{}
	for query := range 8 {
		first := r.Enter(key(query, 0), anywhere)
		r.Leave(first)
		second := r.Enter(key(query, 1), anywhere)
		r.Leave(second)
		if first != second {
			t.Errorf("query %d is at two engines that have nothing to do", query)
		}
		homes[first]++
	}
	if homes[0] != 4 || homes[1] != 4 {
		t.Errorf("queries by engine: %v", homes)
	}
	r.Forget()
	at, load := map[int]int{}, map[int]int{}
	for rollout := range 40 {
		at[rollout] = r.Enter(key(1, rollout), anywhere)
		load[at[rollout]]++
	}
	if load[0] > 26 || load[1] > 26 { // of 40 between two: a quarter more than 20, and one
		t.Errorf("conversations of one query by engine: %v", load)
	}
	for rollout := range 40 {
		if again := r.Enter(key(1, rollout), anywhere); again != at[rollout] {
			t.Errorf("the next turn of a conversation goes from engine %d to %d", at[rollout], again)
		}
		r.Leave(at[rollout])
		r.Leave(at[rollout])
	}
	if n := r.MostInFlight(); n != 41 {
		t.Errorf("%d turns in flight at once, want 41", n)
	}
}

// Whoever is not able is left out, also of conversations that it had, unless nobody is able.
func TestRouterWithoutOne(t *testing.T) {
	r := NewRouter(3)
	k := Key{Query: "q"}
	first := r.Enter(k, anywhere)
	without := func(engine int) bool { return engine != first }
	second := r.Enter(k, without)
	if second == first {
		t.Errorf("engine %d was chosen, which is not able", first)
	}
	if again := r.Enter(k, anywhere); again != second {
		t.Errorf("the conversation goes on at engine %d, and its newest turn was at %d", again, second)
	}
	if r.Enter(Key{Query: "other"}, func(int) bool { return false }) == second {
		t.Error("with nobody able, the engine with the most to do was chosen")
	}
}
