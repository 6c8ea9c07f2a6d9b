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

// checkTimeout is the time limit of a check of a device or of the store.
const checkTimeout = 2 * time.Second

// processState holds the state of the process that a Server shows.
type processState struct {
	agents []string
	newest func() (step int64, at time.Time, ok bool)

	mu      sync.Mutex
	workers map[string]worker
	phases  map[string]metrics.Progress
	records map[string]map[string]metrics.Record // newest records, by agent and kind
}

// worker is an agent's model and its place in the run.
type worker struct {
	Probe
	Place
}

func newProcessState(o Options) processState {
	return processState{agents: slices.Clone(o.Agents), newest: o.Newest,
		workers: map[string]worker{}, phases: map[string]metrics.Progress{}, records: map[string]map[string]metrics.Record{}}
}

// Joined adds an agent of this process to the server, when the agent's model is loaded and has
// a place in the run. It is called again for a new place. It ignores a nil Server.
func (s *Server) Joined(agent string, probe Probe, p Place) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[agent] = worker{probe, p}
}

// Progress stores the current activity of an agent.
func (s *processState) Progress(p metrics.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phases[p.Agent] = p
}

// Report stores a record in place of the last record of its kind.
func (s *processState) Report(r metrics.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records[r.Agent] == nil {
		s.records[r.Agent] = map[string]metrics.Record{}
	}
	s.records[r.Agent][r.Kind] = r
}

// Note ignores notes, which are for people.
func (*processState) Note(metrics.Note) {}

// placed maps agents to the workers that have a place.
func (s *processState) placed() map[string]worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]worker{}
	for agent, w := range s.workers {
		if w.Context().Err() == nil {
			out[agent] = w
		}
	}
	return out
}

// alive lists the devices that have failed. A device that is busy for a long time has not failed. A worker without a place
// is starting or ending, so its device is not checked.
func (s *processState) alive(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var lost []string
	for agent, w := range s.placed() {
		err := w.Alive(ctx)
		if err != nil && ctx.Err() == nil && w.Context().Err() == nil {
			lost = append(lost, fmt.Sprintf("%s: its device is lost: %s", agent, oneLine(err)))
		}
	}
	slices.Sort(lost)
	return lost
}

// ready lists the conditions that are not yet met for the process to take part in the run.
func (s *processState) ready(ctx context.Context) []string {
	workers := s.placed()
	var missing []string
	for _, agent := range s.agents {
		if _, ok := workers[agent]; !ok {
			missing = append(missing, agent+": it waits for its place in the run, or for the other agents to start")
		}
	}
	for _, w := range workers { // one worker is enough: all use the same store
		if _, err := ping(ctx, w); err != nil {
			missing = append(missing, "the store does not answer: "+oneLine(err))
		}
		break
	}
	return missing
}

// ping measures a round trip to the store.
func ping(ctx context.Context, p Place) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	start := time.Now()
	err := p.Ping(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", checkTimeout)
	}
	return time.Since(start), err
}

// oneLine returns the text of an error on one line.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
