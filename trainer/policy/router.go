package policy

import (
	"cmp"
	"slices"
	"sync"
)

// Router chooses which of several engines samples a turn. An engine keeps what it has computed of a prompt, so all turns of a conversation
// go to one engine, and those of a query, whose conversations begin alike, to as few as share the work evenly. Nothing else depends
// on where a turn is sampled.
type Router struct {
	mu            sync.Mutex
	load          []load
	most          int
	conversations map[Key]int    // the engine of each
	queries       map[string]int // the engine of the newest conversation of each
}

// load is the work of an engine.
type load struct {
	inFlight int // turns
	held     int // conversations that were placed there
}

// NewRouter makes a router for so many engines, which have numbers from 0 on.
func NewRouter(engines int) *Router {
	r := &Router{load: make([]load, engines)}
	r.Forget()
	return r
}

// Enter returns the engine of a turn of the conversation k, which is in flight there from now on until Leave. Engines that are not able
// are left out, while there are others.
func (r *Router) Enter(k Key, able func(engine int) bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	engine, known := r.conversations[k]
	if !known || !able(engine) {
		const most = 1 << 16
		if len(r.conversations) >= most {
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

// place chooses the engine of a conversation: that of the query's newest one, unless it has a quarter more than its share of the turns in
// flight, and else the one with the least to do.
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

// turns is how many are in flight.
func (r *Router) turns() (n int) {
	for _, l := range r.load {
		n += l.inFlight
	}
	return n
}

// Leave says that a turn has ended.
func (r *Router) Leave(engine int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load[engine].inFlight--
}

// MostInFlight is the most turns that were in flight at once.
func (r *Router) MostInFlight() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

// Forget says that the engines keep nothing any more, as after new weights.
func (r *Router) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
}

func (r *Router) forget() {
	r.conversations, r.queries = map[Key]int{}, map[string]int{}
	for i := range r.load {
		r.load[i].held = 0
	}
}
