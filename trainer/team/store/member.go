package store

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"
)

// Member is one agent's place in the run. Its fields are the parts of the shared data. The writes of all parts carry its
// epoch; once another worker has taken the place, they fail with a FencedError and change nothing. Contexts of waits should
// be derived from Context or come from WithPlace, so that the waits end with the place.
type Member struct {
	Round       *Round       // the common start, barriers and stop of the team's workers
	Phases      *Phases      // plans, outcomes and trajectories of a phase
	Invocations *Invocations // calls of sub-agents and their answers
	Versions    *Versions    // committed training steps
	Checkpoints *Checkpoints // agreement on the files of a checkpoint
	Gateways    *Gateways    // addresses for users' programs
	Display     *Display     // values for people

	place      *place
	leaseToken string // value of its lease, which distinguishes this worker from other workers of the agent
	beats      sync.WaitGroup
}

// newMember returns a member that does not have the place yet.
func newMember(s *Store, agent string) *Member {
	at := &place{Store: s, agent: agent}
	return &Member{Round: &Round{at: at}, Phases: &Phases{at}, Invocations: &Invocations{at: at}, Versions: &Versions{at},
		Checkpoints: &Checkpoints{at}, Gateways: &Gateways{at}, Display: &Display{at}, place: at, leaseToken: rand.Text()}
}

// Agent returns the name of the agent.
func (m *Member) Agent() string { return m.place.agent }

// Epoch returns the number that fences this worker from its predecessors. It increases with each new worker of the agent
// and with each new round.
func (m *Member) Epoch() int64 { return m.place.epoch }

// Context returns a context that ends when the run ends or the member loses its place. Its cause is a *StopError, a
// *FencedError or ErrClosed.
func (m *Member) Context() context.Context { return m.place.ctx }

// Ping waits until the store answers a request.
func (m *Member) Ping(ctx context.Context) error { return m.place.Ping(ctx) }

// ConfirmPlace returns a FencedError if the place no longer belongs to this member. A worker that was suspended detects
// this before it touches files that its successor may use.
func (m *Member) ConfirmPlace(ctx context.Context) error {
	_, err := m.place.write(ctx, placeScript, "the place of "+m.place.agent, values{})
	return err
}

// WithPlace returns a context that ends when ctx or place ends. place is the Context of a member. The cause is the cause of that
// end. The caller must call cancel.
func WithPlace(ctx, place context.Context) (_ context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(place, func() { end(context.Cause(place)) })
	return ctx, func() { stop(); end(nil) }
}

// Leave gives up the place, so that another worker can take it at once.
func (m *Member) Leave(ctx context.Context) error {
	at := m.place
	at.cancel(ErrClosed)
	m.beats.Wait()
	m.Invocations.queues.close()
	_, err := at.write(ctx, leaveScript, "leaving", values{"lease": at.key("lease", at.agent), "claimed": at.key("claimed", at.agent),
		"leaseToken": m.leaseToken})
	var fenced *FencedError
	if errors.As(err, &fenced) {
		return nil // another worker already has the place
	}
	return err
}

// beat renews the lease, and with it all claims, until the member leaves or is replaced. It does not stop while the
// store cannot be reached: the place is lost only when another worker takes it.
func (m *Member) beat() {
	at := m.place
	tick := time.NewTicker(at.opt.Lease / 4)
	defer tick.Stop()
	for {
		select {
		case <-at.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(at.ctx, at.opt.Lease/2)
		// The script is not sent in a batch, so that it never waits for other commands.
		keys, args := beatScript.inOrder(values{"lease": at.key("lease", at.agent), "stop": at.key("stop"),
			"leaseToken": m.leaseToken, "milliseconds": at.opt.Lease.Milliseconds()}.writtenBy(at))
		reply, err := beatScript.Run(ctx, at.rdb, keys, args...).Slice()
		switch {
		case err != nil:
		case replyText(reply, 0) == "fenced":
			at.cancel(at.fencedBy(reply))
		case replyText(reply, 0) == "stopped":
			at.checkStop()
		}
		cancel()
	}
}
