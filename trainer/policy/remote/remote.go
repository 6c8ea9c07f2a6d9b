// Package remote samples on inference servers that other programs run: vLLM and SGLang, over HTTP.
//
// A server has a copy of the weights, and its own arithmetic. So nothing that it samples is used before three things are
// known: the server was told to take the agent's current weights, it reports their version, and the log-probs of some
// tokens that it samples are those of the trainer's own forward pass. A server that was restarted has lost its weights;
// whoever finds that out gives them to it again and proves them again.
package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/policy"
)

// Weights are an agent's weights as its trainer has them.
type Weights interface {
	// Write writes them as a Hugging Face folder, which must not exist.
	Write(ctx context.Context, dir string) error
	// Logits are next-token logits of the trainer's forward pass, a row of the vocabulary after each ids[:end].
	Logits(ctx context.Context, ids []int32, ends []int) ([][]float32, error)
	// Fixed says whether they will change no more.
	Fixed() bool
}

// Options of a policy.
type Options struct {
	Kind        Kind
	URLs        []string // base addresses of servers with the same model
	Key         string   // API key, sent as a bearer token; "": none
	Folder      string   // where weights are written, under the same path for the servers
	Name        string   // begins the names of the folders; of the run and the agent
	Context     int      // tokens a sequence may reach
	Vocabulary  int
	InFlight    int                   // turns in flight at once, at most
	Temperature float64               // of training, > 0
	Tolerance   float64               // most that log-probs may differ from the trainer's on average, in nats
	Patience    time.Duration         // longest wait for a server that is away
	TokenBytes  func(id int32) []byte // for stop strings
	Note        func(text string)     // is told what a server is, and of waits for it
}

// Kind is a family of servers.
type Kind string

// The kinds.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
)

// ErrClosed is returned by calls on a closed policy.
var ErrClosed = errors.New("policy: engine is closed")

// Policy implements policy.Policy.
type Policy struct {
	opt      Options
	weights  Weights
	probe    probe
	replicas []*replica
	router   *policy.Router
	context  int

	life context.Context // ends with Close
	end  context.CancelCauseFunc

	mu      sync.Mutex
	held    *held // what every server is to hold; nil before the first UpdateWeights
	version int64
	loads   int // folders written
	stats   policy.Stats
}

var _ policy.Policy = (*Policy)(nil)

// New finds out what the servers are, and waits for those that do not answer yet. A server that lacks what the policy
// needs is an error that says how to start it.
func New(ctx context.Context, w Weights, opt Options) (*Policy, error) {
	p := &Policy{opt: opt, weights: w, context: opt.Context}
	p.life, p.end = context.WithCancelCause(context.WithoutCancel(ctx))
	for _, url := range opt.URLs {
		p.replicas = append(p.replicas, newReplica(url, opt))
	}
	p.router = policy.NewRouter(len(p.replicas))
	if err := p.removeLeftovers(); err != nil {
		return nil, err
	}
	for _, r := range p.replicas {
		is, err := p.meet(ctx, r)
		if err != nil {
			return nil, errors.Join(err, p.Close(ctx))
		}
		p.context = min(p.context, is.context)
		opt.Note("samples on " + is.at(r) + "; equal seeds may give other tokens, so the run is not deterministic")
	}
	p.probe = newProbe(opt.Vocabulary, p.context)
	return p, nil
}

// Inspect asks the servers what they are. It waits for none, and changes nothing.
func Inspect(ctx context.Context, opt Options) (said []string, err error) {
	for _, url := range opt.URLs {
		r := newReplica(url, opt)
		defer r.close()
		is, err := r.api.inspect(ctx)
		if err != nil {
			return said, fmt.Errorf("the engine at %s: %w", r.url, err)
		}
		said = append(said, is.at(r))
	}
	return said, nil
}

// meet asks a server what it is, as soon as it answers.
func (p *Policy) meet(ctx context.Context, r *replica) (is facts, err error) {
	err = p.patiently(ctx, r, func(ctx context.Context) error {
		is, err = r.api.inspect(ctx)
		return err
	})
	return is, err
}

// Deterministic is false: what a server samples depends on what else is in flight there.
func (p *Policy) Deterministic() bool { return false }

// ContextLimit is the most tokens of prompt plus completion, the servers' own limit included.
func (p *Policy) ContextLimit() int { return p.context }

// Version is the policy version of the weights in use.
func (p *Policy) Version() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version
}

// UpdateWeights writes the weights and has every server take them, once the turns in flight there have ended. It returns
// when all have proved that they did. It waits for servers that are away.
func (p *Policy) UpdateWeights(ctx context.Context, version int64) error {
	before := p.current()
	var next *held
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
	p.held = next
	p.mu.Unlock()
	g, gctx := errgroup.WithContext(ctx)
	for _, r := range p.replicas {
		g.Go(func() error { return p.bring(gctx, r) })
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

// current is what every server is to hold, nil before the first UpdateWeights and after Close.
func (p *Policy) current() *held {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Generate samples one turn; see policy.Policy. A turn is one server's from its first token to its last: what has come of
// it when the server is lost is dropped, and another attempt begins only after that one has ended.
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
	defer context.AfterFunc(p.life, func() { cancel(ErrClosed) })()
	const attempts = 5 // on servers that could prove their weights in between
	for failed := 0; ; {
		s := p.choose(r.Key)
		out, err := s.turn(ctx, p, r)
		p.leave(s)
		var lost *lostError
		if errors.As(err, &lost) && ctx.Err() == nil {
			if lost.turn {
				failed++
			}
			if failed == attempts {
				return policy.Completion{}, fmt.Errorf("policy: the engine at %s failed %d times in one turn, last: %w", s.url, failed, err)
			}
			if p.another() {
				continue
			}
			if err = p.bring(ctx, s); err == nil {
				continue
			}
		}
		var away *AwayError
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

// count adds a completed turn to the statistics and shows its tokens to whoever watches.
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

// seedOf is the seed of a turn: a function of its key and of where it begins. Servers take whole numbers of this size.
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

// Close fails the turns in flight with ErrClosed and removes the weights' folder. The servers keep what they hold.
func (p *Policy) Close(context.Context) error {
	p.end(ErrClosed)
	for _, r := range p.replicas {
		r.close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		return nil
	}
	h := p.held
	p.held = nil
	return h.remove()
}
