// Package router chooses which of several engines samples a turn: the ranks of an agent, or its servers.
package router

import (
	"cmp"
	"slices"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// Router chooses which of several engines samples a turn. An engine caches computed prompts, so all turns of a conversation
// go to one engine. Conversations of one query often begin alike, so they go to as few engines as possible while the work
// is shared evenly. The choice has no other effect.
type Router struct {
	mu            sync.Mutex
	load          []load
	most          int
	conversations map[policy.Key]int // engine of each conversation
	queries       map[string]int     // engine of each query's newest conversation
}

// load is the work of an engine.
type load struct {
	inFlight int // number of turns
	held     int // number of conversations placed there
}

// New returns a router for engines 0 to engines-1.
func New(engines int) *Router {
	r := &Router{load: make([]load, engines)}
	r.Forget()
	return r
}

// Enter returns the engine for a turn of conversation k, which is in flight there until Leave. Engines for which able
// returns false are avoided while there are others.
func (r *Router) Enter(k policy.Key, able func(engine int) bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	engine, known := r.conversations[k]
	if !known || !able(engine) {
		const maxConversations = 1 << 16
		if len(r.conversations) >= maxConversations {
			r.forget()
		}
		engine = r.place(k.Query, able)
		r.conversations[k], r.queries[k.Query] = engine, engine
		r.load[engine].held++
	}
	r.load[engine].inFlight++
	r.most = max(r.most, r.turns())
	return engine
}

// place chooses the engine of a conversation. It is the one of the query's newest conversation,
// or the least loaded one if that one has more than 1.25 times its share of the turns in flight.
func (r *Router) place(query string, able func(engine int) bool) int {
	var among []int
	for engine := range r.load {
		if able(engine) {
			among = append(among, engine)
		}
	}
	if len(among) == 0 {
		for engine := range r.load {
			among = append(among, engine)
		}
	}
	n := len(among)
	share := (5*(r.turns()+1) + 4*n - 1) / (4 * n) // 1.25 times the share, rounded up
	if home, known := r.queries[query]; known && slices.Contains(among, home) && r.load[home].inFlight < share {
		return home
	}
	return slices.MinFunc(among, func(a, b int) int {
		return cmp.Or(cmp.Compare(r.load[a].inFlight, r.load[b].inFlight), cmp.Compare(r.load[a].held, r.load[b].held))
	})
}

// turns returns the number of turns in flight.
func (r *Router) turns() (n int) {
	for _, l := range r.load {
		n += l.inFlight
	}
	return n
}

// Leave records the end of a turn.
func (r *Router) Leave(engine int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load[engine].inFlight--
}

// MostInFlight returns the largest number of turns that were in flight at once.
func (r *Router) MostInFlight() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

// Forget records that the engines' caches are empty, as after new weights.
func (r *Router) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
}

func (r *Router) forget() {
	r.conversations, r.queries = map[policy.Key]int{}, map[string]int{}
	for i := range r.load {
		r.load[i].held = 0
	}
}
