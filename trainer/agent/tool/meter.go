package tool

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// Usage counts the calls of a tool by outcome.
type Usage struct {
	Calls    int64
	Errors   int64 // calls that ended with an error other than a time-out or a refusal, including Failures
	Failures int64 // errors that do not depend on the arguments: see ErrFailed
	Timeouts int64
	Refused  int64         // calls beyond the limit of a conversation
	Retries  int64         // further attempts at calls, successful or not
	Time     time.Duration // total of all calls
	Example  string        // text of the latest error or time-out
}

// Meter counts the calls of tools by tool name. The zero Meter is ready to use. Its methods may be called from several
// goroutines.
type Meter struct {
	mu    sync.Mutex
	usage map[string]Usage
	lost  []string
}

// Counted wraps t, which must already have all its other wrappers, and counts its calls.
func (m *Meter) Counted(t Tool) Tool {
	return withCall(t, func(ctx context.Context, args json.RawMessage) (string, error) {
		since := time.Now()
		out, err := t.Call(ctx, args)
		verdict := err
		switch {
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded): // the conversation's time limit ended before the tool's
			verdict = &callError{err.Error(), ErrTimeout}
		case err != nil && ctx.Err() != nil: // the conversation was cancelled
			return out, err
		}
		m.change(t.Name(), func(u *Usage) { u.add(time.Since(since), verdict) })
		return out, err
	})
}

// add counts a call that took a time and ended with an error, or without one.
func (u *Usage) add(took time.Duration, err error) {
	u.Calls++
	u.Time += took
	switch {
	case errors.Is(err, errRefused):
		u.Refused++
		return
	case errors.Is(err, ErrTimeout):
		u.Timeouts++
	case err != nil:
		u.Errors++
		if errors.Is(err, ErrFailed) {
			u.Failures++
		}
	}
	if err != nil {
		u.Example = err.Error()
	}
}

// Lost records that the connection to a tool's server was lost, and the reason. It is meant for mcp.Options.Lost.
func (m *Meter) Lost(why string) {
	const maxLost = 8 // stored between two calls of Take
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.lost) < maxLost {
		m.lost = append(m.lost, why)
	}
}

// Retried counts another attempt at a call of the tool with this name. It is meant for CallPolicy.Retried.
func (m *Meter) Retried(name string) { m.change(name, func(u *Usage) { u.Retries++ }) }

// Take returns the counts by tool name and the lost servers, since the previous Take.
func (m *Meter) Take() (usage map[string]Usage, lost []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	usage, lost = m.usage, m.lost
	m.usage, m.lost = nil, nil
	return usage, lost
}

// change changes the counts of a tool.
func (m *Meter) change(name string, change func(*Usage)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		m.usage = map[string]Usage{}
	}
	u := m.usage[name]
	change(&u)
	m.usage[name] = u
}
