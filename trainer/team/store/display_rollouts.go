package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Limits of NewestOutcomes and FinishedRollouts.
const (
	newestPhases = 8      // phases in which finished rollouts are looked for
	maxListed    = 10_000 // outcomes of a phase
	listedCalls  = 8      // invocations of a rollout
)

// FinishedRollout is a finished rollout with the calls of sub-agents that went through the store.
type FinishedRollout struct {
	Outcome
	Delegations []AnsweredInvocation // at most 8, by agent and index; Outcome.Calls counts all of them
}

// AnsweredInvocation is an invocation with its answer.
type AnsweredInvocation struct {
	Invocation
	Answer *Result // nil: there is no answer
}

// NewestOutcomes returns the ids of at most n finished rollouts of one query, sorted. It chooses the newest phase that has
// finished rollouts, and in this phase the query with the most. ids is empty if the store has no finished rollout.
func (d *Display) NewestOutcomes(ctx context.Context, n int) (p Phase, ids []string, err error) {
	names, err := phaseNames(ctx, d.at.Store)
	if err != nil {
		return p, nil, fmt.Errorf("store: the phases: %w", d.at.advise(err))
	}
	var phases []Phase
	for _, name := range names {
		p, err := parsePhase(name)
		if err != nil {
			return p, nil, &MalformedError{Key: d.at.key("phases"), Msg: err.Error()}
		}
		if !p.hasNoPlan() {
			phases = append(phases, p)
		}
	}
	// step-n follows eval-n.
	slices.SortFunc(phases, func(a, b Phase) int { return cmp.Or(cmp.Compare(b.Step, a.Step), cmp.Compare(b.Kind, a.Kind)) })
	for _, p := range phases[:min(len(phases), newestPhases)] {
		key := d.at.key("outcome", p.String())
		count, err := d.at.rdb.HLen(ctx, key).Result()
		if err == nil && count > 0 && count <= maxListed {
			ids, err = d.at.rdb.HKeys(ctx, key).Result()
		}
		if err != nil {
			return p, nil, fmt.Errorf("store: the outcomes of %s: %w", p, d.at.advise(err))
		}
		if len(ids) > 0 {
			return p, fullestQuery(ids, n), nil
		}
	}
	return p, nil, nil
}

// fullestQuery returns the first n rollouts of the query with the most rollouts. If several queries have the same number, it
// chooses the last one by name.
func fullestQuery(ids []string, n int) []string {
	byQuery := map[string][]int{}
	for _, id := range ids {
		cut := strings.LastIndexByte(id, '/')
		if k, err := strconv.Atoi(id[cut+1:]); cut > 0 && err == nil {
			byQuery[id[:cut]] = append(byQuery[id[:cut]], k)
		}
	}
	best := ""
	for q, rollouts := range byQuery {
		if c := cmp.Compare(len(rollouts), len(byQuery[best])); c > 0 || c == 0 && q > best {
			best = q
		}
	}
	slices.Sort(byQuery[best])
	var out []string
	for _, k := range byQuery[best][:min(n, len(byQuery[best]))] {
		out = append(out, Outcome{Query: best, Rollout: k}.ID())
	}
	return out
}

// FinishedRollouts reads finished rollouts by their ids. Rollouts that are no longer in the store are omitted.
func (d *Display) FinishedRollouts(ctx context.Context, p Phase, ids []string) ([]FinishedRollout, error) {
	var out []FinishedRollout
	for _, id := range ids {
		key := d.at.key("outcome", p.String())
		text, err := d.at.rdb.HGet(ctx, key, id).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("store: outcome %s of %s: %w", clip(id), p, d.at.advise(err))
		}
		r := FinishedRollout{}
		if r.Outcome, err = decode[Outcome](key+" "+clip(id), text); err != nil {
			return nil, err
		}
		if r.Delegations, err = d.delegated(ctx, p, r.Outcome); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// delegated reads the first invocations of a rollout, and their answers.
func (d *Display) delegated(ctx context.Context, p Phase, o Outcome) ([]AnsweredInvocation, error) {
	var ids []string
	for _, agent := range slices.Sorted(maps.Keys(o.Calls)) {
		for i := range min(o.Calls[agent], listedCalls-len(ids)) {
			ids = append(ids, Invocation{Query: o.Query, Rollout: o.Rollout, Agent: agent, Index: i}.ID())
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	calls, results := d.at.key("call", p.String()), d.at.key("result", p.String())
	tasks, err := d.at.rdb.HMGet(ctx, calls, ids...).Result()
	if err != nil {
		return nil, fmt.Errorf("store: calls of %s: %w", p, d.at.advise(err))
	}
	answers, err := d.at.rdb.HMGet(ctx, results, ids...).Result()
	if err != nil {
		return nil, fmt.Errorf("store: answers of %s: %w", p, d.at.advise(err))
	}
	var out []AnsweredInvocation
	for i, id := range ids {
		text, ok := tasks[i].(string)
		if !ok {
			continue // the key was deleted in the meantime
		}
		var one AnsweredInvocation
		if one.Invocation, err = decode[Invocation](calls+" "+clip(id), text); err != nil {
			return nil, err
		}
		if text, ok := answers[i].(string); ok {
			r, err := decode[Result](results+" "+clip(id), text)
			if err != nil {
				return nil, err
			}
			one.Answer = &r
		}
		out = append(out, one)
	}
	return out, nil
}
