package local

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// TenantOptions are the settings of one tenant.
type TenantOptions struct {
	Context    int                   // tokens that a sequence may reach; 0 means the engine's limit
	Overlap    bool                  // the weights may change under sequences in flight
	TokenBytes func(id int32) []byte // for stop strings; may be nil
}

// Tenant is an agent for which an engine samples, with the engine's model or with adapters on it. It implements
// policy.Policy.
type Tenant struct {
	engine     *Engine
	model      *model.Model
	opt        TenantOptions
	number     int  // its place in Engine.tenants
	ownsEngine bool // Close also closes the engine

	version  int64 // engine.mu guards this and the following fields
	stats    policy.Stats
	inFlight int
	leaving  bool
	gone     chan struct{} // closed when the scheduler holds no work of the tenant
}

var _ policy.Policy = (*Tenant)(nil)

// OpenTenant opens an engine for one tenant, which closes it.
func OpenTenant(ctx context.Context, m *model.Model, opt Options, tenantOpt TenantOptions) (*Tenant, error) {
	e, err := Open(ctx, m, opt)
	if err != nil {
		return nil, err
	}
	t, err := e.Join(ctx, m, tenantOpt)
	if err != nil {
		e.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	t.ownsEngine = true
	return t, nil
}

// Join makes a tenant that samples from m, which is the engine's model, or the model with adapters. The engine reads
// m's weights in place: call UpdateWeights after every change, and close the tenant before freeing them.
func (e *Engine) Join(ctx context.Context, m *model.Model, opt TenantOptions) (*Tenant, error) {
	if opt.Context == 0 || opt.Context > e.opt.Context {
		opt.Context = e.opt.Context
	}
	t := &Tenant{engine: e, model: m, opt: opt, gone: make(chan struct{}), stats: policy.Stats{Batches: map[int]int64{}}}
	e.mu.Lock()
	if t.number = slices.Index(e.tenants, nil); t.number < 0 {
		t.number, e.tenants = len(e.tenants), append(e.tenants, nil)
	}
	e.tenants[t.number] = t
	e.mu.Unlock()
	if err := e.bind(ctx); err != nil {
		e.mu.Lock()
		e.tenants[t.number] = nil
		e.mu.Unlock()
		return nil, err
	}
	return t, nil
}

// bind makes a decoder for the current tenants.
func (e *Engine) bind(ctx context.Context) error {
	return e.dev.Do(ctx, func(*torch.Scope) error {
		e.mu.Lock()
		models := make([]*model.Model, len(e.tenants))
		for i, t := range e.tenants {
			if t != nil {
				models[i] = t.model
			}
		}
		e.mu.Unlock()
		return e.executor.bind(models)
	})
}

// removeDeparting removes departing tenants. Their sequences have been dropped.
func (e *Engine) removeDeparting() {
	for i, t := range e.tenants {
		if t != nil && t.leaving {
			e.pages.forget(t)
			e.tenants[i] = nil
			close(t.gone)
		}
	}
}

// Close fails the tenant's sequences with policy.ErrClosed. When it returns, the engine no longer reads the tenant's adapters.
func (t *Tenant) Close(ctx context.Context) error {
	e := t.engine
	if t.ownsEngine {
		return e.Close(ctx)
	}
	e.mu.Lock()
	before := t.leaving
	t.leaving = true
	e.wake.Signal()
	e.mu.Unlock()
	select {
	case <-t.gone:
	case <-e.done:
		return nil
	}
	if before {
		return nil
	}
	return e.bind(context.WithoutCancel(ctx)) // otherwise the decoder would keep adapters that the caller frees
}

// Deterministic reports whether equal requests give equal bits. This is true on a CPU, where
// every row of every kernel depends on that row's inputs only. It is false if the weights may
// change under sequences in flight or the model mixes rows.
func (t *Tenant) Deterministic() bool {
	return Deterministic(t.engine.dev.IsCUDA(), t.opt.Overlap) && arch.RowIndependent(t.model.Config)
}

// Deterministic returns the same as Tenant.Deterministic for a model with independent rows, for callers that do not have an engine yet.
func Deterministic(onGPU, overlap bool) bool { return !onGPU && !overlap }

// ContextLimit returns the largest number of tokens of prompt plus completion.
func (t *Tenant) ContextLimit() int { return t.opt.Context }

// Constrains returns true: the engine samples under constraints.
func (t *Tenant) Constrains() bool { return true }

// Version returns the policy version of the weights in use.
func (t *Tenant) Version() int64 {
	t.engine.mu.Lock()
	defer t.engine.mu.Unlock()
	return t.version
}

// UpdateWeights informs the engine that the tenant's weights, which it reads in place, have changed and are policy
// version `version`. The engine drops the tenant's cached keys and values. It returns an error if sequences of the
// tenant are in flight, unless TenantOptions.Overlap is set. With Overlap a sequence in flight continues with the new
// weights and the cached keys and values of the old weights; the state of a module's step is dropped. Its completion has
// the version with which it started.
func (t *Tenant) UpdateWeights(_ context.Context, version int64) error {
	e := t.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := t.sequences(); n > 0 && !t.opt.Overlap {
		return fmt.Errorf("policy: weights changed to version %d under %d sequences in flight", version, n)
	}
	e.pages.forget(t)
	model.WeightsChanged(t.model)
	t.version = version
	return nil
}

// sequences returns the number of the tenant's sequences in the engine.
func (t *Tenant) sequences() (n int) {
	for _, all := range [][]*sequence{t.engine.running, t.engine.queue} {
		for _, q := range all {
			if q.tenant == t {
				n++
			}
		}
	}
	return n
}

// Generate samples one turn; see policy.Policy.
func (t *Tenant) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	if err := r.Check(t.model.Config.VocabSize, t.opt.TokenBytes != nil); err != nil {
		return policy.Completion{}, err
	}
	if len(r.Tokens) >= t.opt.Context {
		return policy.Completion{Finish: policy.FinishContext, Version: t.Version()}, nil
	}
	q := newSequence(ctx, r, t)
	if err := t.engine.add(q); err != nil {
		return policy.Completion{}, err
	}
	stop := context.AfterFunc(ctx, t.engine.wakeScheduler)
	defer stop()
	<-q.done
	return q.out, q.err
}

// Stats returns a copy of the counters. Passes counts those with rows of the tenant; Batches counts the sequences of
// all tenants that decoded in them.
func (t *Tenant) Stats() policy.Stats {
	t.engine.mu.Lock()
	defer t.engine.mu.Unlock()
	s := t.stats
	s.Batches = maps.Clone(t.stats.Batches)
	return s
}

// count adds a pass to the counters of the tenants that have rows in it.
func (e *Engine) count(b *batch) {
	counted := map[*Tenant]bool{}
	for _, w := range b.work {
		if t := w.q.tenant; !counted[t] {
			counted[t] = true
			t.stats.Passes++
			t.stats.Batches[len(b.ready)]++
		}
	}
}
