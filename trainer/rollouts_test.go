package trainer

import (
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
)

// TestAnswerText: who asked is told the answer, also after a call that went wrong, and why where there is none.
func TestAnswerText(t *testing.T) {
	for want, said := range map[string]agent.Trajectory{
		"42":                       {Finish: agent.FinishAnswer, FormatValid: true, Answer: "42"},
		"43":                       {Finish: agent.FinishAnswer, Malformed: 1, Answer: "43"},
		"(no answer: it is empty)": {Finish: agent.FinishAnswer},
		"(no answer: turns)":       {Finish: agent.FinishTurns},
	} {
		if got := answerText(said); got != want {
			t.Errorf("%+v: %q, want %q", said, got, want)
		}
	}
}
