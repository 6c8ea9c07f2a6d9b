package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/policy"
)

// sampler is the Voice of a policy: tokens go in and out, and a dialect translates them.
type sampler struct {
	spec     Spec
	policy   policy.Sampler
	traj     *Trajectory
	turn     []int32 // newest sampled turn
	newest   int64   // newest policy version that sampled a turn
	computed int     // tokens of traj that went through the model
}

func (v *sampler) Open(task string) error {
	ids, text, err := v.spec.Dialect.Prompt(task)
	if err == nil {
		v.traj.AppendObserved(RolePrompt, ids, text)
		v.spec.Key.Root = policy.Root(ids, v.spec.Repeat)
	}
	return err
}

func (v *sampler) Observe(results []Result) error {
	ids, text, err := v.spec.Dialect.Observe(v.turn, results)
	if err == nil {
		v.traj.AppendObserved(RoleObserved, ids, text)
	}
	return err
}

func (v *sampler) Turn(ctx context.Context) (Action, string, error) {
	finish, err := v.sample(ctx)
	if err != nil || finish != "" {
		return Action{}, finish, err
	}
	return v.spec.Dialect.Parse(v.turn), "", nil
}

// sample samples a turn and appends it. finish is not empty if a limit ends the conversation.
func (v *sampler) sample(ctx context.Context) (finish string, err error) {
	stops := v.spec.Dialect.Stops()
	room, binding := v.room(stops.MaxNew)
	if room <= 0 {
		return binding, nil
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	s := v.spec.Sampling
	s.MaxNew, s.StopIDs, s.StopStrings = room, stops.IDs, stops.Strings
	// The capacity ends at the length, so an engine that appends to the slice copies it.
	tokens := v.traj.Tokens[:len(v.traj.Tokens):len(v.traj.Tokens)]
	out, err := v.policy.Generate(ctx, policy.Request{Tokens: tokens, Sampling: s, Key: v.spec.Key, Computed: v.computed})
	if err != nil && (out.Finish != policy.FinishCancelled || ctx.Err() == nil) {
		return "", err
	}
	cancelled := err
	if err := v.accept(out, room); err != nil {
		return "", err
	}
	if len(out.Tokens) > 0 {
		v.traj.AppendSampled(out, v.spec.Dialect.Text(out.Tokens))
		v.computed = len(v.traj.Tokens) - 1 // the newest goes through the model with the next turn
	}
	switch out.Finish {
	case policy.FinishStop:
		v.turn = out.Tokens
		return "", nil
	case policy.FinishLength:
		return binding, nil
	case policy.FinishContext:
		return FinishContext, nil
	case policy.FinishCancelled:
		if cancelled != nil {
			return "", cancelled
		}
		return "", errors.New("the engine answered \"cancelled\", but the context was not cancelled")
	}
	return "", fmt.Errorf("unknown finish reason %q from the engine", out.Finish)
}

// room returns the number of tokens that the next turn may sample, and the finish reason if it samples all of them.
func (v *sampler) room(dialectMax int) (int, string) {
	have := len(v.traj.Tokens)
	room, binding := v.policy.ContextLimit()-have, FinishContext
	tighten := func(n int, finish string) {
		if n <= room {
			room, binding = n, finish
		}
	}
	if max := v.spec.Limits.Tokens; max > 0 {
		tighten(max-have, FinishTokens)
	}
	if max := v.spec.Limits.TurnTokens; max > 0 {
		tighten(max, FinishLength)
	}
	if dialectMax > 0 {
		tighten(dialectMax, FinishLength)
	}
	return room, binding
}

// accept checks a completion before it is appended to the trajectory, on which the learner trains.
func (v *sampler) accept(out policy.Completion, room int) error {
	if err := out.Check(room); err != nil {
		return err
	}
	if len(out.Tokens) == 0 {
		return nil
	}
	if v.traj.SampledTokens() == 0 {
		v.traj.Version, v.newest = out.Version, out.Version
	}
	v.traj.Version, v.newest = min(v.traj.Version, out.Version), max(v.newest, out.Version)
	if lag := v.newest - v.traj.Version; lag > v.spec.MaxLag {
		return fmt.Errorf("turns sampled by policy versions %d to %d: more than max_lag %d apart", v.traj.Version, v.newest, v.spec.MaxLag)
	}
	return nil
}
