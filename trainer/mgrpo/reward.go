package mgrpo

import (
	"fmt"
	"math"
)

// RewardWeights scale the components of both rewards. The defaults are the paper's (section 5.1).
type RewardWeights struct {
	Main MainWeights `json:"main" yaml:"main"`
	Sub  SubWeights  `json:"sub" yaml:"sub"`
}

// MainWeights are the weights of R_M (equation 4).
type MainWeights struct {
	Format  float64 `json:"format" yaml:"format"`
	Correct float64 `json:"correct" yaml:"correct"`
}

// SubWeights are the weights of R_S (equation 5). Main weighs the main agent's correctness.
type SubWeights struct {
	Format float64 `json:"format" yaml:"format"`
	Main   float64 `json:"main" yaml:"main"`
	Expert float64 `json:"expert" yaml:"expert"`
}

// DefaultRewardWeights are 0.1 format + 0.9 correctness, and 0.1 format + 0.4 main + 0.5 expert.
func DefaultRewardWeights() RewardWeights {
	return RewardWeights{Main: MainWeights{Format: 0.1, Correct: 0.9}, Sub: SubWeights{Format: 0.1, Main: 0.4, Expert: 0.5}}
}

// Validate reports the first weight that is negative or not finite, by its key.
func (w RewardWeights) Validate() error {
	for _, f := range []struct {
		key   string
		value float64
	}{
		{"reward.main.format", w.Main.Format}, {"reward.main.correct", w.Main.Correct},
		{"reward.sub.format", w.Sub.Format}, {"reward.sub.main", w.Sub.Main}, {"reward.sub.expert", w.Sub.Expert},
	} {
		if !(f.value >= 0) || math.IsInf(f.value, 0) {
			return &SettingError{Key: f.key, Value: f.value, Reason: "must be a finite number, 0 or more"}
		}
	}
	return nil
}

// MainReward is R_M (equation 4): 0 with an invalid format, else the weighted format and correctness.
// correct is in [0,1] and may be nil only when the format is invalid. Errors are *Refusal; a refused
// rollout counts as failed, it is never scored 0.
func (w RewardWeights) MainReward(formatValid bool, correct *float64) (float64, error) {
	if err := checkScore("correct", correct, formatValid); err != nil {
		return 0, err
	}
	if !formatValid {
		return 0, nil
	}
	return w.Main.Format + w.Main.Correct*(*correct), nil
}

// SubReward is R_S (equation 5). mainCorrect is the main agent's correctness in the same rollout; an
// invalid main format counts as 0, since there is then no answer to grade. expert is the sub-agent's own
// score and may be nil only when its format is invalid. Errors are *Refusal.
func (w RewardWeights) SubReward(formatValid, mainFormatValid bool, mainCorrect, expert *float64) (float64, error) {
	if err := checkScore("main_correct", mainCorrect, mainFormatValid); err != nil {
		return 0, err
	}
	if err := checkScore("expert", expert, formatValid); err != nil {
		return 0, err
	}
	if !formatValid {
		return 0, nil
	}
	c := 0.0
	if mainFormatValid {
		c = *mainCorrect
	}
	return w.Sub.Format + w.Sub.Main*c + w.Sub.Expert*(*expert), nil
}

func checkScore(field string, score *float64, needed bool) error {
	switch {
	case score == nil && needed:
		return &Refusal{Code: MissingReward, Field: field}
	case score == nil:
		return nil
	case math.IsNaN(*score) || math.IsInf(*score, 0):
		return &Refusal{Code: NonFiniteReward, Field: field}
	case *score < 0 || *score > 1:
		return &Refusal{Code: RewardOutOfRange, Field: field}
	}
	return nil
}

// SettingError is a setting with an impossible value.
type SettingError struct {
	Key    string // as written in a configuration file
	Value  any
	Reason string
}

func (e *SettingError) Error() string { return fmt.Sprintf("%s: %v: %s", e.Key, e.Value, e.Reason) }
