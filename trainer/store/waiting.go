package store

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// How long a wait lasts before anything is said of it, and until something is said again.
const (
	sayAfter = 5 * time.Second
	sayAgain = time.Minute
)

// patience is when it may next be said why something waits, whatever number of goroutines do.
type patience struct {
	mu   sync.Mutex
	next time.Time
	gone time.Time // since when the store is, as was told; zero: it is not
}

// due says whether a wait that began then is to be told of now.
func (s *Store) due(since time.Time) bool {
	if s.opts.Waiting == nil || time.Since(since) < s.opts.sayAfter {
		return false
	}
	s.patience.mu.Lock()
	defer s.patience.mu.Unlock()
	if time.Now().Before(s.patience.next) {
		return false
	}
	s.patience.next = time.Now().Add(sayAgain)
	return true
}

// sayGone tells that the store cannot be reached.
func (s *Store) sayGone(since time.Time, err error) {
	if !s.due(since) {
		return
	}
	where := ""
	if opts, err := parseURL(s.opts.URL); err == nil {
		where = " at " + strings.Join(opts.Addrs, ", ")
	}
	s.opts.Waiting(fmt.Sprintf("waits since %s for the store%s: %v", since.Format(time.TimeOnly), where, err))
	s.patience.mu.Lock()
	defer s.patience.mu.Unlock()
	s.patience.gone = since
}

// sayBack tells that it can again, whoever told that it could not.
func (s *Store) sayBack() {
	s.patience.mu.Lock()
	since := s.patience.gone
	s.patience.gone = time.Time{}
	s.patience.mu.Unlock()
	if since.IsZero() {
		return
	}
	s.opts.Waiting(fmt.Sprintf("the store answers again, after %v", time.Since(since).Round(time.Second)))
}

// sayDead tells of a wait for agents of which no worker is alive; others are at work, however long that takes.
func (s *Store) sayDead(since time.Time, awaited func() (agents []string, what string)) {
	if !s.due(since) {
		return
	}
	agents, what := awaited()
	whom, dead, err := s.liveliness(agents)
	switch {
	case err != nil:
		s.patience.forget() // nothing was said: that the store is gone is said when it is known
	case dead:
		s.opts.Waiting(fmt.Sprintf("waits since %s for %s: %s", since.Format(time.TimeOnly), whom, what))
	}
}

// forget lets something be said at once.
func (p *patience) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = time.Time{}
}
