package local

import (
	"bytes"
	"context"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/policy"
)

// sequence is one turn being sampled.
type sequence struct {
	ctx      context.Context
	sampling policy.Sampling
	key      [2]uint32
	tokens   []int32 // prompt and sampled tokens
	prompt   int
	slot     int // -1 while waiting
	filled   int // tokens whose keys and values are in the cache
	onToken  func(id int32)
	tail     []byte
	out      policy.Completion
	err      error
	finished bool
	done     chan struct{}
}

// token is a sampled id with its log-probs under softmax(logits/tau) and under the truncated distribution.
type token struct {
	id                 int32
	logProb, truncated float32
}

func newSequence(ctx context.Context, r policy.Request) *sequence {
	k := r.Key
	return &sequence{
		ctx: ctx, sampling: r.Sampling, slot: -1, prompt: len(r.Tokens), onToken: r.OnToken, done: make(chan struct{}),
		key:    mgrpo.SampleKey(k.RunSeed, k.Step, k.Query, k.Rollout, k.Agent, k.Invocation),
		tokens: slices.Clone(r.Tokens),
	}
}

func (q *sequence) accept(t token) {
	q.tokens = append(q.tokens, t.id)
	q.out.LogProbs = append(q.out.LogProbs, t.logProb)
	q.out.TruncatedLogProbs = append(q.out.TruncatedLogProbs, t.truncated)
	if q.onToken != nil {
		q.onToken(t.id)
	}
}

// ended says whether the sequence ends with the token just accepted, and why.
func (q *sequence) ended(opt *Options) (policy.Finish, bool) {
	id := q.tokens[len(q.tokens)-1]
	switch {
	case slices.Contains(q.sampling.StopIDs, id), q.stopString(opt, id):
		return policy.FinishStop, true
	case len(q.tokens)-q.prompt >= q.sampling.MaxNew:
		return policy.FinishLength, true
	case len(q.tokens) >= opt.Context:
		return policy.FinishContext, true
	}
	return "", false
}

// stopString appends the token's bytes to the turn's text and says whether a stop string ends in these bytes.
func (q *sequence) stopString(opt *Options, id int32) bool {
	if len(q.sampling.StopStrings) == 0 {
		return false
	}
	fresh := opt.TokenBytes(id)
	q.tail = append(q.tail, fresh...)
	for _, s := range q.sampling.StopStrings {
		from := max(len(q.tail)-len(fresh)-len(s)+1, 0)
		if bytes.Contains(q.tail[from:], []byte(s)) {
			return true
		}
	}
	return false
}

func (q *sequence) finish(f policy.Finish, err error) {
	q.out.Tokens = q.tokens[q.prompt:]
	q.out.Finish = f
	q.err, q.finished = err, true
	close(q.done)
}
