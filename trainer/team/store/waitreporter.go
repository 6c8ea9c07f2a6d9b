package store

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// A wait causes a message after noticeAfter. Between two messages, of the same wait or of different ones, at least noticeAgain passes.
const (
	noticeAfter = 5 * time.Second
	noticeAgain = time.Minute
)

// waitReporter reports long waits. It limits the messages of all goroutines that wait.
type waitReporter struct {
	send  func(what string) // nil: no messages
	after time.Duration     // shorter waits do not cause a message

	suspension suspension // time that belongs to no wait

	mu   sync.Mutex
	next time.Time // earliest time of the next message
	gone time.Time // when the store was lost, if a message reported this; otherwise zero
}

// due reports whether a wait that began at `since` may cause a message now.
func (m *waitReporter) due(since time.Time) bool {
	if m.send == nil || time.Since(since) < m.after {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Now().Before(m.next) {
		return false
	}
	m.next = time.Now().Add(noticeAgain)
	return true
}

// storeGone sends the message that the store at a URL cannot be reached.
func (m *waitReporter) storeGone(url string, since time.Time, err error) {
	if !m.due(since) {
		return
	}
	where := ""
	if opt, err := parseURL(url); err == nil {
		where = " at " + strings.Join(opt.Addrs, ", ")
	}
	m.send(fmt.Sprintf("waits since %s for the store%s: %v", since.Format(time.TimeOnly), where, err))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = since
}

// storeBack sends the message that the store answers again, if a message reported that it did not.
func (m *waitReporter) storeBack() {
	m.mu.Lock()
	since := m.gone
	m.gone = time.Time{}
	m.mu.Unlock()
	if since.IsZero() {
		return
	}
	m.send(fmt.Sprintf("the store answers again, after %v", time.Since(since).Round(time.Second)))
}

// deadWorkers sends a message about a wait for agents without a live worker, which liveness finds. Waits for agents whose
// workers are alive cause no message.
func (m *waitReporter) deadWorkers(since time.Time, awaited func() (agents []string, what string),
	liveness func(agents []string) (text string, dead bool, err error)) {
	if !m.due(since) {
		return
	}
	agents, what := awaited()
	whom, dead, err := liveness(agents)
	switch {
	case err != nil:
		m.forget() // no message was sent; storeGone sends it once a read has failed
	case dead:
		m.send(fmt.Sprintf("waits since %s for %s: %s", since.Format(time.TimeOnly), whom, what))
	}
}

// forget removes the minimum time before the next message.
func (m *waitReporter) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = time.Time{}
}
