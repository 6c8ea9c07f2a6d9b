package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Member is one agent's place in the run. Writes are made through it and carry its epoch; once
// another worker has taken the place, they fail with a FencedError and change nothing. Waits should be
// given contexts made from Context, so that they end with the place.
type Member struct {
	*Store
	agent string
	epoch int64
	token string // tells this worker from any other of the agent
	nonce string

	ctx    context.Context
	cancel context.CancelCauseFunc
	beats  sync.WaitGroup

	mu       sync.Mutex
	inFlight map[string]claim // by stream entry: claimed and not completed
}

// Join takes an agent's place in the run. The first worker to join while none is alive begins the
// run, at the version it says; whatever later versions left in the store is dropped. The others must
// agree with its greeting, or learn what differs, and must start at the version that the store has
// for their agent.
//
// A place that is taken is given up by its worker's Leave, or when its lease runs out: Join waits for
// that for one lease, so that a worker can be started again right after a crash, and then refuses.
func (s *Store) Join(ctx context.Context, agent string, h Hello) (*Member, error) {
	g := greeting{Protocol: ProtocolVersion, Agents: h.Agents, Config: h.Config}
	if err := g.check(); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if !slices.Contains(h.Agents, agent) || h.Version < 0 {
		return nil, fmt.Errorf("store: %s at version %d is not an agent of %v", agent, h.Version, h.Agents)
	}
	hello, err := encode(g)
	if err != nil {
		return nil, fmt.Errorf("store: the greeting: %w", err)
	}
	m := &Member{Store: s, agent: agent, token: rand.Text(), inFlight: map[string]claim{}}
	patience := time.Now().Add(s.opts.Lease + s.opts.Lease/4)
	for left := int64(math.MaxInt64); ; {
		refusal, ttl, err := m.tryJoin(ctx, h, g, hello)
		if err != nil {
			return nil, err
		}
		if refusal == nil {
			break
		}
		if ttl > left || time.Now().After(patience) { // the lease was renewed, or outlived a dead worker
			return nil, refusal
		}
		left = ttl
		select {
		case <-time.After(s.opts.Lease / 20):
		case <-ctx.Done():
			return nil, errors.Join(refusal, context.Cause(ctx))
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
	s.mu.Lock()
	s.agents = slices.Clone(h.Agents)
	s.mu.Unlock()
	m.ctx, m.cancel = context.WithCancelCause(s.ctx)
	m.beats.Go(m.beat)
	return m, nil
}

// tryJoin asks for the place once. A refusal may pass when a dead worker's lease runs out; an error
// does not. ttl is what is left of the lease of the agent's present worker, in ms.
func (m *Member) tryJoin(ctx context.Context, h Hello, g greeting, hello string) (refusal error, ttl int64, err error) {
	keys := []string{m.key("epochs"), m.key("ready"), m.key("meta"), m.key("versions"), m.key("phases"), m.key("stop"), m.key("lease", m.agent)}
	args := []any{m.agent, m.token, m.opts.Lease.Milliseconds(), hello, h.Version, m.key(""), rand.Text()}
	for _, a := range h.Agents {
		keys = append(keys, m.key("lease", a))
		args = append(args, a)
	}
	var reply []any
	err = m.retry(ctx, "the store", "a place for "+m.agent, func(ctx context.Context) (err error) {
		reply, err = joinScript.Run(ctx, m.rdb, keys, args...).Slice()
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	alive := clip(word(reply, 1))
	switch word(reply, 0) {
	case "joined":
		if m.epoch, err = strconv.ParseInt(word(reply, 1), 10, 64); err != nil {
			return nil, 0, &MalformedError{Key: m.key("epochs"), Msg: err.Error()}
		}
		m.nonce = word(reply, 2)
		return nil, 0, nil
	case "held":
		ttl, _ = reply[1].(int64)
		return fmt.Errorf("store: another worker of %s is alive in run %s; one agent has one worker", m.agent, m.opts.Run), ttl, nil
	case "differs":
		there, err := decode[greeting](m.key("meta"), word(reply, 2))
		if err != nil {
			return nil, 0, err
		}
		return fmt.Errorf("store: %s differs from the worker(s) of%s: %s", m.agent, alive, g.differences(&there)), 0, nil
	case "stopped":
		return fmt.Errorf("store: run %s was stopped by %s (%s), and not all of its workers have left:%s", m.opts.Run, clip(word(reply, 2)), clip(word(reply, 3)), alive), 0, nil
	case "version":
		return fmt.Errorf("store: %s starts at version %d, but in run %s, where%s is alive, it is at version %s; stop all workers and resume them from the same checkpoint",
			m.agent, h.Version, m.opts.Run, alive, clip(word(reply, 2))), 0, nil
	}
	return nil, 0, &MalformedError{Key: m.key("meta"), Msg: fmt.Sprintf("join answered %v", reply)}
}

// Agent is the agent whose place this is.
func (m *Member) Agent() string { return m.agent }

// Epoch counts the workers that have had the place, this one included.
func (m *Member) Epoch() int64 { return m.epoch }

func (m *Member) epochText() string { return strconv.FormatInt(m.epoch, 10) }

// Nonce is a random name of the run as it has been since nobody was alive: a store that answers with
// another one has been wiped or taken over.
func (m *Member) Nonce() string { return m.nonce }

// Context ends when the run does, or when the member has lost its place; its cause says why: a
// *StopError, a *FencedError or ErrClosed.
func (m *Member) Context() context.Context { return m.ctx }

// Leave gives the place up, so that another worker can have it at once.
func (m *Member) Leave(ctx context.Context) error {
	m.cancel(ErrClosed)
	m.beats.Wait()
	_, err := m.run(ctx, leaveScript, "leaving", []string{m.key("lease", m.agent)}, m.token)
	var fenced *FencedError
	if errors.As(err, &fenced) {
		return nil // the place is another's already
	}
	return err
}

// beat renews the lease, and the leases of all claimed invocations, until the member leaves or is
// replaced. A store that cannot be reached for a while is no reason to stop: the place is lost only
// if another worker takes it.
func (m *Member) beat() {
	tick := time.NewTicker(m.opts.Lease / 4)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(m.ctx, m.opts.Lease/2)
		reply, err := beatScript.Run(ctx, m.rdb, []string{m.key("epochs"), m.key("lease", m.agent)}, m.agent, m.epochText(), m.token, m.opts.Lease.Milliseconds()).Slice()
		if err == nil && word(reply, 0) == "fenced" {
			m.cancel(&FencedError{Agent: m.agent, Epoch: m.epoch, Now: word(reply, 1)})
		}
		if err == nil {
			m.renewClaims(ctx)
		}
		cancel()
	}
}
