package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// claimScript answers with the entry that follows the worker's place in its agent's stream, and remembers that
// it is in the worker's hands. It says how many workers were lost with it in theirs, and whether more follow.
// The same place has the same answer, so a claim whose reply was lost is made again.
// KEYS: epochs, plan, stream, claimed by the agent, lost. ARGV: agent, epoch, phase, place.
var claimScript = redis.NewScript(fence + `
local next = redis.call('XRANGE', KEYS[3], ARGV[4], '+', 'COUNT', '2')
local entry = next[1]
if entry then
  local id, value = entry[2][2] or '', entry[2][4] or ''
  redis.call('HSET', KEYS[4], ARGV[3] .. ' ' .. id, entry[1])
  return {'entry', entry[1], value, id, redis.call('HGET', KEYS[5], id) or '0', next[2] and 'more' or ''}
end
if redis.call('HGET', KEYS[2], 'ended') then return {'ended'} end
return {'none'}
`)

// queues are how far a member has claimed what there is, by phase.
type queues struct {
	mu     sync.Mutex
	phases map[Phase]*queue
}

type queue struct {
	turn     chan struct{}   // held by the claim that asks; the others wait for it
	position string          // where XRANGE begins
	empty    bool            // nothing followed when it was asked last
	wake     <-chan struct{} // has what was announced since
	end      func()          // of wake
}

// queue is that of a phase.
func (m *Member) queue(p Phase) *queue {
	m.queues.mu.Lock()
	defer m.queues.mu.Unlock()
	q := m.queues.phases[p]
	if q == nil {
		q = &queue{turn: make(chan struct{}, 1), position: "-"}
		q.wake, q.end = m.topics.subscribe("call/"+p.String()+"/"+m.agent, "plan/"+p.String())
		if m.queues.phases == nil {
			m.queues.phases = map[Phase]*queue{}
		}
		m.queues.phases[p] = q
	}
	return q
}

// drop forgets the queue of a phase in which there is nothing left.
func (q *queues) drop(p Phase) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if one := q.phases[p]; one != nil {
		one.end()
		delete(q.phases, p)
	}
}

// close forgets all.
func (q *queues) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, one := range q.phases {
		one.end()
	}
	clear(q.phases)
}

// Claim waits for an invocation of the member's agent in a phase that no worker of this epoch has claimed. It
// is the member's until Complete; a worker may have any number at a time. A worker that took the place over
// claims all of them anew, those that were answered too: what the answer came of was lost. ErrEnded says that
// the phase has ended and that nothing of it is left.
//
// Any number of goroutines may claim; they take turns, so that the server is asked once for what it has.
func (m *Member) Claim(ctx context.Context, p Phase) (v Invocation, err error) {
	if err := p.check(); err != nil {
		return v, fmt.Errorf("store: %w", err)
	}
	since := time.Now()
	ctx, cancel := context.WithTimeout(ctx, m.opts.Timeout)
	defer cancel()
	awaited := func() ([]string, string) {
		return m.mainAgent(), "an invocation of " + m.agent + " in " + p.String() + ", or the phase's end"
	}
	q := m.queue(p)
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-m.Store.ctx.Done():
		return v, context.Cause(m.Store.ctx)
	case <-ctx.Done():
		agents, what := awaited()
		whom, _, err := m.liveliness(agents)
		return v, m.waitError(ctx, whom, what, since, err)
	}
	err = m.waitFor(ctx, q.wake, func(ctx context.Context) (bool, error) {
		if q.empty { // and nothing was announced since, or wake would have it
			q.empty = false
			return false, nil
		}
		return m.take(ctx, p, q, &v)
	}, awaited)
	return v, err
}

// take asks for an invocation once, or more often where it comes upon one that is given up.
func (m *Member) take(ctx context.Context, p Phase, q *queue, v *Invocation) (found bool, err error) {
	stream := m.key("stream", p.String(), m.agent)
	keys := []string{m.key("plan", p.String()), stream, m.key("claimed", m.agent), m.key("lost", p.String())}
	for {
		reply, err := m.write(ctx, claimScript, "a claim in "+p.String(), keys, p.String(), q.position)
		if err != nil {
			return false, err
		}
		switch word(reply, 0) {
		case "ended":
			m.queues.drop(p)
			return false, ErrEnded
		case "none":
			return false, nil
		}
		c, err := readClaim(reply, stream, m.agent, p)
		if err != nil {
			return false, err
		}
		if c.lost >= m.opts.MaxDeliveries {
			if err := m.giveUp(ctx, c); err != nil {
				return false, err
			}
		}
		*v, q.position, q.empty = c.Invocation, "("+c.entry, !c.more
		if c.lost < m.opts.MaxDeliveries {
			return true, nil
		}
	}
}

// giveUp answers an invocation that costs workers their lives. Perhaps one of them answered it before.
func (m *Member) giveUp(ctx context.Context, c claimed) error {
	failed := fmt.Sprintf("given up after %d workers of %s were lost over it", c.lost, m.agent)
	err := m.Complete(ctx, c.Invocation, Result{Failed: failed})
	var conflict *ConflictError
	if errors.As(err, &conflict) {
		return nil
	}
	return err
}

// claimed is what the script has handed out.
type claimed struct {
	Invocation
	entry string
	lost  int  // workers, with it in hand
	more  bool // entries follow
}

// readClaim reads the script's reply, whose parts may have been written by anything.
func readClaim(reply []any, stream, agent string, p Phase) (c claimed, err error) {
	c.entry, c.more = clip(word(reply, 1)), word(reply, 5) != ""
	key := stream + " " + c.entry
	if c.Invocation, err = decode[Invocation](key, word(reply, 2)); err != nil {
		return c, err
	}
	if c.Agent != agent || c.Phase != p || c.ID() != word(reply, 3) {
		return c, &MalformedError{Key: key, Msg: "it is " + c.ID() + " of " + c.Phase.String()}
	}
	if c.lost, err = strconv.Atoi(word(reply, 4)); err != nil {
		return c, &MalformedError{Key: key, Msg: clip(word(reply, 4)) + " workers were lost over it"}
	}
	return c, nil
}
