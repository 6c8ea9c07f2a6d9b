package store

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// A wait causes a message after sayAfter. The next message, of any wait, follows after sayAgain at the earliest.
const (
	sayAfter = 5 * time.Second
	sayAgain = time.Minute
)

// messageLimit limits the messages of all goroutines that wait.
type messageLimit struct {
	mu   sync.Mutex
	next time.Time // earliest time of the next message
	gone time.Time // when the store was lost, if a message reported this; otherwise zero
}

// due reports whether a wait that began at `since` may cause a message now.
func (s *Store) due(since time.Time) bool {
	if s.opts.Waiting == nil || time.Since(since) < s.opts.sayAfter {
		return false
	}
	s.messageLimit.mu.Lock()
	defer s.messageLimit.mu.Unlock()
	if time.Now().Before(s.messageLimit.next) {
		return false
	}
	s.messageLimit.next = time.Now().Add(sayAgain)
	return true
}

// noteStoreGone sends the message that the store cannot be reached.
func (s *Store) noteStoreGone(since time.Time, err error) {
	if !s.due(since) {
		return
	}
	where := ""
	if opts, err := parseURL(s.opts.URL); err == nil {
		where = " at " + strings.Join(opts.Addrs, ", ")
	}
	s.opts.Waiting(fmt.Sprintf("waits since %s for the store%s: %v", since.Format(time.TimeOnly), where, err))
	s.messageLimit.mu.Lock()
	defer s.messageLimit.mu.Unlock()
	s.messageLimit.gone = since
}

// noteStoreBack sends the message that the store answers again, if a message reported that it did not.
func (s *Store) noteStoreBack() {
	s.messageLimit.mu.Lock()
	since := s.messageLimit.gone
	s.messageLimit.gone = time.Time{}
	s.messageLimit.mu.Unlock()
	if since.IsZero() {
		return
	}
	s.opts.Waiting(fmt.Sprintf("the store answers again, after %v", time.Since(since).Round(time.Second)))
}

// noteDeadWorkers sends a message about a wait for agents without a live worker. Waits for agents whose workers are alive
// cause no message.
func (s *Store) noteDeadWorkers(since time.Time, awaited func() (agents []string, what string)) {
	if !s.due(since) {
		return
	}
	agents, what := awaited()
	whom, dead, err := s.liveliness(agents)
	switch {
	case err != nil:
		s.messageLimit.forget() // no message was sent; noteStoreGone sends it once a read has failed
	case dead:
		s.opts.Waiting(fmt.Sprintf("waits since %s for %s: %s", since.Format(time.TimeOnly), whom, what))
	}
}

// forget allows the next message at once.
func (p *messageLimit) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = time.Time{}
}
