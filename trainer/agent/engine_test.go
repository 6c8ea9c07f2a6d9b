package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// scripted is an engine that returns prepared turns, one for each request. It checks that each request continues the previous one with the
// same key, as a real engine expects.
type scripted struct {
	t     testing.TB
	turns []scriptedTurn
	limit int // context limit; 0: a large one

	mu       sync.Mutex
	requests []policy.Request
}

type scriptedTurn struct {
	tokens  []int32
	finish  policy.Finish // "" is FinishStop
	version int64
	err     error
	wait    bool // wait until ctx is cancelled, then return a cancelled completion and the cause
	edit    func(*policy.Completion)
}

func (e *scripted) ContextLimit() int {
	if e.limit == 0 {
		return 1 << 20
	}
	return e.limit
}

func (e *scripted) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, computed := len(e.requests), 0
	if n > 0 && r.Key == e.requests[n-1].Key {
		last := slices.Concat(e.requests[n-1].Tokens, e.turns[n-1].tokens)
		if len(r.Tokens) < len(last) || !slices.Equal(r.Tokens[:len(last)], last) {
			e.t.Errorf("the tokens of request %d do not continue request %d and its sampled tokens", n, n-1)
		}
		computed = len(last) - 1
	}
	if r.Computed != computed {
		e.t.Errorf("request %d: got %d computed tokens, want %d", n, r.Computed, computed)
	}
	r.Tokens = slices.Clone(r.Tokens)
	e.requests = append(e.requests, r)
	if n >= len(e.turns) {
		return policy.Completion{}, fmt.Errorf("turn %d was requested, but the script has %d turns", n, len(e.turns))
	}
	turn := e.turns[n]
	if turn.err != nil {
		return policy.Completion{}, turn.err
	}
	out := policy.Completion{Tokens: slices.Clone(turn.tokens), Finish: turn.finish, Version: turn.version}
	if turn.wait {
		<-ctx.Done()
		out.Finish = policy.FinishCancelled
	}
	if out.Finish == "" {
		out.Finish = policy.FinishStop
	}
	if room := r.Sampling.MaxNew; len(out.Tokens) > room { // a real engine cuts turns, too
		out.Tokens, out.Finish = out.Tokens[:room], policy.FinishLength
	}
	for i := range out.Tokens {
		out.LogProbs = append(out.LogProbs, -float32(n+1)-float32(i)/64)
	}
	if turn.edit != nil {
		turn.edit(&out)
	}
	if turn.wait {
		return out, context.Cause(ctx)
	}
	return out, nil
}
