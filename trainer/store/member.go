package store

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"
)

// Member is one agent's place in the run. Writes are made through it and carry its epoch; once
// another worker has taken the place, they fail with a FencedError and change nothing. Waits should be
// given contexts made from Context, so that they end with the place.
type Member struct {
	*Store
	agent      string
	epoch      int64
	leaseToken string // value of its lease: tells this worker from any other of the agent
	nonce      string

	offers offers // what it could start from
	queues queues // of invocations

	ctx    context.Context
	cancel context.CancelCauseFunc
	beats  sync.WaitGroup
}

// Agent is the agent whose place this is.
func (m *Member) Agent() string { return m.agent }

// Epoch counts the workers that have had the place, this one included.
func (m *Member) Epoch() int64 { return m.epoch }

// fencingToken is what the store must have for the member to write: its epoch and the round's nonce. Epochs alone would
// not do, since a store that was wiped counts anew.
func (m *Member) fencingToken() string { return strconv.FormatInt(m.epoch, 10) + ":" + m.nonce }

// fencedBy is the error of a writer whose fencing token is not the store's.
func (m *Member) fencedBy(reply []any) *FencedError {
	e := &FencedError{Agent: m.agent, Epoch: m.epoch, Now: clip(word(reply, 1))}
	if now, err := strconv.ParseInt(e.Now, 10, 64); err != nil || now <= m.epoch {
		e.Now = "" // of another count
	}
	return e
}

// Nonce is a random name of the round.
func (m *Member) Nonce() string { return m.nonce }

// Context ends when the run does, or when the member has lost its place; its cause says why: a
// *StopError, a *FencedError or ErrClosed.
func (m *Member) Context() context.Context { return m.ctx }

// Leave gives the place up, so that another worker can have it at once.
func (m *Member) Leave(ctx context.Context) error {
	m.cancel(ErrClosed)
	m.beats.Wait()
	m.queues.close()
	_, err := m.write(ctx, leaveScript, "leaving", []string{m.key("lease", m.agent), m.key("claimed", m.agent)}, m.leaseToken)
	var fenced *FencedError
	if errors.As(err, &fenced) {
		return nil // the place is another's already
	}
	return err
}

// beat renews the lease, which covers all that the worker has claimed, until the member leaves or is
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
		// Not in a batch: a lease waits for no other command.
		reply, err := beatScript.Run(ctx, m.rdb, []string{m.key("epochs"), m.key("lease", m.agent), m.key("stop")},
			m.agent, m.fencingToken(), m.leaseToken, m.opts.Lease.Milliseconds()).Slice()
		switch {
		case err != nil:
		case word(reply, 0) == "fenced":
			m.cancel(m.fencedBy(reply))
		case word(reply, 0) == "stopped":
			m.checkStop()
		}
		cancel()
	}
}
