// Package local is the rollout engine on our own kernels: continuous batching over a paged key-value cache. Prefixes
// are shared between rollouts and kept between turns, as long as no sequence in flight needs their blocks.
//
// An engine serves agents that share a model. Each is a tenant, with its own adapters and prefixes, and a pass may have
// rows of all tenants.
//
// On a CPU a sampled token and its log-prob do not depend on other sequences in flight, arrival order, prefix reuse,
// the size of the cache or restarts. Every row of every kernel depends on that row's inputs alone, and the random
// number of a token is a function of the sequence's key and the token's position.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Options are the options of an engine.
type Options struct {
	Slots         int  // sequences in flight at once
	Context       int  // tokens that a sequence may reach; 0 means the model's limit
	Conversations int  // conversations at once, most of which may wait; a value below Slots means Slots
	CacheTokens   int  // tokens whose keys and values are kept, of all sequences together, at least Context; 0 means Slots × Context
	PassRows      int  // most rows of one forward pass (decoding rows plus prefill); 0 means arch.PassRows of the device
	HalfCache     bool // round keys and values to bf16; on a GPU they have the model's type in any case
	NoPrefixes    bool // never reuse a cached prefix
	NoGraphs      bool // do not capture decode passes as CUDA graphs

	Note func(text string) // called if decode passes of a size cannot be captured; may be nil
}

// Engine samples for its tenants from the weights of one model on one device.
type Engine struct {
	dev      *torch.Device
	opt      Options
	executor executor

	mu       sync.Mutex
	wake     *sync.Cond
	tenants  []*Tenant   // by number; nil: the number is unused
	queue    []*sequence // waiting for a slot or for room in the cache
	arrived  int64       // number of sequences so far
	launched int64       // number of these that began
	closed   bool
	failed   error
	pages    *pages
	slots    []int // slots without a sequence in flight
	running  []*sequence
	done     chan struct{}
}

// Open allocates the cache and starts the scheduler of an engine without tenants. The engine reads the model's weights in
// place.
func Open(ctx context.Context, m *model.Model, opt Options) (*Engine, error) {
	if opt.Context == 0 || opt.Context > m.MaxPosition() {
		opt.Context = m.MaxPosition()
	}
	if opt.PassRows == 0 {
		opt.PassRows = arch.PassRows(m.Device.IsCUDA())
	}
	if opt.Slots < 1 {
		return nil, fmt.Errorf("policy: engine.slots is %d; at least 1 is needed", opt.Slots)
	}
	if opt.CacheTokens == 0 {
		opt.CacheTokens = arch.WholeCache(opt.Slots, opt.Context)
	}
	if opt.CacheTokens < opt.Context {
		return nil, fmt.Errorf("policy: engine.cache_tokens is %d, but one sequence may have %d tokens (limits.max_tokens)", opt.CacheTokens, opt.Context)
	}
	e := newEngine(m, opt)
	e.executor.captures = m.Device.IsCUDA() && !opt.NoGraphs && arch.Cached(m.Config)
	var err error
	size := model.CacheSize{Blocks: e.pages.blocks(), Sequences: opt.Slots, Length: opt.Context, States: e.pages.recurrentStates(), Half: opt.HalfCache}
	if e.executor.cache, err = m.NewCache(ctx, size); err != nil {
		return nil, err
	}
	go e.run()
	return e, nil
}

// newEngine makes an engine without a cache, whose scheduler does not run.
func newEngine(m *model.Model, opt Options) *Engine {
	e := &Engine{dev: m.Device, opt: opt, pages: newPages(&m.Config, opt), done: make(chan struct{})}
	e.executor = executor{model: m, opt: opt, groups: len(e.pages.groups), graphs: map[int]*decodeGraph{}}
	for i := range opt.Slots {
		e.slots = append(e.slots, opt.Slots-1-i)
	}
	e.wake = sync.NewCond(&e.mu)
	return e
}

// add queues a tenant's sequence. It fails if the engine or the tenant is closed.
func (e *Engine) add(q *sequence) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.failed != nil:
		return e.failed
	case e.closed || q.tenant.leaving:
		return policy.ErrClosed
	}
	e.arrived++
	q.state.arrival, q.state.before = e.arrived, e.launched
	e.queue = append(e.queue, q)
	e.wake.Signal()
	return nil
}

// wakeScheduler wakes the scheduler. It takes the lock so that no wake-up is lost between the scheduler's check and its wait.
func (e *Engine) wakeScheduler() {
	e.mu.Lock()
	e.wake.Signal()
	e.mu.Unlock()
}

// Close stops the scheduler, fails the sequences in flight with policy.ErrClosed and frees the cache.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.wake.Signal()
	e.mu.Unlock()
	<-e.done
	err := e.dev.Do(ctx, func(*torch.Scope) error { e.executor.dropGraphs(); dropEndedStates(e.pages); return nil })
	return errors.Join(err, e.executor.cache.Close(ctx, e.dev))
}

// run admits sequences, runs a pass and distributes its tokens, until the engine is closed. Only run uses the cache.
func (e *Engine) run() {
	defer close(e.done)
	for {
		batch, ok := e.next()
		if !ok {
			return
		}
		sampled, err := e.pass(batch)
		e.mu.Lock()
		if err != nil {
			e.failed = fmt.Errorf("policy: %w", err)
			e.drop(func(*sequence) error { return e.failed })
		} else {
			e.distribute(batch, sampled)
		}
		e.mu.Unlock()
	}
}

// next waits for work and plans one pass. ok is false once the engine is closed.
func (e *Engine) next() (batch *batch, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		e.yield()
		if e.closed {
			e.drop(func(*sequence) error { return policy.ErrClosed })
			return nil, false
		}
		e.drop((*sequence).cancelled)
		e.removeDeparting()
		moves := e.admit()
		if len(e.running) > 0 {
			b := e.plan()
			b.moves, e.pages.pending = append(e.pages.pending, moves...), nil
			return b, true
		}
		if !e.freeStates() {
			e.wake.Wait()
		}
	}
}

// plan plans a pass over the sequences in flight, and gives them the blocks that it fills. If the cache is too small for
// all sequences, the youngest one is put back into the queue.
func (e *Engine) plan() *batch {
	for {
		b := planBatch(e.running, e.opt.PassRows)
		if !slices.ContainsFunc(b.work, func(w work) bool { return !e.pages.extend(w.q.state.cached, w.q.state.filled+w.rows) }) {
			return b
		}
		e.putBack(slices.MaxFunc(e.running, func(a, b *sequence) int { return cmp.Compare(a.state.arrival, b.state.arrival) }))
	}
}

// putBack returns a sequence in flight to the queue until there is room again. It keeps the tokens sampled so far; their
// keys and values are computed again if they are evicted. Later tokens do not change, since random numbers are keyed by
// position.
func (e *Engine) putBack(q *sequence) {
	q.tenant.stats.PutBack++
	q.state.computed = q.state.filled
	e.running = slices.DeleteFunc(e.running, func(r *sequence) bool { return r == q })
	e.finishSlot(q)
	e.queue = append(e.queue, q)
}

// finishSlot ends a sequence's time in its slot.
func (e *Engine) finishSlot(q *sequence) {
	e.pages.close(q.state.cached)
	q.tenant.inFlight--
	e.slots = append(e.slots, q.state.slot)
	q.state.cached, q.state.slot = nil, -1
}

// yield lets all runnable goroutines run, so that further turns join the next pass. These are
// turns of conversations whose last turn has just ended, and of conversations that a reply of
// the store has woken. Without yield, the first of them would get a pass alone, which costs as
// much as a pass for all. yield returns at once if no goroutine is runnable.
func (e *Engine) yield() {
	e.mu.Unlock()
	runtime.Gosched()
	e.mu.Lock()
}

// admit moves waiting sequences into flight and returns the blocks to copy for them.
func (e *Engine) admit() (moves []move) {
	if len(e.slots) == 0 {
		return nil
	}
	e.sortQueue()
	waiting := e.queue[:0]
	for i, q := range e.queue {
		if len(e.slots) == 0 {
			waiting = append(waiting, e.queue[i:]...)
			break
		}
		from, soon := e.pages.find(q.tenant, q.tokens)
		if soon {
			waiting = append(waiting, q)
			continue
		}
		if !e.pages.fits(len(q.tokens), from, len(e.running)) { // later sequences must not take the room for which it waits
			waiting = append(waiting, e.queue[i:]...)
			break
		}
		moves = append(moves, e.start(q, from)...)
	}
	clear(e.queue[len(waiting):])
	e.queue = waiting
	return moves
}

// sortQueue sorts the queue by the number of rows to compute, smallest first, so that cached prefixes are used before
// others evict them. A sequence counts as one block dearer for each sequence that began before it arrived, so that no
// sequence is overtaken for ever.
func (e *Engine) sortQueue() {
	for _, q := range e.queue {
		from, _ := e.pages.find(q.tenant, q.tokens)
		q.state.rank = int64(len(q.tokens)-from.reuse) + arch.CacheBlock*q.state.before
	}
	slices.SortFunc(e.queue, func(a, b *sequence) int {
		return cmp.Or(cmp.Compare(a.state.rank, b.state.rank), cmp.Compare(a.state.arrival, b.state.arrival))
	})
}

// start puts a sequence in flight.
func (e *Engine) start(q *sequence, from prefix) (moves []move) {
	q.state.cached, moves = e.pages.open(q.tenant, q.tokens, from)
	q.state.filled = q.state.cached.filled
	last := len(e.slots) - 1
	q.state.slot, e.slots = e.slots[last], e.slots[:last]
	q.state.listed = make([]int, len(e.pages.groups))
	e.running = append(e.running, q)
	t := q.tenant
	t.inFlight++
	t.stats.MaxInFlight = max(t.stats.MaxInFlight, t.inFlight)
	t.stats.Recomputed += int64(max(0, q.state.computed-q.state.filled))
	if q.state.launched {
		return moves // it had been put back
	}
	e.launched++
	q.state.launched, q.out.Version = true, t.version
	t.stats.Requests++
	t.stats.PromptTokens += int64(len(q.tokens))
	t.stats.ReusedTokens += int64(q.state.filled)
	return moves
}

// drop ends the sequences for which why returns an error.
func (e *Engine) drop(why func(*sequence) error) {
	ended := func(q *sequence) bool {
		err := why(q)
		if err == nil {
			return false
		}
		q.finish(policy.FinishCancelled, err)
		if q.state.cached != nil {
			e.finishSlot(q)
		}
		return true
	}
	e.queue = slices.DeleteFunc(e.queue, ended)
	e.running = slices.DeleteFunc(e.running, ended)
}

// distribute appends the sampled tokens to their sequences and removes the sequences that have ended.
func (e *Engine) distribute(b *batch, sampled []token) {
	e.count(b)
	routes := b.routes
	for _, w := range b.work {
		w.q.state.filled += w.rows
		e.pages.fill(w.q.state.cached, w.q.state.filled)
		n := w.rows * e.pages.width
		w.q.state.cached.routes, routes = append(w.q.state.cached.routes, routes[:n]...), routes[n:]
	}
	for i, q := range b.ready {
		if q.constraintErr != nil {
			q.finish(policy.FinishCancelled, q.constraintErr)
			e.finishSlot(q)
			continue
		}
		q.accept(sampled[i])
		q.tenant.stats.SampledTokens++
		q.state.cached.tokens = append(q.state.cached.tokens, sampled[i].id)
		if f, ended := q.ending.Add(sampled[i].id); ended {
			q.out.Routes = slices.Clone(q.state.cached.routes)
			q.finish(f, nil)
			e.finishSlot(q)
		}
	}
	e.running = slices.DeleteFunc(e.running, func(q *sequence) bool { return q.finished })
}
