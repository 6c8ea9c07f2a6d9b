package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// removedAnswer is the result that a main agent reads in place of a removed answer. A sub-agent that gave no answer has a similar one.
const removedAnswer = "(no answer)"

// WithoutCall returns t as it would be if subAgent had not answered its call with this index. The agent's turns up to its
// last results stay as they are; the turns after them are sampled again, with the random numbers of the first time. If the
// agent then calls again, the conversation has no answer, and its Finish is FinishTurns. If it reaches a limit, Finish names
// the limit. Sub-agents and tools are not called. spec and env must be the conversation's.
//
// t must have ended with an answer, and neither folds nor a hosted model are supported. WithoutCall returns the same errors
// as Run.
func WithoutCall(ctx context.Context, spec Spec, env Env, t *Trajectory, subAgent string, index int) (Trajectory, error) {
	if t.Finish != FinishAnswer || len(t.More) > 0 || len(t.Tokens) == 0 {
		return Trajectory{}, errors.New("removal of a call: the conversation must have one row of tokens and an answer")
	}
	kept, err := turnsWithout(t, subAgent, index)
	if err != nil {
		return Trajectory{}, err
	}
	out := Trajectory{Row: NewRow(spec.Key, spec.Main), Calls: t.Calls, Finish: FinishTurns}
	out.Version = t.Version
	v := &sampler{spec: spec, policy: env.Policy, traj: &out, newest: t.Version}
	if err := v.replay(t, kept); err != nil {
		return out, err
	}
	for most := spec.Limits.Turns; most == 0 || out.SampledTurns() < most; {
		action, finish, err := v.Turn(ctx)
		if err != nil {
			return out, fmt.Errorf("removal of call %d of %s in conversation %s: %w", index, subAgent, t.ID, err)
		}
		if out.conclude(action, finish) || len(action.Calls) > 0 {
			return out, nil
		}
	}
	return out, nil
}

// turnsWithout returns the turns of t from its first sampled turn to its last results, with call index of subAgent
// unanswered.
func turnsWithout(t *Trajectory, subAgent string, index int) ([]Turn, error) {
	turns, last, calls := slices.Clone(t.Turns), 0, 0
	for i, turn := range turns {
		if turn.Results != nil {
			last = i
		}
		for j, r := range turn.Results {
			if !r.Call.Delegate || r.Call.Problem != "" || r.Call.Name != subAgent {
				continue
			}
			if calls == index {
				turns[i].Results = slices.Clone(turn.Results)
				turns[i].Results[j].Text = removedAnswer
			}
			calls++
		}
	}
	if index >= calls {
		return nil, fmt.Errorf("removal of call %d of %s: the conversation made %d", index, subAgent, calls)
	}
	return turns[1 : last+1], nil
}

// replay brings the voice to the end of turns, which are turns of t with other results.
func (v *sampler) replay(t *Trajectory, turns []Turn) error {
	if err := v.Open(v.spec.Task); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	for _, turn := range turns {
		if !turn.Sampled {
			if err := v.Observe(turn.Results); err != nil {
				return fmt.Errorf("observation: %w", err)
			}
			continue
		}
		v.turn = t.Tokens[turn.From:turn.To]
		v.row().AppendSampled(policy.Completion{Tokens: v.turn, LogProbs: t.LogProbs[turn.From:turn.To]}, turn.Text)
		v.spec.Dialect.Parse(v.turn) // a dialect may keep the state of a conversation
	}
	return nil
}
