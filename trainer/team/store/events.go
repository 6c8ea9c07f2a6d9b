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

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// Intervals at which a wait reads its key without an event. An event may be lost, and a store sends none when it becomes
// reachable again.
const (
	rereadInterval    = 5 * time.Second
	reconnectInterval = time.Second // while the store cannot be reached
)

// topics wakes goroutines that wait for events.
type topics struct {
	channel *redis.PubSub // published topics, on a separate connection

	mu      sync.Mutex
	waiting map[string]map[chan struct{}]bool
}

// subscribe returns a channel that receives when one of the topics is announced, and a function that ends the
// subscription.
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

// announce wakes the goroutines that wait for a topic; "" wakes all.
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
		default: // the goroutine was woken already and has not read its key yet
		}
	}
}

// readEvents wakes the goroutines that wait for a published topic, until the Store is closed. Topics that are published
// while the connection is down are lost. When it is up again, all goroutines are woken and read their keys.
func (s *Store) readEvents() {
	for message := range s.topics.channel.ChannelWithSubscriptions(redis.WithChannelSize(1000)) {
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

// checkStop ends the Store's context if the Store's round has been stopped.
func (s *Store) checkStop() {
	if len(s.agents.all()) == 0 {
		return // no member has joined: the stored stop belongs to an earlier round
	}
	stop, err := s.rdb.HGetAll(s.ctx, s.key("stop")).Result()
	if err == nil && len(stop) > 0 {
		s.cancel(&StopError{Agent: clip(stop["agent"]), Reason: clip(stop["reason"]), Kind: StopKind(clip(stop["kind"]))})
	}
}

// clip limits the length of a text from the store for a message.
func clip(s string) string { return texts.Excerpt(strings.ToValidUTF8(s, "?"), 2000) }

// wait calls look until it returns true: at once, whenever one of the topics is announced, and every few seconds. It
// returns an error when the context or the run ends, after the store's timeout, and when look fails while the server can be
// reached. If the wait takes long, awaited returns the agents and the awaited action for a message.
func (s *Store) wait(ctx context.Context, look func(context.Context) (bool, error), awaited func() (agents []string, what string), names ...string) error {
	wake, unsubscribe := s.topics.subscribe(names...)
	defer unsubscribe()
	return s.waitFor(ctx, wake, look, awaited)
}

// waitFor does the same as wait, for a caller that has subscribed already.
func (s *Store) waitFor(ctx context.Context, wake <-chan struct{}, look func(context.Context) (bool, error),
	awaited func() (agents []string, what string)) error {
	since := time.Now()
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	var last error
	for {
		again := rereadInterval
		found, err := look(ctx)
		if err == nil {
			s.waits.storeBack()
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
			again = reconnectInterval // an event may arrive before the client's pool has tried to connect again
			s.waits.storeGone(s.opt.URL, since, last)
		} else {
			s.waits.deadWorkers(since, awaited, s.liveness)
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
			whom, _, err := s.liveness(agents)
			return waitError(ctx, whom, what, since, cmp.Or(last, err))
		}
	}
}

// overdue reports whether an operation failed only because its context ended.
func overdue(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// liveness lists agents for a message, with whether their workers are alive. dead reports whether there is an agent
// without a live worker. The error is the reason why this could not be read.
func (s *Store) liveness(agents []string) (text string, dead bool, err error) {
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
