package mgrpo

import "math"

// RewardSettings configures rewards. The fields are keys of the configuration, as in Objective.
type RewardSettings struct {
	// How the main agent's answer counts in a sub-agent's reward. outcome: its correctness, as in the paper. removal: its
	// correctness minus the correctness of an answer without the call. The main agent then answers once more for each call. See
	// docs/algorithm.md, section 2.
	Credit Credit `yaml:"credit" default:"outcome" enum:"outcome|removal"`

	// Weights of the parts of a reward. A trajectory with an invalid format has reward 0.
	Reward RewardWeights `yaml:"reward"`
}

// Credit chooses how the main agent's answer counts in a sub-agent's reward.
type Credit string

const (
	OutcomeCredit Credit = "outcome" // correctness of the answer, as in equation 5
	RemovalCredit Credit = "removal" // correctness minus the correctness without the call
)

// RewardWeights holds the weights of the parts of both rewards. The fields are keys of the configuration, as in
// Objective. The defaults are from section 5.1 of the paper.
type RewardWeights struct {
	// Weights of the main agent's reward.
	Main MainWeights `yaml:"main"`

	// Weights of a sub-agent's reward.
	Sub SubWeights `yaml:"sub"`
}

// MainWeights holds the weights of R_M (equation 4).
type MainWeights struct {
	// Valid format.
	Format float64 `yaml:"format" default:"0.1" min:"0" max:"1"`

	// Correct answer.
	Correct float64 `yaml:"correct" default:"0.9" min:"0" max:"1"`
}

// SubWeights holds the weights of R_S (equation 5).
type SubWeights struct {
	// Valid format.
	Format float64 `yaml:"format" default:"0.1" min:"0" max:"1"`

	// The main agent's answer was correct.
	Main float64 `yaml:"main" default:"0.4" min:"0" max:"1"`

	// Expert score of the sub-agent's own answer.
	Expert float64 `yaml:"expert" default:"0.5" min:"0" max:"1"`
}

// MainReward returns R_M (equation 4): 0 for an invalid format, otherwise the weighted sum of format and correctness.
// correct is in [0,1] and may be nil only if the format is invalid. Errors are *Refusal: the rollout then counts as
// failed instead of scoring 0.
func (w RewardWeights) MainReward(formatValid bool, correct *float64) (float64, error) {
	if err := checkScore("correct", correct, formatValid); err != nil {
		return 0, err
	}
	if !formatValid {
		return 0, nil
	}
	return w.Main.Format + w.Main.Correct*(*correct), nil
}

// SubReward returns R_S (equation 5). mainCorrect is the main agent's correctness in the same rollout; an invalid main
// format counts as 0, because there is no answer to grade. expert is the score of the sub-agent's own answer and may be
// nil only if its format is invalid. Errors are *Refusal.
func (w RewardWeights) SubReward(formatValid, mainFormatValid bool, mainCorrect, expert *float64) (float64, error) {
	return w.subReward(formatValid, mainFormatValid, mainCorrect, new(0.0), expert)
}

// RemovalReward returns R_S with the removal credit of the invocation, mainCorrect − without, in place of mainCorrect.
// without is the correctness of the main agent's answer without the invocation, in [0,1]. If the main format is invalid,
// the credit is 0, because there is no answer to compare. The reward may be negative. Errors are *Refusal.
func (w RewardWeights) RemovalReward(formatValid, mainFormatValid bool, mainCorrect, without, expert *float64) (float64, error) {
	if err := checkScore("without", without, mainFormatValid); err != nil {
		return 0, err
	}
	return w.subReward(formatValid, mainFormatValid, mainCorrect, without, expert)
}

func (w RewardWeights) subReward(formatValid, mainFormatValid bool, mainCorrect, without, expert *float64) (float64, error) {
	if err := checkScore("main_correct", mainCorrect, mainFormatValid); err != nil {
		return 0, err
	}
	if err := checkScore("expert", expert, formatValid); err != nil {
		return 0, err
	}
	if !formatValid {
		return 0, nil
	}
	credit := 0.0
	if mainFormatValid {
		credit = *mainCorrect - *without
	}
	return w.Sub.Format + w.Sub.Main*credit + w.Sub.Expert*(*expert), nil
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
