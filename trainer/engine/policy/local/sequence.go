package local

import (
	"context"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// sequence is one turn being sampled.
type sequence struct {
	tenant        *Tenant
	ctx           context.Context
	sampling      policy.Sampling
	key           [2]uint32
	tokens        []int32 // prompt and sampled tokens
	prompt        int
	state         slotState
	onToken       func(id int32)
	constraint    policy.Constraint // nil: any token is allowed
	constraintErr error             // error of the constraint
	ending        *policy.Ending
	out           policy.Completion
	err           error
	finished      bool
	done          chan struct{}
}

// slotState holds a sequence's position in the queue, its slot, and its progress in the cache.
type slotState struct {
	arrival  int64      // position in the order of arrival
	before   int64      // number of sequences launched before it arrived
	rank     int64      // in the queue; see sortQueue
	launched bool       // it was in flight, and may have been put back later
	cached   *cachedSeq // nil while waiting
	slot     int        // -1 while waiting
	computed int        // tokens that went through the model before this flight
	filled   int        // tokens whose keys and values are in the cache
	listed   []int      // for each group of layers, the number of the cached sequence's blocks in the tables on the device
}

// token is a sampled id with its log-prob under softmax(logits/tau).
type token struct {
	id      int32
	logProb float32
}

func newSequence(ctx context.Context, r policy.Request, t *Tenant) *sequence {
	k := r.Key
	return &sequence{
		tenant: t, ctx: ctx, sampling: r.Sampling, state: slotState{slot: -1, computed: r.Computed}, prompt: len(r.Tokens), onToken: r.OnToken,
		constraint: r.Constraint, done: make(chan struct{}),
		key:    mgrpo.SampleKey(k.RunSeed, k.Step, k.Query, k.Rollout, k.Agent, k.Root),
		tokens: slices.Clone(r.Tokens), ending: policy.NewEnding(r.Sampling, len(r.Tokens), t.opt.Context, t.opt.TokenBytes),
	}
}

// cancelled returns why a sequence must end early, or nil.
func (q *sequence) cancelled() error {
	if q.tenant.leaving {
		return policy.ErrClosed
	}
	return context.Cause(q.ctx)
}

func (q *sequence) accept(t token) {
	q.tokens = append(q.tokens, t.id)
	q.out.LogProbs = append(q.out.LogProbs, t.logProb)
	if q.onToken != nil {
		q.onToken(t.id)
	}
}

func (q *sequence) finish(f policy.Finish, err error) {
	q.out.Tokens = q.tokens[q.prompt:]
	q.out.Finish = f
	q.err, q.finished = err, true
	close(q.done)
}
