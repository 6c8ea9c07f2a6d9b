package launch

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Turn is a follower's answer to a request for a turn.
type Turn struct {
	policy.Completion
	Reply // holds the error, if there is no turn
	Stats policy.Stats
}

// check refuses an answer that a correct engine of the model cannot give to this request.
func (t Turn) check(r policy.Request, model arch.Config) error {
	switch t.Finish {
	case policy.FinishStop, policy.FinishLength, policy.FinishContext, policy.FinishCancelled:
	default:
		return fmt.Errorf("unknown finish reason %.20q", t.Finish)
	}
	for _, id := range t.Tokens {
		if id < 0 || int(id) >= model.VocabSize {
			return fmt.Errorf("token %d is outside the vocabulary of %d", id, model.VocabSize)
		}
	}
	if err := t.Completion.Check(r.Sampling.MaxNew); err != nil {
		return err
	}
	return model.CheckRoutes(t.Routes, len(r.Tokens)+len(t.Tokens)-1) // the newest token has not gone through the model
}
