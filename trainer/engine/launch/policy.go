package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/engine/internal/router"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// RankedPolicy samples on all ranks of an agent: its router selects the rank for a conversation.
type RankedPolicy struct {
	policy.Policy // of rank 0
	group         *RankGroup
	router        *router.Router
	model         arch.Config
	versions      versions
}

// Sampler returns a policy of all ranks, whose followers have executed an order to Sample. If g is nil it returns own.
func (g *RankGroup) Sampler(own policy.Policy, model arch.Config) policy.Policy {
	if g == nil {
		return own
	}
	return &RankedPolicy{Policy: own, group: g, router: router.New(1 + len(g.followers)), model: model,
		versions: versions{oldest: own.Version(), newest: own.Version()}}
}

// Generate samples a turn on one of the ranks; see policy.Policy. A follower's tokens are passed on when the turn has
// ended. A lost follower is an error, even if another rank would sample the turn.
func (p *RankedPolicy) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	if err := p.group.Err(); err != nil {
		return policy.Completion{Finish: policy.FinishCancelled, Version: p.Version()}, err
	}
	// A constraint exists in this process only.
	rank := p.router.Enter(r.Key, func(rank int) bool { return rank == 0 || r.Constraint == nil })
	defer p.router.Leave(rank)
	if rank == 0 {
		return p.Policy.Generate(ctx, r)
	}
	return p.ask(ctx, p.group.followers[rank-1], r)
}

// Constrains reports whether rank 0 samples under constraints.
func (p *RankedPolicy) Constrains() bool { return policy.Constrains(p.Policy) }

// UpdateWeights calls policy.Policy.UpdateWeights on all ranks, which have the weights already.
func (p *RankedPolicy) UpdateWeights(ctx context.Context, version int64) error {
	done := p.versions.renew(version)
	_, err := p.group.Do(ctx, Order{Kind: UpdateWeights, Version: version}, nil,
		func(ctx context.Context) error { return p.Policy.UpdateWeights(ctx, version) })
	done()
	p.router.Forget()
	return err
}

// Stats returns the sums of all ranks' counters.
func (p *RankedPolicy) Stats() policy.Stats {
	sum := p.Policy.Stats()
	sum.Ranks = []int64{sum.SampledTokens}
	for _, f := range p.group.followers {
		s := f.pending.counted()
		sum.Ranks = append(sum.Ranks, s.SampledTokens)
		sum = sum.Plus(s)
	}
	return sum
}

// ask requests a turn from a follower. If ctx ends, the follower's turn ends, too, with the tokens sampled so far.
func (p *RankedPolicy) ask(ctx context.Context, f *followerHandle, r policy.Request) (policy.Completion, error) {
	from := p.versions.from()
	id, answer := f.pending.add()
	content, err := encodeColumns(turnRequest{id, r.Tokens, r.Sampling, r.Key, r.Computed})
	var asks []byte
	if err == nil {
		asks, err = frame(requestFrame, content)
	}
	if err != nil {
		f.pending.forget(id)
		return policy.Completion{}, err
	}
	_ = f.send(asks) // if the process is gone, handleReplies reports the reason
	defer context.AfterFunc(ctx, func() {
		if cancel, err := frame(cancelFrame, binary.LittleEndian.AppendUint64(nil, id)); err == nil {
			_ = f.send(cancel)
		}
	})()
	var t Turn
	select {
	case t = <-answer:
	case <-p.group.ended:
		return policy.Completion{Finish: policy.FinishCancelled}, p.group.Err()
	}
	if t.Error != "" {
		return policy.Completion{}, &FailedError{Follower: f.name(), Reason: t.Error, OutOfMemory: t.OutOfMemory}
	}
	if err := p.check(ctx, r, t, from); err != nil {
		return policy.Completion{}, &FailedError{Follower: f.name(), Reason: err.Error()}
	}
	if r.OnToken != nil {
		for _, id := range t.Tokens {
			r.OnToken(id)
		}
	}
	if t.Finish == policy.FinishCancelled {
		return t.Completion, context.Cause(ctx)
	}
	return t.Completion, nil
}

// check refuses an answer that a correct follower cannot give to this request. `from` is the oldest version that the turn may have.
func (p *RankedPolicy) check(ctx context.Context, r policy.Request, t Turn, from int64) error {
	if err := t.check(r, p.model); err != nil {
		return err
	}
	if t.Finish != policy.FinishCancelled {
		return p.versions.check(from, t.Version)
	}
	if ctx.Err() == nil {
		return errors.New("a turn was cancelled without a request to cancel it")
	}
	return nil // it may not have had a version yet
}

// versions is the range of versions that turns may have: during an update each rank changes at its own time.
type versions struct {
	mu             sync.Mutex
	oldest, newest int64 // equal, except during an update
}

// renew begins an update of all ranks to a version; done ends it.
func (v *versions) renew(version int64) (done func()) {
	set := func(to *int64) {
		v.mu.Lock()
		defer v.mu.Unlock()
		*to = version
	}
	set(&v.newest)
	return func() { set(&v.oldest) }
}

// from returns the oldest version that a turn requested now may have.
func (v *versions) from() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.oldest
}

// check refuses a turn of a version that no rank had since its request.
func (v *versions) check(from, got int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if got < min(from, v.newest) || got > max(from, v.newest) {
		return fmt.Errorf("a turn of version %d, requested when the policy had version %d", got, from)
	}
	return nil
}

// pendingTurns holds the requests that a follower has not answered, by number.
type pendingTurns struct {
	mu    sync.Mutex
	last  uint64
	turns map[uint64]chan Turn
	stats policy.Stats // the newest that came with an answer
}

func (a *pendingTurns) add() (id uint64, answer <-chan Turn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.turns == nil {
		a.turns = map[uint64]chan Turn{}
	}
	a.last++
	a.turns[a.last] = make(chan Turn, 1)
	return a.last, a.turns[a.last]
}

// forget removes a request that was not sent.
func (a *pendingTurns) forget(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.turns, id)
}

// take delivers an answer to its request. wanted reports whether there is such a request.
func (a *pendingTurns) take(content []byte) (wanted bool, err error) {
	in, err := decodeColumns[turnAnswer](content)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	waiting, wanted := a.turns[in.ID]
	if wanted {
		delete(a.turns, in.ID)
		if in.Turn.Stats.Passes >= a.stats.Passes { // answers may overtake each other
			a.stats = in.Turn.Stats
		}
		waiting <- in.Turn
	}
	return wanted, nil
}

func (a *pendingTurns) counted() policy.Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}
