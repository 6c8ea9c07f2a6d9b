package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// How often a wait looks at its key unasked: what an event that never came costs, and what a store does that is back.
const (
	lookAgain = 5 * time.Second
	lookGone  = time.Second // while the store cannot be reached
)

// topics wakes goroutines that wait for events.
type topics struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]bool
}

// subscribe gives a channel that receives when one of the topics is announced, and how to end that.
func (t *topics) subscribe(names ...string) (wake <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting == nil {
		t.waiting = map[string]map[chan struct{}]bool{}
	}
	for _, name := range names {
		if t.waiting[name] == nil {
			t.waiting[name] = map[chan struct{}]bool{}
		}
		t.waiting[name][ch] = true
	}
	return ch, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, name := range names {
			if delete(t.waiting[name], ch); len(t.waiting[name]) == 0 {
				delete(t.waiting, name)
			}
		}
	}
}

// announce wakes those who wait for a topic; all of them for "".
func (t *topics) announce(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if name != "" {
		wakeAll(t.waiting[name])
		return
	}
	for _, waiting := range t.waiting {
		wakeAll(waiting)
	}
}

func wakeAll(waiting map[chan struct{}]bool) {
	for ch := range waiting {
		select {
		case ch <- struct{}{}:
		default: // it has been woken and has not looked yet
		}
	}
}

// readEvents passes what is announced on to those who wait, until the Store is closed. It is the only
// connection that blocks. Announcements that are missed while the connection is down cost nothing but
// a look: everyone is woken when it is up again.
func (s *Store) readEvents() {
	for message := range s.channel.ChannelWithSubscriptions(redis.WithChannelSize(1000)) {
		switch message := message.(type) {
		case *redis.Subscription:
			s.topics.announce("")
			s.checkStop()
		case *redis.Message:
			if message.Payload == "stop" {
				s.checkStop()
			} else {
				s.topics.announce(message.Payload)
			}
		}
	}
}

// listen has what concerns an agent announced to the Store.
func (s *Store) listen(ctx context.Context, agent string) {
	_ = s.channel.Subscribe(ctx, s.key("events", agent)) // where that fails, it is done when the connection is up again
}

// alive says whether the run goes on and the Store is open.
func (s *Store) alive() bool { return s.ctx.Err() == nil }

// checkStop ends the Store's context if the round that it takes part in has been stopped.
func (s *Store) checkStop() {
	if len(s.allAgents()) == 0 {
		return // it has not joined yet: the stop is of a round before
	}
	stop, err := s.rdb.HGetAll(s.ctx, s.key("stop")).Result()
	if err == nil && len(stop) > 0 {
		s.cancel(&StopError{Agent: clip(stop["agent"]), Reason: clip(stop["reason"]), Kind: StopKind(clip(stop["kind"]))})
	}
}

// clip bounds text of others that goes into a message.
func clip(s string) string {
	const most = 2000
	s = strings.ToValidUTF8(s, "?")
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// wait looks until look says that it has found what it looked for: at once, whenever one of the
// topics is announced, and every few seconds. It ends with an error when the context or the run does,
// when the store's timeout is over, and when look fails for any reason but that the server cannot be
// reached. whom and what, asked when a wait takes too long, say who has not done what.
func (s *Store) wait(ctx context.Context, look func(context.Context) (bool, error), awaited func() (agents []string, what string), names ...string) error {
	wake, unsubscribe := s.topics.subscribe(names...)
	defer unsubscribe()
	return s.waitFor(ctx, wake, look, awaited)
}

// waitFor is wait with the topics' channel given.
func (s *Store) waitFor(ctx context.Context, wake <-chan struct{}, look func(context.Context) (bool, error), awaited func() (agents []string, what string)) error {
	since := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	var last error
	for {
		again := lookAgain
		found, err := look(ctx)
		if err == nil {
			s.sayBack()
		}
		switch {
		case found && err == nil:
			return nil
		case s.ctx.Err() != nil:
			return context.Cause(s.ctx)
		case err != nil && ctx.Err() == nil && !transient(err):
			return s.advise(err)
		}
		if err == nil || !overdue(err) {
			last = err
		}
		if last != nil {
			again = lookGone // an event tells that the store is back before the client's pool has tried it again
			s.sayGone(since, last)
		} else {
			s.sayDead(since, awaited)
		}
		select {
		case <-wake:
		case <-time.After(again):
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-ctx.Done():
			if ctx.Err() != context.DeadlineExceeded {
				return context.Cause(ctx)
			}
			agents, what := awaited()
			whom, _, err := s.liveliness(agents)
			return s.waitError(ctx, whom, what, since, cmp.Or(last, err))
		}
	}
}

// overdue says that an operation failed only because the wait for it was over.
func overdue(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// liveliness lists agents and whether each has a worker that is alive, for a message; dead says whether one has none.
// The error is why it does not know.
func (s *Store) liveliness(agents []string) (text string, dead bool, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	out := make([]string, len(agents))
	for i, a := range agents {
		n, failed := s.rdb.Exists(ctx, s.key("lease", a)).Result()
		switch {
		case failed != nil:
			out[i], err = a, failed
		case n == 0:
			out[i], dead = a+" (no worker of it is alive)", true
		default:
			out[i] = fmt.Sprintf("%s (its worker is alive)", a)
		}
	}
	return strings.Join(out, ", "), dead, err
}
