package launch

import (
	"context"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/policy"
)

// Policy samples on all ranks of an agent: its router says which of them has a conversation.
type Policy struct {
	policy.Policy // of rank 0
	crew          *Crew
	router        *policy.Router
	vocabulary    int
}

// Sampler gives rank 0's policy those of its followers, each of which has carried out an order to Sample: none if c is nil.
func (c *Crew) Sampler(own policy.Policy, vocabulary int) policy.Policy {
	if c == nil {
		return own
	}
	return &Policy{Policy: own, crew: c, router: policy.NewRouter(1 + len(c.followers)), vocabulary: vocabulary}
}

// Generate samples a turn on one of the ranks; see policy.Policy. Tokens of followers are shown when the turn has ended. It is an error
// that a follower is lost, wherever the turn would be sampled.
func (p *Policy) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	if err := p.crew.Err(); err != nil {
		return policy.Completion{Finish: policy.FinishCancelled, Version: p.Version()}, err
	}
	rank := p.router.Enter(r.Key, func(int) bool { return true })
	defer p.router.Leave(rank)
	if rank == 0 {
		return p.Policy.Generate(ctx, r)
	}
	return p.crew.generate(ctx, p.crew.followers[rank-1], r, p.vocabulary)
}

// UpdateWeights is policy.Policy.UpdateWeights of all ranks, which hold the weights.
func (p *Policy) UpdateWeights(ctx context.Context, version int64) error {
	_, err := p.crew.Do(ctx, Order{Kind: Renew, Version: version}, nil, func(ctx context.Context) error { return p.Policy.UpdateWeights(ctx, version) })
	p.router.Forget()
	return err
}

// Stats adds the counters of all ranks up.
func (p *Policy) Stats() policy.Stats {
	sum := p.Policy.Stats()
	sum.Ranks = []int64{sum.SampledTokens}
	for _, f := range p.crew.followers {
		s := f.asked.counted()
		sum.Ranks = append(sum.Ranks, s.SampledTokens)
		sum = sum.Plus(s)
	}
	return sum
}

// generate has a follower sample a turn. If ctx ends, so does the follower's turn, with the tokens sampled so far.
func (c *Crew) generate(ctx context.Context, f *follower, r policy.Request, vocabulary int) (policy.Completion, error) {
	id, answer := f.asked.add()
	request, err := frame(requestFrame, encodeRequest(id, r))
	if err != nil {
		return policy.Completion{}, err
	}
	_ = f.send(request) // or the process is gone: attend says why
	defer context.AfterFunc(ctx, func() {
		if cancel, err := frame(cancelFrame, order.AppendUint64(nil, id)); err == nil {
			_ = f.send(cancel)
		}
	})()
	var t Turn
	select {
	case t = <-answer:
	case <-c.over:
		return policy.Completion{Finish: policy.FinishCancelled}, c.Err()
	}
	if t.Error != "" {
		return policy.Completion{}, &FailedError{Follower: f.name(), Reason: t.Error, Memory: t.Memory}
	}
	if err := t.check(r, vocabulary); err != nil {
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

// asked are the turns that a follower was asked for and has not answered, by number.
type asked struct {
	mu    sync.Mutex
	last  uint64
	turns map[uint64]chan Turn
	stats policy.Stats // the newest that came with an answer
}

func (a *asked) add() (id uint64, answer <-chan Turn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.turns == nil {
		a.turns = map[uint64]chan Turn{}
	}
	a.last++
	a.turns[a.last] = make(chan Turn, 1)
	return a.last, a.turns[a.last]
}

// take gives an answer to whoever asked. Nobody may have.
func (a *asked) take(content []byte) (wanted bool, err error) {
	id, t, err := decodeTurn(content)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	answer, wanted := a.turns[id]
	if wanted {
		delete(a.turns, id)
		if t.Stats.Passes >= a.stats.Passes { // answers may overtake each other
			a.stats = t.Stats
		}
		answer <- t
	}
	return wanted, nil
}

func (a *asked) counted() policy.Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}
