package gateway

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/gateway/constrained"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// AgentOptions configure an agent behind the gateway.
type AgentOptions struct {
	Name      string
	Main      bool
	Seed      uint64 // the run's seed
	Policy    policy.Sampler
	Tokenizer *tokenizer.Tokenizer
	Limits    agent.Limits    // all except Wall: the program has its own time limit
	Variables *ordered.Object // variables of the chat template; nil: none
	Date      time.Time       // the date that templates print as today; zero: the clock's date
}

// Bounds on the memory that programs can make an agent use.
const (
	maxWaiting   = 256       // requests waiting for their phase to begin
	maxRoots     = 4096      // conversations of an attempt
	maxTurns     = 4096      // turns of a conversation
	maxStored    = 256 << 20 // bytes of an attempt's requests
	maxTemplates = 256       // cached templates, one for each list of functions
)

// AgentServer answers requests for one agent and stores the conversations of each attempt. The worker begins and ends phases.
type AgentServer struct {
	AgentOptions
	inFlight atomic.Int64 // turns being sampled
	waiting  atomic.Int64 // requests waiting for their phase

	mu        sync.Mutex
	closed    bool
	changed   chan struct{} // closed when a phase begins or ends
	phases    map[string]*phase
	templates map[string]*dialect
	grammars  *constrained.Grammars
}

// phase is a training step or an evaluation that is in progress.
type phase struct {
	rules    Rules
	attempts map[string]*attempt // by rollout
	ended    bool
}

// attempt is one attempt of a program at a rollout.
type attempt struct {
	number   int
	ctx      context.Context
	cancel   context.CancelCauseFunc // guarded by the agent's lock
	inFlight sync.WaitGroup          // requests being answered

	mu     sync.Mutex
	forest forest
	failed error      // errors of the engine, if it could not sample a turn
	stored int        // bytes of its requests
	turns  int        // all sampled turns
	calls  []toolCall // calls of the turn that was sampled last
}

var (
	errSuperseded   = refuse(409, "superseded", "another attempt now has this rollout: end this attempt")
	errRolloutEnded = refuse(409, "over", "the rollout has ended, or the team went back to a checkpoint: end the program")
)

// NewAgentServer creates an agent of the gateway.
func NewAgentServer(opt AgentOptions) *AgentServer {
	return &AgentServer{AgentOptions: opt, changed: make(chan struct{}), phases: map[string]*phase{}, templates: map[string]*dialect{},
		grammars: constrained.NewGrammars(opt.Tokenizer)}
}

// Begin admits the requests of a phase.
func (a *AgentServer) Begin(name string, r Rules) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phases[name] = &phase{rules: r, attempts: map[string]*attempt{}}
	a.wakeWaiting()
}

// End refuses further requests of a phase. It also ends the attempts that are still running.
func (a *AgentServer) End(name string) {
	a.mu.Lock()
	p := a.phases[name]
	if p == nil || p.ended {
		a.mu.Unlock()
		return
	}
	p.ended = true
	attempts := slices.Collect(maps.Values(p.attempts))
	p.attempts = nil
	for _, at := range attempts {
		at.cancel(errRolloutEnded)
	}
	a.wakeWaiting()
	a.mu.Unlock()
	for _, at := range attempts {
		at.inFlight.Wait()
	}
}

// Close refuses all requests, including those that wait for a phase.
func (a *AgentServer) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.wakeWaiting()
}

func (a *AgentServer) wakeWaiting() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// enter finds the attempt of a ticket and registers the request with it; endRequest ends the request. If the phase has not
// begun here, enter waits for it.
func (a *AgentServer) enter(ctx context.Context, t Ticket) (_ *attempt, r Rules, endRequest func(), err error) {
	for waiting := false; ; {
		a.mu.Lock()
		if a.closed {
			a.mu.Unlock()
			return nil, Rules{}, nil, errRolloutEnded
		}
		if p := a.phases[t.Phase]; p != nil {
			at, err := p.attempt(t)
			if err == nil {
				at.inFlight.Add(1)
			}
			a.mu.Unlock()
			if err != nil {
				return nil, Rules{}, nil, err
			}
			return at, p.rules, at.inFlight.Done, nil
		}
		changed := a.changed
		a.mu.Unlock()
		if !waiting {
			waiting = true
			if a.waiting.Add(1) > maxWaiting {
				a.waiting.Add(-1)
				return nil, Rules{}, nil, tryAgainLater("%s has not begun %s yet, and %d requests already wait for it", a.Name, t.Phase, maxWaiting)
			}
			defer a.waiting.Add(-1)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, Rules{}, nil, context.Cause(ctx)
		}
	}
}

// attempt returns the attempt of a ticket. A later attempt replaces an earlier one, and the turns of the earlier one
// are dropped.
func (p *phase) attempt(t Ticket) (*attempt, error) {
	if p.ended {
		return nil, errRolloutEnded
	}
	at := p.attempts[t.rollout()]
	switch {
	case at != nil && at.number > t.Attempt:
		return nil, errSuperseded
	case at != nil && at.number == t.Attempt:
		if at.ctx.Err() != nil {
			return nil, errRolloutEnded
		}
		return at, nil
	case at != nil:
		at.cancel(errSuperseded)
	}
	at = &attempt{number: t.Attempt}
	at.ctx, at.cancel = context.WithCancelCause(context.Background())
	p.attempts[t.rollout()] = at
	return at, nil
}

// Conversation is one invocation of an agent in an attempt.
type Conversation struct {
	Task      string      // the text of the last message of a user in the first request
	Rows      []agent.Row // at least one; several if the history was rewritten, or if several turns continue the same turn
	Answer    string      // the text of the last turn, or the arguments of its last call
	Valid     bool        // every turn ended by itself and had the requested form, no call was malformed, and Answer is not empty
	Malformed int         // calls that could not be read
	Arrival   int         // ordinal among the attempt's conversations, in the order of their first requests
	Replies   []string    // ids of its replies
}

// Finish ends an attempt and returns its conversations, in an order that does not depend on when parallel calls
// arrived. An attempt without requests has no conversations.
func (a *AgentServer) Finish(t Ticket) ([]Conversation, error) {
	a.mu.Lock()
	p := a.phases[t.Phase]
	if p == nil {
		a.mu.Unlock()
		return nil, fmt.Errorf("gateway: %s does not play in phase %s", a.Name, t.Phase)
	}
	at, err := p.attempt(t)
	if err == nil {
		at.cancel(errRolloutEnded) // under the lock, so that enter registers no request afterwards
	}
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	at.inFlight.Wait()
	if at.failed != nil {
		return nil, at.failed
	}
	roots := at.forest.roots
	at.forest = forest{}
	for i, r := range roots { // roots of failed requests have been removed
		r.arrival = i
	}
	slices.SortStableFunc(roots, func(x, y *root) int {
		return cmp.Or(cmp.Compare(x.anchor.Turn, y.anchor.Turn), cmp.Compare(x.anchor.Call, y.anchor.Call),
			cmp.Compare(x.hash, y.hash), cmp.Compare(x.repeat, y.repeat))
	})
	out := make([]Conversation, len(roots))
	for i, r := range roots {
		out[i] = r.conversation()
	}
	return out, nil
}

func (r *root) conversation() Conversation {
	c := Conversation{Task: r.opening.task, Rows: r.rows(), Valid: true, Arrival: r.arrival}
	for _, t := range r.turns {
		if t.sampled {
			c.Replies = append(c.Replies, t.reply.id)
		}
		c.Malformed += t.reply.malformed
		c.Valid = c.Valid && t.out.Finish == policy.FinishStop && !t.reply.violation
	}
	last := r.last().reply
	if c.Answer = strings.TrimSpace(last.text); c.Answer == "" && len(last.calls) > 0 {
		c.Answer = last.calls[len(last.calls)-1].Function.Arguments
	}
	c.Valid = c.Valid && c.Malformed == 0 && c.Answer != ""
	return c
}

// forget drops an attempt of an open round.
func (a *AgentServer) forget(t Ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.phases[t.Phase]; p != nil {
		if at := p.attempts[t.rollout()]; at != nil {
			at.cancel(errRolloutEnded)
			delete(p.attempts, t.rollout())
		}
	}
}
