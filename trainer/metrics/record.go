// Package metrics is where a run's numbers go: JSON lines, TensorBoard events, the terminal and the report.
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
}

// Observer is told what a run does. Its methods are called from several goroutines.
type Observer interface {
	// Progress reports that `done` of `total` units of a phase are through; total 0: not known.
	Progress(agent, phase string, done, total int)
	// Report hands over a finished record.
	Report(r Record)
	// Note is a line for people: a warning, a skipped update, a checkpoint that was written.
	Note(agent, text string)
}
