package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// maxClaims is the largest number of invocations that a call of Claim returns.
const maxClaims = 64

// queues holds the positions of a member in its agent's streams, by phase.
type queues struct {
	mu     sync.Mutex
	phases map[Phase]*queue
}

// queue is the position of a member in the stream of one phase.
type queue struct {
	turn     chan struct{}   // the claim that is reading holds the token; the others wait for it
	position string          // start of the next XRANGE
	empty    bool            // no entry followed the last claim
	wake     <-chan struct{} // receives if a topic was published since then
	end      func()          // ends the subscription
}

// queue returns the queue of a phase.
func (in *Invocations) queue(p Phase) *queue {
	in.queues.mu.Lock()
	defer in.queues.mu.Unlock()
	q := in.queues.phases[p]
	if q == nil {
		q = &queue{turn: make(chan struct{}, 1), position: "-"}
		q.wake, q.end = in.at.topics.subscribe("call/"+p.String()+"/"+in.at.agent, "plan/"+p.String())
		if in.queues.phases == nil {
			in.queues.phases = map[Phase]*queue{}
		}
		in.queues.phases[p] = q
	}
	return q
}

// drop forgets the queue of a phase that has ended.
func (q *queues) drop(p Phase) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if dropped := q.phases[p]; dropped != nil {
		dropped.end()
		delete(q.phases, p)
	}
}

// close forgets all queues.
func (q *queues) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, dropped := range q.phases {
		dropped.end()
	}
	clear(q.phases)
}

// Claim waits for the next invocations of the member's agent in a phase, and returns from 1 to n of them. A claim lasts
// until Complete; a worker may have any number of claims at a time. A worker that took over the place claims all
// invocations of the phase again, including the answered ones, because their trajectories were lost with its predecessor.
// ErrPhaseEnded means that the phase has ended and no invocation is left.
//
// Any number of goroutines may call Claim. They take turns, so that only one of them sends a request at a time.
func (in *Invocations) Claim(ctx context.Context, p Phase, n int) (vs []Invocation, err error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if n < 1 {
		return nil, fmt.Errorf("store: cannot claim %d invocations", n)
	}
	since := time.Now()
	ctx, cancel := in.at.withTimeout(ctx)
	defer cancel()
	awaited := func() ([]string, string) {
		return in.at.agents.main(), "an invocation of " + in.at.agent + " in " + p.String() + ", or the phase's end"
	}
	q := in.queue(p)
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-in.at.Store.ctx.Done():
		return nil, context.Cause(in.at.Store.ctx)
	case <-ctx.Done():
		agents, what := awaited()
		whom, _, err := in.at.liveness(agents)
		return nil, waitError(ctx, whom, what, since, err)
	}
	err = in.at.waitFor(ctx, q.wake, func(ctx context.Context) (bool, error) {
		if q.empty { // a new entry would have been published, and wake would have received
			q.empty = false
			return false, nil
		}
		vs, err = in.take(ctx, p, q, min(n, maxClaims))
		return len(vs) > 0, err
	}, awaited)
	return vs, err
}

// take requests up to n invocations. If some of them are given up, it answers these itself; if no others were returned, it
// requests again. An empty result without an error means that there is no invocation yet.
func (in *Invocations) take(ctx context.Context, p Phase, q *queue, n int) (vs []Invocation, err error) {
	stream := in.at.key("stream", p.String(), in.at.agent)
	for len(vs) == 0 {
		reply, err := in.at.write(ctx, claimScript, "a claim in "+p.String(), values{
			"plan": in.at.key("plan", p.String()), "stream": stream, "claimed": in.at.key("claimed", in.at.agent), "lost": in.at.key("lost", p.String()),
			"phase": p.String(), "position": q.position, "limit": n + 1})
		if err != nil {
			return nil, err
		}
		switch replyText(reply, 0) {
		case "ended":
			in.queues.drop(p)
			return nil, ErrPhaseEnded
		case "none":
			return nil, nil
		}
		more := replyText(reply, 1) != ""
		all, err := readClaims(reply, stream, in.at.agent, p)
		if err != nil {
			return nil, err
		}
		for _, c := range all {
			if c.lost < in.at.opt.MaxDeliveries {
				vs = append(vs, c.Invocation)
			} else if err := in.giveUp(ctx, c); err != nil {
				return nil, err
			}
		}
		q.position, q.empty = "("+all[len(all)-1].entry, !more
	}
	return vs, nil
}

// giveUp answers an invocation if too many workers were lost while they had claimed it. A conflict means that one of these
// workers had answered it.
func (in *Invocations) giveUp(ctx context.Context, c claim) error {
	failed := fmt.Sprintf("given up after %d workers of %s were lost while they had claimed it", c.lost, in.at.agent)
	err := in.Complete(ctx, c.Invocation, Result{Failed: failed})
	var conflict *ConflictError
	if errors.As(err, &conflict) {
		return nil
	}
	return err
}

// claim is an invocation that the script has returned.
type claim struct {
	Invocation
	entry string
	lost  int // number of workers that were lost while they had claimed it
}

// readClaims reads the script's reply. Its parts may come from any program.
func readClaims(reply []any, stream, agent string, p Phase) (all []claim, err error) {
	for i := 2; i == 2 || i < len(reply); i += 4 {
		c := claim{entry: clip(replyText(reply, i))}
		key := stream + " " + c.entry
		if c.Invocation, err = decode[Invocation](key, replyText(reply, i+1)); err != nil {
			return nil, err
		}
		if c.Agent != agent || c.Phase != p || c.ID() != replyText(reply, i+2) {
			return nil, &MalformedError{Key: key, Msg: "it is " + c.ID() + " of " + c.Phase.String()}
		}
		if c.lost, err = strconv.Atoi(replyText(reply, i+3)); err != nil {
			return nil, &MalformedError{Key: key, Msg: fmt.Sprintf("%q is not a number of lost workers", clip(replyText(reply, i+3)))}
		}
		all = append(all, c)
	}
	return all, nil
}
