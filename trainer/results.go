package trainer

import (
	"encoding/json"

	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// results are what the run's evaluations gave so far; a checkpoint carries them. Every worker keeps the same
// ones, from the outcomes that all of them see.
type results struct {
	Evaluated *int64 `json:"evaluated,omitempty"` // newest version that was evaluated to the end
	Best      *best  `json:"best,omitempty"`
}

// best is the version with the highest held-out accuracy, the first of several.
type best struct {
	Version  int64   `json:"version"`
	Accuracy float64 `json:"accuracy"`
}

func (r *results) encode() json.RawMessage {
	data, _ := json.Marshal(r) // finite numbers: cannot fail
	return data
}

// evaluated says whether a version was evaluated to the end.
func (r *results) evaluated(version int64) bool { return r.Evaluated != nil && *r.Evaluated == version }

// note counts an evaluation in. An accuracy of 0 is no achievement.
func (r *results) note(version int64, outcomes []store.Outcome) {
	r.Evaluated = &version
	var correct mean
	for _, o := range outcomes {
		if o.Failed == "" {
			correct.add(o.Correct)
		}
	}
	if a := correct.value(); a > 0 && (r.Best == nil || a > r.Best.Accuracy) {
		r.Best = &best{version, a}
	}
}

// Best is the version that did best in evaluation as far as a checkpoint knows, if any did.
func Best(m archive.Manifest) (version int64, ok bool) {
	var r results
	if len(m.Results) == 0 || json.Unmarshal(m.Results, &r) != nil || r.Best == nil {
		return 0, false
	}
	return r.Best.Version, true
}
