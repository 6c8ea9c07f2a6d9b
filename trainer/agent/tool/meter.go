package tool

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// Usage is how often a tool was called and what became of the calls.
type Usage struct {
	Calls    int64
	Errors   int64 // answered with an error other than a time-out, the failures included
	Failures int64 // errors that no other arguments would have prevented: see ErrFailed
	Timeouts int64
	Time     time.Duration // of all calls together
	Example  string        // text of the newest error or time-out
}

// Meter counts the calls of tools by their names. The zero Meter is ready to use, by any number of goroutines.
type Meter struct {
	mu    sync.Mutex
	usage map[string]Usage
	lost  []string
}

// Counted is t with its calls counted. It tells errors apart by what Limited makes of them, so it goes around that.
func (m *Meter) Counted(t Tool) Tool { return counted{t, m} }

// Lost notes that a tool's server was lost, and why: for MCPConfig.Lost.
func (m *Meter) Lost(why string) {
	const most = 8 // between two calls of Take: more say nothing new
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.lost) < most {
		m.lost = append(m.lost, why)
	}
}

// Take returns what was counted, by the tool's name, and which servers were lost since it was called before.
func (m *Meter) Take() (usage map[string]Usage, lost []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	usage, lost = m.usage, m.lost
	m.usage, m.lost = nil, nil
	return usage, lost
}

type counted struct {
	Tool
	meter *Meter
}

func (t counted) Call(ctx context.Context, args json.RawMessage) (string, error) {
	since := time.Now()
	out, err := t.Tool.Call(ctx, args)
	verdict := err
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded): // the conversation's time, before the tool's own
		verdict = &callError{err.Error(), ErrTimeout}
	case err != nil && ctx.Err() != nil: // the conversation is given up
		return out, err
	}
	t.meter.count(t.Name(), time.Since(since), verdict)
	return out, err
}

func (m *Meter) count(name string, took time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		m.usage = map[string]Usage{}
	}
	u := m.usage[name]
	u.Calls++
	u.Time += took
	switch {
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
	m.usage[name] = u
}
