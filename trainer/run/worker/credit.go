package worker

import (
	"context"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// callRemovals holds the main agent's conversation without each of its calls, for grpo.credit: removal.
type callRemovals struct {
	conversations map[string][]agent.Trajectory // by sub-agent and index of the call
	tokens        int                           // that these conversations read and wrote after the parts that they share with the original
}

// removeCalls plays the end of the main agent's conversation t without each call of the sub-agents that learn. It does nothing in
// an evaluation, without grpo.credit: removal, and if the conversation has no answer in a valid format. The conversations
// follow each other, so a rollout remains one conversation of the engine.
func (ro *rollouts) removeCalls(ctx context.Context, p store.Phase, c play.Conversation, t *agent.Trajectory) (r callRemovals, err error) {
	if p.Evaluates() || ro.cfg.GRPO.Credit != mgrpo.RemovalCredit || !t.FormatValid {
		return r, nil
	}
	c.Step, c.Sampling = samplingStep(p), Sampling(ro.cfg, p)
	r.conversations = map[string][]agent.Trajectory{}
	for _, name := range slices.Sorted(maps.Keys(t.Calls)) {
		if !ro.cfg.Learns(ro.cfg.Agent(name)) {
			continue
		}
		for i := range t.Calls[name] {
			replayed, err := ro.player.PlayWithoutCall(ctx, c, t, name, i)
			if err != nil {
				return r, err
			}
			r.conversations[name] = append(r.conversations[name], replayed)
			r.tokens += newTokens(&replayed, t)
		}
	}
	return r, nil
}

// newTokens returns the number of tokens of a conversation after the part that it shares with the original.
func newTokens(t, original *agent.Trajectory) int {
	same := 0
	for same < min(len(t.Tokens), len(original.Tokens)) && t.Tokens[same] == original.Tokens[same] {
		same++
	}
	return len(t.Tokens) - same
}

// scoreWithoutCalls verifies the answers without each call. A conversation without an answer in a valid format is worth 0: the
// main agent needed the call.
func (qs queries) scoreWithoutCalls(ctx context.Context, q task.Query, r callRemovals, o *store.Outcome) error {
	byAgent := map[string][]float64{}
	for name, conversations := range r.conversations {
		scores := make([]float64, len(conversations))
		for i, t := range conversations {
			if !t.FormatValid {
				continue
			}
			var err error
			if scores[i], err = qs.task.VerifyMain(ctx, q, attemptOf(t, "")); err != nil {
				return err
			}
		}
		byAgent[name] = scores
	}
	if len(byAgent) > 0 {
		o.Without = byAgent
	}
	return nil
}
