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

// claimScript answers with the entries that follow the worker's position in its agent's stream, up to one less than it
// is asked for, and remembers that they are in the worker's hands. It says of each how many workers were lost with it
// in theirs, and whether more entries follow. The same position has the same entries, so a claim whose reply was lost is
// made again.
// KEYS: epochs, plan, stream, claimed by the agent, lost. ARGV: agent, epoch, phase, position, entries to ask for.
var claimScript = redis.NewScript(fence + `
local found = redis.call('XRANGE', KEYS[3], ARGV[4], '+', 'COUNT', ARGV[5])
if not found[1] then
  if redis.call('HGET', KEYS[2], 'ended') then return {'ended'} end
  return {'none'}
end
local more = #found == tonumber(ARGV[5])
local reply = {'entries', more and 'more' or ''}
for i = 1, more and #found - 1 or #found do
  local entry, id, value = found[i][1], found[i][2][2] or '', found[i][2][4] or ''
  redis.call('HSET', KEYS[4], ARGV[3] .. ' ' .. id, entry)
  for _, part in ipairs({entry, value, id, redis.call('HGET', KEYS[5], id) or '0'}) do reply[#reply + 1] = part end
end
return reply
`)

// maxClaims is the most that a claim takes.
const maxClaims = 64

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

// Claim waits for invocations of the member's agent in a phase that no worker of this epoch has claimed, and takes
// what there is, at least one and at most n of them. They are the member's until Complete; a worker may have any number
// at a time. A worker that took the place over claims all of them anew, those that were answered too: what the answer
// came of was lost. ErrEnded says that the phase has ended and that nothing of it is left.
//
// Any number of goroutines may claim; they take turns, so that the server is asked once for what it has.
func (m *Member) Claim(ctx context.Context, p Phase, n int) (vs []Invocation, err error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if n < 1 {
		return nil, fmt.Errorf("store: a claim of %d invocations", n)
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
		return nil, context.Cause(m.Store.ctx)
	case <-ctx.Done():
		agents, what := awaited()
		whom, _, err := m.liveliness(agents)
		return nil, m.waitError(ctx, whom, what, since, err)
	}
	err = m.waitFor(ctx, q.wake, func(ctx context.Context) (bool, error) {
		if q.empty { // and nothing was announced since, or wake would have it
			q.empty = false
			return false, nil
		}
		vs, err = m.take(ctx, p, q, min(n, maxClaims))
		return len(vs) > 0, err
	}, awaited)
	return vs, err
}

// take asks for up to n invocations once, or more often where it comes upon nothing but such as are given up. None
// and no error: there are none yet.
func (m *Member) take(ctx context.Context, p Phase, q *queue, n int) (vs []Invocation, err error) {
	stream := m.key("stream", p.String(), m.agent)
	keys := []string{m.key("plan", p.String()), stream, m.key("claimed", m.agent), m.key("lost", p.String())}
	for len(vs) == 0 {
		reply, err := m.write(ctx, claimScript, "a claim in "+p.String(), keys, p.String(), q.position, n+1)
		if err != nil {
			return nil, err
		}
		switch word(reply, 0) {
		case "ended":
			m.queues.drop(p)
			return nil, ErrEnded
		case "none":
			return nil, nil
		}
		more := word(reply, 1) != ""
		all, err := readClaims(reply, stream, m.agent, p)
		if err != nil {
			return nil, err
		}
		for _, c := range all {
			if c.lost < m.opts.MaxDeliveries {
				vs = append(vs, c.Invocation)
			} else if err := m.giveUp(ctx, c); err != nil {
				return nil, err
			}
		}
		q.position, q.empty = "("+all[len(all)-1].entry, !more
	}
	return vs, nil
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
	lost  int // workers, with it in hand
}

// readClaims reads the script's reply, whose parts may have been written by anything.
func readClaims(reply []any, stream, agent string, p Phase) (all []claimed, err error) {
	for i := 2; i == 2 || i < len(reply); i += 4 {
		c := claimed{entry: clip(word(reply, i))}
		key := stream + " " + c.entry
		if c.Invocation, err = decode[Invocation](key, word(reply, i+1)); err != nil {
			return nil, err
		}
		if c.Agent != agent || c.Phase != p || c.ID() != word(reply, i+2) {
			return nil, &MalformedError{Key: key, Msg: "it is " + c.ID() + " of " + c.Phase.String()}
		}
		if c.lost, err = strconv.Atoi(word(reply, i+3)); err != nil {
			return nil, &MalformedError{Key: key, Msg: clip(word(reply, i+3)) + " workers were lost over it"}
		}
		all = append(all, c)
	}
	return all, nil
}
