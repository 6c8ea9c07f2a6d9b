package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// budget watches a run and asks it to stop when its rollouts have used a number of tokens. All records of a step come before the next
// step begins, so the run ends with the step that reaches the budget. If steps are rolled out ahead of training, they are trained on
// after the stop. The budget counts such a step before the stop, with the tokens of a mean step.
type budget struct {
	label string
	out   io.Writer
	limit float64
	ahead int64 // maximum number of steps that are rolled out ahead
	every int64 // steps between evaluations; 0: none
	stop  chan struct{}

	mu     sync.Mutex
	asked  bool
	tokens float64 // of all steps until now
	steps  int64
	ages   []float64         // mean age of the trajectories of each step and agent
	after  map[int64]float64 // tokens of the run up to and including a step
	evals  []metrics.Record  // the main agent's, in order
}

func newBudget(label string, limit float64, ahead, every int64, out io.Writer) *budget {
	return &budget{label: label, out: out, limit: limit, ahead: ahead, every: every, stop: make(chan struct{}), after: map[int64]float64{}}
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
	switch accuracy, main := r.Values[metrics.Accuracy]; {
	case r.Kind == metrics.KindStep:
		b.tokens += r.Values[metrics.Tokens] + r.Values[metrics.RemovalTokens]
		b.steps = max(b.steps, r.Step)
		b.after[r.Step] = b.tokens
		b.ages = append(b.ages, r.Values[metrics.LagMean])
		if owed := float64(b.untrained()) * b.tokens / float64(b.steps); !b.asked && b.tokens+owed >= b.limit {
			b.asked = true
			close(b.stop)
		}
	case r.Kind == metrics.KindEval && main:
		b.evals = append(b.evals, r)
		fmt.Fprintf(b.out, "%s step %d, %.0f tokens: held-out accuracy %.3f\n", b.label, r.Step, b.after[r.Step], accuracy)
	}
}

// untrained returns the number of steps that are rolled out and not trained on yet. None of them is after an evaluation.
func (b *budget) untrained() int64 {
	if b.every == 0 {
		return b.ahead
	}
	return min(b.ahead, (b.every-b.steps%b.every)%b.every)
}

// curve returns the evaluations during the run, between the accuracies at the start and at the end.
func (b *budget) curve(start, final float64) []Point {
	b.mu.Lock()
	defer b.mu.Unlock()
	points := []Point{{Accuracy: start}}
	for _, r := range b.evals {
		points = append(points, Point{r.Step, b.after[r.Step], r.Values[metrics.Accuracy]})
	}
	return append(points, Point{b.steps, b.tokens, final})
}

// age returns the mean age of the trajectories in versions, averaged over steps and agents.
func (b *budget) age() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return mean(b.ages)
}
