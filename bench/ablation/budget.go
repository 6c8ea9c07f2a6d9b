package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// budget watches a run and asks it to stop once its rollouts have cost so many tokens. A step's records all
// come before anyone begins what follows it, so the run ends with the step that reaches the budget.
type budget struct {
	label string
	out   io.Writer
	limit float64
	stop  chan struct{}

	mu     sync.Mutex
	tokens float64 // of all steps so far
	steps  int64
	after  map[int64]float64 // tokens of the run up to and including a step
	evals  []metrics.Record  // the main agent's, in order
}

func newBudget(label string, limit float64, out io.Writer) *budget {
	return &budget{label: label, out: out, limit: limit, stop: make(chan struct{}), after: map[int64]float64{}}
}

// Progress implements metrics.Observer.
func (b *budget) Progress(metrics.Progress) {}

// Note implements metrics.Observer.
func (b *budget) Note(n metrics.Note) {
	fmt.Fprintf(b.out, "%s %s: %s: %s\n", b.label, n.Agent, n.Severity, n.Text)
}

// Report implements metrics.Observer.
func (b *budget) Report(r metrics.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch accuracy, main := r.Values["accuracy"]; {
	case r.Kind == metrics.KindStep:
		before := b.tokens
		b.tokens += r.Values["tokens"]
		b.steps = max(b.steps, r.Step)
		b.after[r.Step] = b.tokens
		if before < b.limit && b.tokens >= b.limit {
			close(b.stop)
		}
	case r.Kind == metrics.KindEval && main:
		b.evals = append(b.evals, r)
		fmt.Fprintf(b.out, "%s step %d, %.0f tokens: held-out accuracy %.3f\n", b.label, r.Step, b.after[r.Step], accuracy)
	}
}

// curve is the evaluations during the run, between the accuracies at the start and at the end.
func (b *budget) curve(start, final float64) []Point {
	b.mu.Lock()
	defer b.mu.Unlock()
	points := []Point{{Accuracy: start}}
	for _, r := range b.evals {
		points = append(points, Point{r.Step, b.after[r.Step], r.Values["accuracy"]})
	}
	return append(points, Point{b.steps, b.tokens, final})
}
