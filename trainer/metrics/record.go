// Package metrics is where a run's numbers go: JSON lines, TensorBoard events and the terminal. What a
// number means is in values.go, from which docs/metrics.md is made.
package metrics

// Kinds of a Record.
const (
	KindColdStart = "cold_start" // supervised training before the first step
	KindStep      = "step"       // one training step of one agent
	KindEval      = "eval"       // one held-out evaluation
)

// Record is what one agent reports of one step or evaluation. Agent "" is the team as a whole. Values
// are plain numbers by name (docs/metrics.md lists them); a value that is not known is absent, never 0.
// Counts are histograms: a name, then how often each integer occurred.
type Record struct {
	Kind   string                      `json:"kind"`
	Step   int64                       `json:"step"`
	Agent  string                      `json:"agent,omitempty"`
	Values map[string]float64          `json:"values"`
	Counts map[string]map[string]int64 `json:"counts,omitempty"`

	Unknown string `json:"unknown,omitempty"` // of an evaluation: why it has no accuracy
}

// place orders what an agent reports in the course of a run: cold start, evaluation 0, step 1,
// evaluation 1, step 2 and so on. Evaluation n is of the weights that step n left.
func (r Record) place() int64 {
	switch r.Kind {
	case KindStep:
		return 2*r.Step - 1
	case KindEval:
		return 2 * r.Step
	}
	return -1
}

// Observer is told what a run does. Its methods are called from several goroutines.
type Observer interface {
	// Progress says what an agent is at.
	Progress(p Progress)
	// Report hands over a finished record.
	Report(r Record)
	// Note hands over a message for people.
	Note(n Note)
}

// Observers passes everything on to each of several observers, in order.
type Observers []Observer

// Progress tells every observer.
func (o Observers) Progress(p Progress) {
	for _, x := range o {
		x.Progress(p)
	}
}

// Report tells every observer.
func (o Observers) Report(r Record) {
	for _, x := range o {
		x.Report(r)
	}
}

// Note tells every observer.
func (o Observers) Note(n Note) {
	for _, x := range o {
		x.Note(n)
	}
}
