package store

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"
)

// Member is one agent's place in the run. Its writes carry its epoch; once another worker has taken the place, they fail
// with a FencedError and change nothing. Contexts of waits should be derived from Context or come from WithPlace, so that the
// waits end with the place.
type Member struct {
	*Store
	agent      string
	epoch      int64
	leaseToken string // value of its lease, which distinguishes this worker from other workers of the agent
	nonce      string

	offers offers // states from which it could start
	queues queues // positions in the streams of invocations

	ctx    context.Context
	cancel context.CancelCauseFunc
	beats  sync.WaitGroup
}

// Agent returns the name of the agent.
func (m *Member) Agent() string { return m.agent }

// Epoch returns the number of workers that have had the place, including this one.
func (m *Member) Epoch() int64 { return m.epoch }

// fencingToken returns the member's epoch and the round's nonce. A write has an effect only if the store has the same
// values. The epoch alone is not enough, because a store that lost its data counts from 1 again.
func (m *Member) fencingToken() string { return strconv.FormatInt(m.epoch, 10) + ":" + m.nonce }

// fencedBy returns the error of a writer whose fencing token differs from the token in the store.
func (m *Member) fencedBy(reply []any) *FencedError {
	e := &FencedError{Agent: m.agent, Epoch: m.epoch, Now: clip(word(reply, 1))}
	if now, err := strconv.ParseInt(e.Now, 10, 64); err != nil || now <= m.epoch {
		e.Now = "" // the store lost its data and counts from 1 again
	}
	return e
}

// Nonce returns a random name of the round.
func (m *Member) Nonce() string { return m.nonce }

// Context returns a context that ends when the run ends or the member loses its place. Its cause is a *StopError, a
// *FencedError or ErrClosed.
func (m *Member) Context() context.Context { return m.ctx }

// WithPlace returns a context that ends when ctx ends, or when Context does. Its cause is the cause of that end. The caller must call
// cancel.
func WithPlace(ctx context.Context, m *Member) (_ context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(m.ctx, func() { end(context.Cause(m.ctx)) })
	return ctx, func() { stop(); end(nil) }
}

// Leave gives up the place, so that another worker can take it at once.
func (m *Member) Leave(ctx context.Context) error {
	m.cancel(ErrClosed)
	m.beats.Wait()
	m.queues.close()
	_, err := m.write(ctx, leaveScript, "leaving", values{"lease": m.key("lease", m.agent), "claimed": m.key("claimed", m.agent), "leaseToken": m.leaseToken})
	var fenced *FencedError
	if errors.As(err, &fenced) {
		return nil // another worker already has the place
	}
	return err
}

// beat renews the lease, and with it all claims, until the member leaves or is replaced. It does not stop while the
// store cannot be reached: the place is lost only when another worker takes it.
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
		// The script is not sent in a batch, so that it never waits for other commands.
		keys, args := beatScript.inOrder(values{"lease": m.key("lease", m.agent), "stop": m.key("stop"),
			"leaseToken": m.leaseToken, "milliseconds": m.opts.Lease.Milliseconds()}.writtenBy(m))
		reply, err := beatScript.Run(ctx, m.rdb, keys, args...).Slice()
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
