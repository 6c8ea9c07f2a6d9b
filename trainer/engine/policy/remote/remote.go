// Package remote samples on inference servers that other programs run: vLLM and SGLang, over HTTP.
//
// A server has a copy of the weights and its own arithmetic. So its tokens are used only after three
// checks: it has accepted the agent's current weights, it reports their version, and the log-probs of
// some tokens that it samples agree with the trainer's own. A server that was restarted has lost its
// weights. The request that detects this sends them again and repeats the checks.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/engine/internal/router"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Weights gives access to an agent's weights in its trainer.
type Weights interface {
	// Write writes the weights as a Hugging Face folder, which must not exist.
	Write(ctx context.Context, dir string) error
	// Logits returns next-token logits of the trainer's forward pass, with a row of the vocabulary for each ids[:end].
	Logits(ctx context.Context, ids []int32, ends []int) ([][]float32, error)
	// Frozen reports whether the weights will not change again.
	Frozen() bool
}

// Options are the options of a policy.
type Options struct {
	Kind        Kind
	URLs        []string // base addresses of servers with the same model
	Key         string   // API key, sent as a bearer token; "": no key
	Folder      string   // folder for weights, under the same path on the servers
	Name        string   // beginning of folder names; unique to the run and the agent
	Context     int      // tokens that a sequence may reach
	Vocabulary  int
	InFlight    int                   // largest number of turns in flight
	Temperature float64               // temperature of training, > 0
	Tolerance   float64               // largest average difference of log-probs from the trainer's, in nats
	Patience    time.Duration         // longest wait for an absent server
	TokenBytes  func(id int32) []byte // for stop strings
	Note        func(text string)     // receives descriptions of servers, and notes on waits
}

// Kind is a family of servers.
type Kind string

// The kinds.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
)

// Policy implements policy.Policy.
type Policy struct {
	opt      Options
	weights  Weights
	probe    probe
	replicas []*replica
	router   *router.Router
	context  int

	life context.Context // ends with Close
	end  context.CancelCauseFunc

	mu      sync.Mutex
	newest  *weightsCopy // the weights that every server should have; nil before the first UpdateWeights
	version int64
	loads   int // number of folders written
	stats   policy.Stats
}

var _ policy.Policy = (*Policy)(nil)

// New identifies the servers, and waits for those that do not answer yet. If a server lacks a feature that the policy
// needs, the error explains how to start it.
func New(ctx context.Context, w Weights, opt Options) (*Policy, error) {
	p := &Policy{opt: opt, weights: w, context: opt.Context}
	p.life, p.end = context.WithCancelCause(context.WithoutCancel(ctx))
	for _, url := range opt.URLs {
		p.replicas = append(p.replicas, newReplica(url, opt))
	}
	p.router = router.New(len(p.replicas))
	if err := p.removeLeftovers(); err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	for _, r := range p.replicas {
		info, err := p.identify(ctx, r)
		if err != nil {
			return nil, errors.Join(err, p.Close(ctx))
		}
		p.context = min(p.context, info.context)
		opt.Note("samples on " + info.describe(r) + "; equal seeds may give other tokens, so the run is not deterministic")
	}
	p.probe = newProbe(opt.Vocabulary, p.context)
	return p, nil
}

// Inspect describes the servers. It does not wait for absent ones, and does not change anything.
func Inspect(ctx context.Context, opt Options) (servers []string, err error) {
	for _, url := range opt.URLs {
		r := newReplica(url, opt)
		defer r.close()
		info, err := r.api.inspect(ctx)
		if err != nil {
			return servers, fmt.Errorf("the engine at %s: %w", r.url, err)
		}
		servers = append(servers, info.describe(r))
	}
	return servers, nil
}

// identify returns a server's description, as soon as it answers.
func (p *Policy) identify(ctx context.Context, r *replica) (info serverInfo, err error) {
	err = p.retryWhileAway(ctx, r, func(ctx context.Context) error {
		info, err = r.api.inspect(ctx)
		return err
	})
	return info, err
}

// Deterministic returns false: a server's samples depend on its other requests.
func (p *Policy) Deterministic() bool { return false }

// ContextLimit returns the largest number of tokens of prompt plus completion, also limited by the servers.
func (p *Policy) ContextLimit() int { return p.context }

// Version returns the policy version of the weights in use.
func (p *Policy) Version() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version
}

// UpdateWeights writes the weights, and makes every server load them once its turns in flight have ended. It returns when all
// servers have passed the checks (see verifyWeights). It waits for absent servers.
func (p *Policy) UpdateWeights(ctx context.Context, version int64) error {
	before := p.currentCopy()
	var next *weightsCopy
	if before != nil && before.fixed {
		same := *before
		next, same.version = &same, version
	} else {
		var err error
		if next, err = p.write(ctx, version, before); err != nil {
			return fmt.Errorf("weights of version %d for the engine: %w", version, err)
		}
	}
	p.mu.Lock()
	p.newest = next
	p.mu.Unlock()
	g, gctx := errgroup.WithContext(ctx)
	for _, r := range p.replicas {
		g.Go(func() error { return p.loadWeights(gctx, r) })
	}
	err := g.Wait()
	if err == nil {
		p.mu.Lock()
		p.version = version
		p.mu.Unlock()
		p.router.Forget()
	} else {
		err = fmt.Errorf("weights of version %d: %w", version, err)
	}
	if before != nil && before.stamp != next.stamp {
		err = errors.Join(err, before.remove())
	}
	return err
}

// currentCopy returns the weights that every server should have, or nil before the first UpdateWeights and after Close.
func (p *Policy) currentCopy() *weightsCopy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newest
}

// Generate samples one turn; see policy.Policy. A turn is sampled by one server from its first token to its last. If
// that server is lost, its tokens are dropped, and another attempt begins after the first has ended.
func (p *Policy) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	if err := r.Check(p.opt.Vocabulary, p.opt.TokenBytes != nil); err != nil {
		return policy.Completion{}, err
	}
	if r.Constraint != nil {
		return policy.Completion{}, policy.ErrConstraint
	}
	if len(r.Tokens) >= p.context {
		return policy.Completion{Finish: policy.FinishContext, Version: p.Version()}, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.life, func() { cancel(policy.ErrClosed) })()
	const attempts = 5 // with servers that passed the checks in between
	for failed := 0; ; {
		s := p.choose(r.Key)
		out, err := s.turn(ctx, p, r)
		p.endTurn(s)
		var lost *lostError
		if errors.As(err, &lost) && ctx.Err() == nil {
			if lost.turn {
				failed++
			}
			if failed == attempts {
				return policy.Completion{}, fmt.Errorf("policy: the engine at %s failed %d times in one turn, last: %w", s.url, failed, err)
			}
			if p.anyAvailable() {
				continue
			}
			if err = p.loadWeights(ctx, s); err == nil {
				continue
			}
		}
		var away *UnreachableError
		switch {
		case err == nil:
			p.count(r, out)
			return out, nil
		case ctx.Err() != nil && !errors.As(err, &away):
			return policy.Completion{Finish: policy.FinishCancelled, Version: p.Version()}, context.Cause(ctx)
		}
		return policy.Completion{}, fmt.Errorf("policy: %w", err)
	}
}

// count adds a completed turn to the statistics and passes its tokens to OnToken.
func (p *Policy) count(r policy.Request, out policy.Completion) {
	p.mu.Lock()
	p.stats.Requests++
	p.stats.PromptTokens += int64(len(r.Tokens))
	p.stats.SampledTokens += int64(len(out.Tokens))
	p.mu.Unlock()
	if r.OnToken != nil {
		for _, id := range out.Tokens {
			r.OnToken(id)
		}
	}
}

// seedOf returns the seed of a turn: a function of its key and its position. Servers accept integers of this size.
func seedOf(k policy.Key, prompt int) int64 {
	key := mgrpo.SampleKey(k.RunSeed, k.Step, k.Query, k.Rollout, k.Agent, k.Root)
	turn := mgrpo.StreamKey("mgrpo.turn.v1", uint64(key[0])<<32|uint64(key[1]), k.Agent, int64(prompt))
	return int64(turn[0] >> 1)
}

// Stats returns a copy of the counters.
func (p *Policy) Stats() policy.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.MaxInFlight = p.router.MostInFlight()
	return s
}

// Close fails the turns in flight with policy.ErrClosed and removes the weights' folder. The servers keep their weights.
func (p *Policy) Close(context.Context) error {
	p.end(policy.ErrClosed)
	for _, r := range p.replicas {
		r.close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest == nil {
		return nil
	}
	w := p.newest
	p.newest = nil
	return w.remove()
}
