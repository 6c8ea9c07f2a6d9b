package phases

import (
	"cmp"
	"fmt"
)

// shape holds the numbers of prompts, rollouts and tokens of a case.
type shape struct {
	prompts, rollouts, promptTokens, newTokens int
	microBatch                                 int // tokens of an update's micro-batch; 0: the default of a run's configuration
}

func (s shape) String() string {
	text := fmt.Sprintf("%d prompts × %d × (%d + %d) tokens", s.prompts, s.rollouts, s.promptTokens, s.newTokens)
	if s.microBatch > 0 {
		text += fmt.Sprintf(", micro-batches of %d", s.microBatch)
	}
	return text
}

// microTokens returns the number of tokens of an update's micro-batch.
func (s shape) microTokens() int { return cmp.Or(s.microBatch, microBatchTokens) }

// sequences returns the number of sampled sequences.
func (s shape) sequences() int { return s.prompts * s.rollouts }
