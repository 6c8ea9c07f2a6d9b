package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// patience is how long a check waits for a device or the store.
const patience = 2 * time.Second

// board is what a Server knows of its process.
type board struct {
	agents []string
	saved  Saved

	mu      sync.Mutex
	workers map[string]worker
	phases  map[string]metrics.Progress
	records map[string]map[string]metrics.Record // the newest, by agent and kind
}

// worker is an agent's model and its place in the run.
type worker struct {
	Machine
	Place
}

func newBoard(o Options) board {
	return board{agents: slices.Clone(o.Agents), saved: o.Saved,
		workers: map[string]worker{}, phases: map[string]metrics.Progress{}, records: map[string]map[string]metrics.Record{}}
}

// Joined says that an agent's model is loaded and that it has a place in the run; again when it has another.
// A nil Server, of a process that answers nobody, does not mind.
func (s *Server) Joined(agent string, m Machine, p Place) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[agent] = worker{m, p}
}

// Progress remembers what an agent is at.
func (b *board) Progress(p metrics.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.phases[p.Agent] = p
}

// Report keeps a record until the next of its kind.
func (b *board) Report(r metrics.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.records[r.Agent] == nil {
		b.records[r.Agent] = map[string]metrics.Record{}
	}
	b.records[r.Agent][r.Kind] = r
}

// Note is for people.
func (*board) Note(metrics.Note) {}

// placed gives the workers that have a place, by agent.
func (b *board) placed() map[string]worker {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]worker{}
	for agent, w := range b.workers {
		if w.Context().Err() == nil {
			out[agent] = w
		}
	}
	return out
}

// alive lists the devices that are lost. One that is busy all the while is at work; a worker that has no
// place is starting or ending, and its device comes or goes.
func (b *board) alive(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var lost []string
	for agent, w := range b.placed() {
		err := w.Alive(ctx)
		if err != nil && ctx.Err() == nil && w.Context().Err() == nil {
			lost = append(lost, fmt.Sprintf("%s: its device is lost: %s", agent, oneLine(err)))
		}
	}
	slices.Sort(lost)
	return lost
}

// ready lists what is missing before the process takes part in the run.
func (b *board) ready(ctx context.Context) []string {
	workers := b.placed()
	var missing []string
	for _, agent := range b.agents {
		if _, ok := workers[agent]; !ok {
			missing = append(missing, agent+": it waits for its place in the run, or for the other agents to start")
		}
	}
	for _, w := range workers { // of any: they share the store
		if _, err := ping(ctx, w); err != nil {
			missing = append(missing, "the store does not answer: "+oneLine(err))
		}
		break
	}
	return missing
}

// ping measures a round trip to the store.
func ping(ctx context.Context, p Place) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	err := p.Ping(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not within %v", patience)
	}
	return time.Since(start), err
}

// oneLine is an error's text for an answer of lines.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
