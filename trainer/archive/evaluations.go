package archive

import "encoding/json"

// Evaluations are what the run's evaluations gave so far; a checkpoint carries them. Every worker keeps the same
// ones, from the outcomes that all of them see.
type Evaluations struct {
	Evaluated *int64 `json:"evaluated,omitempty"` // newest version that was evaluated to the end
	Best      *Best  `json:"best,omitempty"`
}

// Best is the version with the highest held-out accuracy, the first of several.
type Best struct {
	Version  int64   `json:"version"`
	Accuracy float64 `json:"accuracy"`
}

// EvaluationsOf are those that a checkpoint knows of; none where it says nothing that can be read.
func EvaluationsOf(m Manifest) Evaluations {
	var e Evaluations
	if len(m.Results) == 0 || json.Unmarshal(m.Results, &e) != nil {
		return Evaluations{}
	}
	return e
}

// Done says whether a version was evaluated to the end.
func (e Evaluations) Done(version int64) bool { return e.Evaluated != nil && *e.Evaluated == version }

// IsBest says whether no version evaluated did better.
func (e Evaluations) IsBest(version int64) bool { return e.Best != nil && e.Best.Version == version }

// with counts an evaluation in. An accuracy of 0 is no achievement; NaN is unknown.
func (e Evaluations) with(version int64, accuracy float64) Evaluations {
	e.Evaluated = &version
	if accuracy > 0 && (e.Best == nil || accuracy > e.Best.Accuracy) {
		e.Best = &Best{version, accuracy}
	}
	return e
}

func (e Evaluations) encode() json.RawMessage {
	data, _ := json.Marshal(e) // finite numbers: cannot fail
	return data
}

// Evaluations are what the run's evaluations gave so far.
func (a *Archive) Evaluations() Evaluations { return a.evaluations }

// Evaluated counts an evaluation in.
func (a *Archive) Evaluated(version int64, accuracy float64) {
	a.evaluations = a.evaluations.with(version, accuracy)
}
