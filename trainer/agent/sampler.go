package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// sampler is the Voice of a policy. Tokens go in and out, and a dialect translates them.
type sampler struct {
	spec     Spec
	policy   policy.Sampler
	traj     *Trajectory
	turn     []int32 // newest sampled turn
	newest   int64   // newest policy version that sampled a turn
	computed int     // tokens of the row that went through the model
	next     folding
	roots    []uint64 // random-number keys of the stretches so far
}

func (v *sampler) Open(task string) error {
	ids, text, err := v.spec.Dialect.Prompt(task)
	if err == nil {
		v.next.task = task
		v.begin(ids, text)
	}
	return err
}

func (v *sampler) Observe(results []dialect.Result) error {
	ids, text, err := v.spec.Dialect.Observe(v.turn, results)
	if fold := v.spec.Limits.Fold; err == nil && fold.At > 0 {
		recent := append(v.next.recent, turnWithResults{slices.Concat(v.turn, ids), v.spec.Dialect.Text(v.turn) + text})
		v.next.recent = recent[max(len(recent)-fold.Keep, 0):]
		if v.next.summaryDue = len(v.row().Tokens)+len(ids) >= fold.At; v.next.summaryDue {
			ids, text, err = v.lastResults(results)
		}
	}
	if err == nil {
		v.row().AppendObserved(RoleObserved, ids, text)
		turns := v.row().Turns
		turns[len(turns)-1].Results = results
	}
	return err
}

// row returns the current stretch.
func (v *sampler) row() *Row {
	if n := len(v.traj.More); n > 0 {
		return &v.traj.More[n-1]
	}
	return &v.traj.Row
}

func (v *sampler) Turn(ctx context.Context) (dialect.Action, string, error) {
	if v.next.summaryDue {
		if a, finish, err := v.fold(ctx); err != nil || finish != "" || a.Invalid != "" {
			return a, finish, err
		}
	}
	finish, err := v.sample(ctx)
	if err != nil || finish != "" {
		return dialect.Action{}, finish, err
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
	// The capacity equals the length, so an engine that appends to the slice copies it.
	row := v.row()
	tokens := row.Tokens[:len(row.Tokens):len(row.Tokens)]
	out, err := v.policy.Generate(ctx, policy.Request{Tokens: tokens, Sampling: s, Key: v.spec.Key, Computed: v.computed})
	if err != nil && (out.Finish != policy.FinishCancelled || ctx.Err() == nil) {
		return "", err
	}
	cancelled := err
	if err := v.accept(out, room); err != nil {
		return "", err
	}
	if len(out.Tokens) > 0 {
		row.AppendSampled(out, v.spec.Dialect.Text(out.Tokens))
		v.computed = len(row.Tokens) - 1 // the newest goes through the model with the next turn
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
		return "", errors.New("the engine returned \"cancelled\", but the context was not cancelled")
	}
	return "", fmt.Errorf("unknown finish reason %q from the engine", out.Finish)
}

// room returns the number of tokens that the next turn may sample, and the finish reason if the turn reaches that
// number.
func (v *sampler) room(dialectMax int) (int, string) {
	room, binding := v.left()
	tighten := func(n int, finish string) {
		if n <= room {
			room, binding = n, finish
		}
	}
	if limit := v.spec.Limits.TurnTokens; limit > 0 {
		tighten(limit, FinishLength)
	}
	if dialectMax > 0 {
		tighten(dialectMax, FinishLength)
	}
	return room, binding
}

// left returns the number of tokens by which the row may grow, and the finish reason if it grows that much.
func (v *sampler) left() (int, string) {
	have := len(v.row().Tokens)
	if most := v.spec.Limits.Tokens; most > 0 && most <= v.policy.ContextLimit() {
		return most - have, FinishTokens
	}
	return v.policy.ContextLimit() - have, FinishContext
}

// accept checks a completion before it is appended to the trajectory. The learner trains on the trajectory.
func (v *sampler) accept(out policy.Completion, room int) error {
	if err := out.Check(room); err != nil {
		return err
	}
	if len(out.Tokens) == 0 {
		return nil
	}
	row := v.row()
	if row.SampledTokens() == 0 {
		row.Version = out.Version
	}
	row.Version, v.traj.Version, v.newest = min(row.Version, out.Version), min(v.traj.Version, out.Version), max(v.newest, out.Version)
	if lag := v.newest - v.traj.Version; lag > v.spec.MaxLag {
		return fmt.Errorf("turns sampled by policy versions %d to %d: more than max_lag %d apart", v.traj.Version, v.newest, v.spec.MaxLag)
	}
	return nil
}
