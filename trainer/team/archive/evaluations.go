package archive

import "encoding/json"

// Evaluations holds the results of the run's evaluations so far. A checkpoint includes them. All workers compute the same
// results, because all read the same outcomes.
type Evaluations struct {
	Evaluated *int64 `json:"evaluated,omitempty"` // newest version whose evaluation is complete
	Best      *Best  `json:"best,omitempty"`
}

// Best is the version with the highest held-out accuracy, and the earliest if several are equal.
type Best struct {
	Version  int64   `json:"version"`
	Accuracy float64 `json:"accuracy"`
}

// EvaluationsOf returns the evaluations in a checkpoint's manifest. The result is empty if they cannot be read.
func EvaluationsOf(m Manifest) Evaluations {
	var e Evaluations
	if len(m.Results) == 0 || json.Unmarshal(m.Results, &e) != nil {
		return Evaluations{}
	}
	return e
}

// Done reports whether the newest complete evaluation is the evaluation of this version.
func (e Evaluations) Done(version int64) bool { return e.Evaluated != nil && *e.Evaluated == version }

// IsBest reports whether a version is the best so far.
func (e Evaluations) IsBest(version int64) bool { return e.Best != nil && e.Best.Version == version }

func (e Evaluations) encode() json.RawMessage {
	data, _ := json.Marshal(e) // cannot fail: all numbers are finite
	return data
}

// Evaluations returns the results of the run's evaluations so far.
func (a *Archive) Evaluations() Evaluations { return a.evaluations }

// RecordEvaluation adds the result of an evaluation. A version with accuracy 0 or NaN never becomes the best.
func (a *Archive) RecordEvaluation(version int64, accuracy float64) {
	e := &a.evaluations
	e.Evaluated = &version
	if accuracy > 0 && (e.Best == nil || accuracy > e.Best.Accuracy) {
		e.Best = &Best{version, accuracy}
	}
}
