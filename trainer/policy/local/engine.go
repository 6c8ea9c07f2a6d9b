// Package local is the rollout engine on our own kernels: continuous batching over slots of a key-value cache. Prefixes
// are shared between rollouts and kept between turns.
//
// On a CPU a sampled token and its log-prob do not depend on other sequences in flight, arrival order, prefix reuse or
// restarts. Every row of every kernel depends on that row's inputs alone, and the random number of a token is a function
// of the sequence's key and the token's position.
package local

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/policy"
)

// Options of an engine.
type Options struct {
	Slots        int                   // sequences in flight at once
	Context      int                   // tokens a sequence may reach; 0 means the model's limit
	PassRows     int                   // most rows of one forward pass (decoding rows plus prefill); 0 means 512
	NoPrefixes   bool                  // never reuse a cached prefix
	NoRecordings bool                  // do not record decode passes as CUDA graphs
	Overlap      bool                  // the weights may change under sequences in flight
	TokenBytes   func(id int32) []byte // for stop strings; may be nil
}

// ErrClosed is returned by calls on a closed engine.
var ErrClosed = errors.New("policy: engine is closed")

// Engine implements policy.Policy on one device.
type Engine struct {
	dev   *torch.Device
	model *model.Model
	cache *model.Cache
	opt   Options

	mu      sync.Mutex
	wake    *sync.Cond
	queue   []*sequence // waiting for a slot, in order of arrival
	version int64
	stats   policy.Stats
	closed  bool
	failed  error
	slots   slots
	running []*sequence
	done    chan struct{}

	recordings map[int]*recording // CUDA graphs by number of rows; empty on a CPU
}

var _ policy.Policy = (*Engine)(nil)

// New allocates the cache and starts the scheduler. The engine reads the model's weights in place: call
// UpdateWeights after every change of them.
func New(ctx context.Context, m *model.Model, opt Options) (*Engine, error) {
	if opt.Context == 0 || opt.Context > m.MaxPosition() {
		opt.Context = m.MaxPosition()
	}
	if opt.PassRows == 0 {
		opt.PassRows = 512
	}
	if opt.Slots < 1 {
		return nil, fmt.Errorf("policy: engine.slots is %d; at least 1 is needed", opt.Slots)
	}
	cache, err := m.NewCache(ctx, opt.Slots, opt.Context)
	if err != nil {
		return nil, err
	}
	e := &Engine{dev: m.Device, model: m, cache: cache, opt: opt, done: make(chan struct{}), recordings: map[int]*recording{},
		slots: slots{all: make([]slot, opt.Slots), width: m.Config.RouteWidth(), sharing: !opt.NoPrefixes}}
	e.wake = sync.NewCond(&e.mu)
	e.stats.Batches = map[int]int64{}
	go e.schedule()
	return e, nil
}

// Deterministic is true on a CPU, where every row of every kernel depends on that row's inputs alone, unless the weights
// may change under sequences in flight.
func (e *Engine) Deterministic() bool { return Deterministic(e.dev.IsCUDA(), e.opt.Overlap) }

// Deterministic is Engine.Deterministic for callers that have no engine yet.
func Deterministic(onGPU, overlap bool) bool { return !onGPU && !overlap }

// ContextLimit is the most tokens of prompt plus completion.
func (e *Engine) ContextLimit() int { return e.opt.Context }

// Version is the policy version of the weights in use.
func (e *Engine) Version() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.version
}

// UpdateWeights tells the engine that the weights, which it reads in place, have changed and are policy version `version`.
// The engine drops cached keys and values. It is an error if sequences are in flight, unless Options.Overlap is set. With
// Overlap a sequence in flight continues with the new weights and the cached keys and values of the old weights, and its
// completion has the version with which it started.
func (e *Engine) UpdateWeights(_ context.Context, version int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.running) + len(e.queue); n > 0 && !e.opt.Overlap {
		return fmt.Errorf("policy: weights changed to version %d under %d sequences in flight", version, n)
	}
	e.slots.forget()
	e.version = version
	return nil
}

// Generate samples one turn; see policy.Policy.
func (e *Engine) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	if err := r.Check(e.model.Config.VocabSize, e.opt.TokenBytes != nil); err != nil {
		return policy.Completion{}, err
	}
	if len(r.Tokens) >= e.opt.Context {
		return policy.Completion{Finish: policy.FinishContext, Version: e.Version()}, nil
	}
	q := newSequence(ctx, r, &e.opt)
	e.mu.Lock()
	if e.closed || e.failed != nil {
		err := e.failed
		e.mu.Unlock()
		if err == nil {
			err = ErrClosed
		}
		return policy.Completion{}, err
	}
	e.queue = append(e.queue, q)
	e.wake.Signal()
	e.mu.Unlock()
	stop := context.AfterFunc(ctx, e.nudge)
	defer stop()
	<-q.done
	return q.out, q.err
}

// nudge wakes the scheduler. It takes the lock so that no wake-up is lost between the scheduler's check and its wait.
func (e *Engine) nudge() {
	e.mu.Lock()
	e.wake.Signal()
	e.mu.Unlock()
}

// Close stops the scheduler, fails the sequences in flight with ErrClosed and frees the cache.
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
	err := e.dev.Do(ctx, func(*torch.Scope) error {
		for _, r := range e.recordings {
			r.drop()
		}
		return nil
	})
	return errors.Join(err, e.cache.Close(ctx, e.dev))
}

// Stats returns a copy of the counters.
func (e *Engine) Stats() policy.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Batches = map[int]int64{}
	for k, v := range e.stats.Batches {
		s.Batches[k] = v
	}
	return s
}

// schedule is the scheduler's loop: admit sequences, run a pass, distribute its tokens. Only schedule uses the cache.
func (e *Engine) schedule() {
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
			e.abort(e.failed)
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
		e.gather()
		if e.closed {
			e.abort(ErrClosed)
			return nil, false
		}
		e.dropCancelled()
		copies := e.admit()
		if len(e.running) > 0 {
			b := planBatch(e.running, e.opt.PassRows)
			b.copies = copies
			return b, true
		}
		e.wake.Wait()
	}
}

// gather yields to all runnable goroutines, so that conversations that are about to request a turn join the next pass:
// those whose turn has just ended, and those that a reply of the store has woken. Without gather the first of them would
// get a pass alone, which costs as much as a pass for all. gather returns at once if no goroutine is runnable.
func (e *Engine) gather() {
	e.mu.Unlock()
	runtime.Gosched()
	e.mu.Lock()
}

// admit moves waiting sequences into slots and returns the prefixes to copy for them.
func (e *Engine) admit() (copies []placement) {
	waiting := e.queue[:0]
	for _, q := range e.queue {
		p, ok := e.slots.place(q.tokens)
		if !ok {
			waiting = append(waiting, q)
			continue
		}
		q.slot, q.out.Version = p.slot, e.version
		q.filled = p.reuse
		if p.from != p.slot && p.reuse > 0 {
			copies = append(copies, p)
		}
		e.running = append(e.running, q)
		e.stats.Requests++
		e.stats.PromptTokens += int64(len(q.tokens))
		e.stats.ReusedTokens += int64(p.reuse)
	}
	clear(e.queue[len(waiting):])
	e.queue = waiting
	e.stats.MaxInFlight = max(e.stats.MaxInFlight, len(e.running))
	return copies
}

func (e *Engine) dropCancelled() {
	cancelled := func(q *sequence) bool {
		if q.ctx.Err() == nil {
			return false
		}
		q.finish(policy.FinishCancelled, context.Cause(q.ctx))
		if q.slot >= 0 {
			e.slots.release(q.slot)
		}
		return true
	}
	e.queue = slices.DeleteFunc(e.queue, cancelled)
	e.running = slices.DeleteFunc(e.running, cancelled)
}

// distribute appends the sampled tokens to their sequences and removes the sequences that have ended.
func (e *Engine) distribute(b *batch, sampled []token) {
	e.stats.Passes++
	e.stats.Batches[len(b.ready)]++
	told := b.routes
	for _, w := range b.work {
		w.q.filled += w.rows
		st := &e.slots.all[w.q.slot]
		st.filled = w.q.filled
		st.routes, told = append(st.routes, told[:w.rows*e.slots.width]...), told[w.rows*e.slots.width:]
	}
	for i, q := range b.ready {
		q.accept(sampled[i])
		e.stats.SampledTokens++
		st := &e.slots.all[q.slot]
		st.tokens = append(st.tokens, sampled[i].id)
		if f, ended := q.ending.Add(sampled[i].id); ended {
			q.out.Routes = slices.Clone(st.routes)
			q.finish(f, nil)
			e.slots.release(q.slot)
		}
	}
	e.running = slices.DeleteFunc(e.running, func(q *sequence) bool { return q.finished })
}

// abort fails all sequences in flight.
func (e *Engine) abort(err error) {
	for _, q := range append(e.running, e.queue...) {
		q.finish(policy.FinishCancelled, err)
	}
	e.running, e.queue = nil, nil
}
