// Package metricstest records and writes measurements in tests.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package metricstest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// Recorder is an Observer that keeps records and notes. Read Records when the run has ended.
type Recorder struct {
	mu      sync.Mutex
	notes   []string
	Records []metrics.Record
}

// Progress does nothing.
func (*Recorder) Progress(metrics.Progress) {}

// Report keeps a record.
func (r *Recorder) Report(x metrics.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Records = append(r.Records, x)
}

// Note keeps a note.
func (r *Recorder) Note(n metrics.Note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf("%s: %s: %s", n.Agent, n.Severity, n.Text))
}

// String returns the notes, one in a line.
func (r *Recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.notes, "\n")
}

// Find returns the record of a kind, step and agent.
func (r *Recorder) Find(kind string, step int64, agent string) (found metrics.Record, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.Records {
		if x.Kind == kind && x.Step == step && x.Agent == agent {
			return x, true
		}
	}
	return found, false
}

// Step returns the record of a step with a mean reward.
func Step(agent string, n int64, reward float64) metrics.Record {
	return metrics.Record{Kind: metrics.KindStep, Step: n, Agent: agent, Values: map[string]float64{"reward_mean": reward}}
}

// Evaluation returns the record of an evaluation of the agent planner.
func Evaluation(n int64, accuracy float64) metrics.Record {
	return metrics.Record{Kind: metrics.KindEval, Step: n, Agent: "planner", Values: map[string]float64{"accuracy": accuracy}}
}

// Write appends records to the metrics.jsonl of a folder, as a run does.
func Write(t testing.TB, dir string, records ...metrics.Record) {
	t.Helper()
	j := metrics.NewJSONL(dir)
	for _, r := range records {
		j.Report(r)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}
