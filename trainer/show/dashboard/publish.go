package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Probe gives the page access to the worker of an agent.
type Probe interface {
	// Rollouts returns the number of conversations in flight.
	Rollouts() int
	// Question returns a query's text and its reference answer, or "" if the id is unknown.
	Question(id string) (text, answer string)
}

// worker is an agent's worker with its place in the run.
type worker struct {
	Probe
	*store.Member
}

// activityNow is an agent's current activity and the time at which it began.
type activityNow struct {
	metrics.Progress
	since time.Time
}

// activity is the state that a worker publishes.
type activity struct {
	Phase    string    `json:"phase"`
	For      []string  `json:"for,omitempty"` // the awaited agents, if it waits
	Done     int       `json:"done"`          // finished units of the phase
	Total    int       `json:"total"`         // number of units of the phase; 0: unknown
	Since    time.Time `json:"since"`         // start of the phase, by the worker's clock
	Rollouts int       `json:"rollouts"`      // conversations in flight
}

// Joined adds an agent of this process with its place in the run, until the place's context ends: the page publishes the
// agent's activity and reads the store. On a nil Page it does nothing.
func (p *Page) Joined(agent string, probe Probe, place *store.Member) {
	if p == nil {
		return
	}
	w := worker{probe, place}
	p.mu.Lock()
	p.workers[agent] = w
	p.mu.Unlock()
	p.work.Go(func() { p.keepPublishing(agent, w) })
}

// keepPublishing publishes an agent's activity, at most once a second.
func (p *Page) keepPublishing(agent string, w worker) {
	tick := time.NewTicker(readInterval)
	defer tick.Stop()
	published := ""
	for {
		p.mu.Lock()
		now := p.now[agent]
		p.mu.Unlock()
		text, _ := json.Marshal(activityOf(now, w)) // texts and numbers: cannot fail
		if string(text) != published && p.publish(agent, w, func(ctx context.Context) error { return w.Display.PublishActivity(ctx, text) }) {
			published = string(text)
		}
		select {
		case <-p.ctx.Done():
			return
		case <-w.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// activityOf returns a worker's activity.
func activityOf(d activityNow, w worker) activity {
	a := activity{For: d.For, Done: d.Done, Total: d.Total, Since: d.since, Rollouts: w.Rollouts()}
	if d.Activity != "" {
		a.Phase = d.Phase()
	}
	return a
}

// publish executes a request for an agent, and reports its first failure. It does not report a failure due to a lost
// place.
func (p *Page) publish(agent string, w worker, request func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(w.Context(), requestTimeout)
	defer cancel()
	err := request(ctx)
	if err == nil || w.Context().Err() != nil {
		return err == nil
	}
	p.mu.Lock()
	warned := p.warned[agent]
	p.warned[agent] = true
	p.mu.Unlock()
	if !warned && p.opt.Warn != nil {
		p.opt.Warn(metrics.Warnf(agent, metrics.TopicHealth, "the pages at %s miss some of its statistics, which cannot be published: %v", Path, err))
	}
	return false
}

// Progress records an agent's activity.
func (p *Page) Progress(x metrics.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.now[x.Agent]
	if d.since.IsZero() || d.Phase() != x.Phase() {
		d.since = time.Now().UTC()
	}
	x.For = slices.Clone(x.For)
	d.Progress = x
	p.now[x.Agent] = d
}

// maxUnread is the largest number of records that were not read back from the store.
const maxUnread = 1 << 14

// Report publishes a record. Training waits for the store's reply, for a bounded time.
func (p *Page) Report(r metrics.Record) {
	l := metrics.NewLine(r)
	p.mu.Lock()
	p.unread = append(p.unread, l)
	p.unread = p.unread[max(0, len(p.unread)-maxUnread):]
	w, placed := p.workers[r.Agent]
	p.mu.Unlock()
	if placed {
		p.publish(r.Agent, w, func(ctx context.Context) error {
			text, err := json.Marshal(l)
			if err != nil {
				return fmt.Errorf("a record: %w", err)
			}
			return w.Display.PublishRecord(ctx, text)
		})
	}
	p.requestRead()
}

// Note does nothing: notes are shown on the terminal and in the run's folder.
func (*Page) Note(metrics.Note) {}
