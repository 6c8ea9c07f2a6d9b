package archive

import "encoding/json"

// Evaluations are the results of the run's evaluations so far. A checkpoint includes them. All workers compute the same
// results, because all read the same outcomes.
type Evaluations struct {
	Evaluated *int64 `json:"evaluated,omitempty"` // newest version whose evaluation is complete
	Best      *Best  `json:"best,omitempty"`
}

// Best is the version with the highest held-out accuracy, the earliest of equal ones.
type Best struct {
	Version  int64   `json:"version"`
	Accuracy float64 `json:"accuracy"`
}

// EvaluationsOf are the evaluations in a checkpoint's manifest; none if they cannot be read.
func EvaluationsOf(m Manifest) Evaluations {
	var e Evaluations
	if len(m.Results) == 0 || json.Unmarshal(m.Results, &e) != nil {
		return Evaluations{}
	}
	return e
}

// Done says whether the newest complete evaluation is of this version.
func (e Evaluations) Done(version int64) bool { return e.Evaluated != nil && *e.Evaluated == version }

// IsBest says whether a version is the best so far.
func (e Evaluations) IsBest(version int64) bool { return e.Best != nil && e.Best.Version == version }

// with adds an evaluation. A version with accuracy 0 or NaN never becomes the best.
func (e Evaluations) with(version int64, accuracy float64) Evaluations {
	e.Evaluated = &version
	if accuracy > 0 && (e.Best == nil || accuracy > e.Best.Accuracy) {
		e.Best = &Best{version, accuracy}
	}
	return e
}

func (e Evaluations) encode() json.RawMessage {
	data, _ := json.Marshal(e) // cannot fail: all numbers are finite
	return data
}

// Evaluations are the results of the run's evaluations so far.
func (a *Archive) Evaluations() Evaluations { return a.evaluations }

// Evaluated adds the result of an evaluation.
func (a *Archive) Evaluated(version int64, accuracy float64) {
	a.evaluations = a.evaluations.with(version, accuracy)
}
