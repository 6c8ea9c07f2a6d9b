package worker

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// scoreAnswer verifies the main agent's answer and computes its reward.
func (qs queries) scoreAnswer(ctx context.Context, q task.Query, a task.Attempt, o *store.Outcome) (err error) {
	if o.Format {
		if o.Correct, err = qs.task.VerifyMain(ctx, q, a); err != nil {
			return err
		}
	}
	o.Reward, err = qs.rewards.MainReward(o.Format, &o.Correct)
	return err
}

// unjudged reports whether the answers to sub-tasks of q have no score. This is the case for a held-out question without
// parts, since parts are the reference for these answers. Training questions have parts.
func (qs queries) unjudged(p store.Phase, q task.Query) bool {
	return p.Evaluates() && qs.cfg.Task.Expert.Kind == "parts" && len(q.Parts) == 0
}

// expertScore verifies this sub-agent's answer. A score from which no reward can be computed is an error.
func (qs queries) expertScore(ctx context.Context, q task.Query, a task.Attempt) (float64, error) {
	score, err := qs.task.VerifySub(ctx, q, a)
	if err == nil {
		_, err = qs.rewards.SubReward(true, false, nil, &score)
	}
	return score, err
}

// subReward returns this agent's reward for call i of a rollout.
func (s *steps) subReward(o store.Outcome, i int, t *trajectory) (float64, error) {
	if s.cfg.GRPO.Credit != mgrpo.RemovalCredit || !s.cfg.Learns(s.agent) {
		return s.rules.Rewards.SubReward(t.conversation.FormatValid, o.Format, &o.Correct, t.expert)
	}
	var without *float64
	if scores := o.Without[s.name]; i < len(scores) {
		without = &scores[i]
	}
	return s.rules.Rewards.RemovalReward(t.conversation.FormatValid, o.Format, &o.Correct, without, t.expert)
}
