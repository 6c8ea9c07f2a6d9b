// Package metrics holds a run's numbers, notes and progress, and writes and reads them as JSON lines. docs/metrics.md
// documents every number.
package metrics

import (
	"maps"
	"slices"
	"strconv"
)

// Kinds of a Record.
const (
	KindColdStart = "cold_start" // supervised training before the first step
	KindStep      = "step"       // one training step of one agent
	KindEval      = "eval"       // one held-out evaluation
)

// Record is the report of one agent on one step, evaluation or cold start. Agent "" is the whole team. Values holds numbers
// by name (docs/metrics.md lists them); an unknown value is absent, never 0. Counts holds histograms: by name, the number
// of occurrences of each integer.
type Record struct {
	Kind   string                      `json:"kind"`
	Step   int64                       `json:"step"` // KindStep: the step, from 1; KindEval: the weights' version; KindColdStart: 0
	Agent  string                      `json:"agent,omitempty"`
	Values map[string]float64          `json:"values"`
	Counts map[string]map[string]int64 `json:"counts,omitempty"`

	HeldOutDigest string  `json:"held_out,omitempty"` // digest of an evaluation's questions and settings, in the main agent's record
	Unknown       string  `json:"unknown,omitempty"`  // reason why an evaluation has no accuracy
	Scores        []Score `json:"scores,omitempty"`   // by set, kind, level and number of parts; only in the main agent's evaluations
}

// Integers returns the integer keys of a histogram in order, and the counts by key. Other keys are omitted.
func Integers(counts map[string]int64) (keys []int64, byKey map[int64]int64) {
	byKey = map[int64]int64{}
	for text, c := range counts {
		if k, err := strconv.ParseInt(text, 10, 64); err == nil {
			byKey[k] += c
		}
	}
	return slices.Sorted(maps.Keys(byKey)), byKey
}

// Score holds the results of an evaluation for the questions of a set, or for some of them.
type Score struct {
	Set       string          `json:"set,omitempty"` // name of the set; "": task.eval
	By        string          `json:"by,omitempty"`  // property that the questions share: "kind", "level" or "parts"; "": none
	Of        string          `json:"of,omitempty"`  // value of this property: a kind, a level or a number of parts
	Questions int             `json:"questions"`
	Samples   int             `json:"samples"`          // number of answers to each question
	Accuracy  float64         `json:"accuracy"`         // mean correctness
	Interval  [2]float64      `json:"interval"`         // contains 95 % of the accuracies when questions are resampled with replacement
	Pass      map[int]float64 `json:"pass"`             // by k: probability that one of k answers is right
	Best      map[int]float64 `json:"best"`             // by k: expected correctness of the best of k answers
	Calls     float64         `json:"calls"`            // number of calls of sub-agents in one answer
	Tokens    float64         `json:"tokens,omitempty"` // tokens that all agents read and wrote for one answer; 0: unknown
}

// position returns the position of a record in the run: cold start, evaluation 0, step 1, evaluation 1, step 2 and so on.
// Evaluation n evaluates the weights after step n.
func (r Record) position() int64 {
	switch r.Kind {
	case KindStep:
		return 2*r.Step - 1
	case KindEval:
		return 2 * r.Step
	}
	return -1
}

// Observer receives the records, notes and progress of a run. Its methods are called from several goroutines. A type that embeds
// [Observers] needs only the methods that it uses, because the zero value of Observers ignores all calls.
type Observer interface {
	// Progress receives the progress of an agent.
	Progress(p Progress)
	// Report receives a finished record.
	Report(r Record)
	// Note receives a message for people.
	Note(n Note)
}

// Observers passes each call on to several observers, in order.
type Observers []Observer

// Progress calls every observer.
func (o Observers) Progress(p Progress) {
	for _, x := range o {
		x.Progress(p)
	}
}

// Report calls every observer.
func (o Observers) Report(r Record) {
	for _, x := range o {
		x.Report(r)
	}
}

// Note calls every observer.
func (o Observers) Note(n Note) {
	for _, x := range o {
		x.Note(n)
	}
}
