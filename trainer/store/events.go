package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lookAgain is how often a wait looks at its key unasked: what an event that never came costs.
const lookAgain = 5 * time.Second

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
	for topic, waiting := range t.waiting {
		if name != "" && topic != name {
			continue
		}
		for ch := range waiting {
			select {
			case ch <- struct{}{}:
			default: // it has been woken and has not looked yet
			}
		}
	}
}

// lastEvent is the id of the newest event.
func (s *Store) lastEvent(ctx context.Context) (string, error) {
	newest, err := s.rdb.XRevRangeN(ctx, s.key("events"), "+", "-", 1).Result()
	if err != nil || len(newest) == 0 {
		return "0-0", err
	}
	return newest[0].ID, nil
}

// readEvents passes events on to those who wait, until the Store is closed. It is the only blocking
// read of a Store.
func (s *Store) readEvents(last string) {
	for s.alive() {
		streams, err := s.reader.XRead(s.ctx, &redis.XReadArgs{Streams: []string{s.key("events"), last}, Count: 1000, Block: 2 * time.Second}).Result()
		switch {
		case errors.Is(err, redis.Nil):
			continue
		case err != nil:
			// Whatever was announced meanwhile is found by looking.
			s.topics.announce("")
			select {
			case <-time.After(200 * time.Millisecond):
			case <-s.ctx.Done():
			}
			if newest, err := s.lastEvent(s.ctx); err == nil {
				last = newest // the server may have been replaced by one that counts anew
				s.topics.announce("")
				s.checkStop()
			}
			continue
		}
		for _, event := range streams[0].Messages {
			last = event.ID
			topic, _ := event.Values["t"].(string)
			if topic == "stop" {
				s.checkStop()
			} else if topic != "" {
				s.topics.announce(topic)
			}
		}
	}
}

func (s *Store) alive() bool { return s.ctx.Err() == nil }

// checkStop ends the Store's context if the run has been stopped.
func (s *Store) checkStop() {
	stop, err := s.rdb.HGetAll(s.ctx, s.key("stop")).Result()
	if err == nil && len(stop) > 0 {
		s.cancel(&StopError{Agent: clip(stop["agent"]), Reason: clip(stop["reason"]), Failed: stop["failed"] == "1"})
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
func (s *Store) wait(ctx context.Context, look func(context.Context) (bool, error), whomWhat func() (agents []string, what string), names ...string) error {
	since := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	wake, unsubscribe := s.topics.subscribe(names...)
	defer unsubscribe()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	var last error
	for {
		found, err := look(ctx)
		switch {
		case found && err == nil:
			return nil
		case s.ctx.Err() != nil:
			return context.Cause(s.ctx)
		case err != nil && ctx.Err() == nil && !transient(err):
			return err
		}
		last = err
		select {
		case <-wake:
		case <-again.C:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-ctx.Done():
			if ctx.Err() != context.DeadlineExceeded {
				return context.Cause(ctx)
			}
			agents, what := whomWhat()
			return s.waitError(ctx, s.liveliness(agents), what, since, unlessContext(last))
		}
	}
}

// unlessContext leaves out failures that only say that the wait is over.
func unlessContext(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// liveliness lists agents and whether each has a worker that is alive, for a message.
func (s *Store) liveliness(agents []string) string {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	out := make([]string, len(agents))
	for i, a := range agents {
		switch n, err := s.rdb.Exists(ctx, s.key("lease", a)).Result(); {
		case err != nil:
			out[i] = a
		case n == 0:
			out[i] = fmt.Sprintf("%s (no worker of it is alive)", a)
		default:
			out[i] = fmt.Sprintf("%s (its worker is alive)", a)
		}
	}
	return strings.Join(out, ", ")
}
