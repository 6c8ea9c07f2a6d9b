package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/policy"
)

// Spec says which conversation Run runs.
type Spec struct {
	Key      policy.Key      // names the trajectory and seeds its sampling
	Main     bool            // the main agent of the rollout, not an invocation of a sub-agent
	Task     string          // question of the main agent, sub-task of a sub-agent
	Row      json.RawMessage // the query's row with all its columns, for tools; nil without
	Dialect  Dialect
	Sampling policy.Sampling // Temperature, TopK, TopP, MinP; Run sets the other fields for each turn
	Limits   Limits
	MaxLag   int64 // largest difference of policy versions between turns
}

// Limits bound a conversation; 0 is no limit. A conversation that reaches a limit ends with an invalid format, except
// for CallsPerTurn: surplus calls get an error as their result, like malformed calls.
type Limits struct {
	Turns        int           // sampled turns
	CallsPerTurn int           // calls executed for one turn
	TurnTokens   int           // sampled tokens of a turn
	Tokens       int           // all tokens: prompt, sampled, observed
	Wall         time.Duration // from the first prompt to the answer, calls included
}

// Env is the environment of a conversation: the policy that samples, the tools and the sub-agents.
type Env struct {
	Policy policy.Sampler
	Tools  map[string]tool.Tool

	// Delegate asks a sub-agent and waits for its answer. index counts this rollout's delegations to that agent from
	// 0, in the order issued. An error ends the conversation; if only the sub-agent failed, the answer says so.
	Delegate func(ctx context.Context, agent string, index int, task string) (answer string, err error)
}

var errWall = errors.New("wall time of the conversation is over")

// Run runs a conversation and returns its trajectory. A reached limit, a turn outside the grammar or a failing tool is
// part of the trajectory and not an error. Run returns an error if the infrastructure failed (engine, store,
// cancellation, policy versions more than MaxLag apart), with the trajectory up to then.
func Run(ctx context.Context, spec Spec, env Env) (Trajectory, error) {
	if spec.Dialect == nil || env.Policy == nil {
		return Trajectory{}, errors.New("conversation: Spec.Dialect and Env.Policy must be set")
	}
	c := &conversation{spec: spec, env: env}
	c.traj = Trajectory{
		ID:         TrajectoryID(spec.Key, spec.Main),
		Query:      spec.Key.Query,
		Rollout:    spec.Key.Rollout,
		Agent:      spec.Key.Agent,
		Invocation: spec.Key.Invocation,
		Calls:      map[string]int{},
	}
	if spec.Limits.Wall > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, spec.Limits.Wall, errWall)
		defer cancel()
	}
	err := c.converse(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errWall) && interrupted(err) {
		c.end(FinishWall)
		err = nil
	}
	if err != nil {
		return c.traj, fmt.Errorf("conversation %s: %w", c.traj.ID, err)
	}
	return c.traj, nil
}

// interrupted says whether err comes from an expired context: the context's error or cause, or a network deadline.
func interrupted(err error) bool {
	return errors.Is(err, errWall) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, os.ErrDeadlineExceeded)
}

type conversation struct {
	spec   Spec
	env    Env
	traj   Trajectory
	turns  int   // number of sampled turns
	newest int64 // newest policy version that sampled a turn
}

func (c *conversation) end(finish string) {
	c.traj.Finish = finish
	c.traj.FormatValid = finish == FinishAnswer && c.traj.Malformed == 0
}

// converse runs the loop: sample a turn, parse it, execute its calls, append the results.
func (c *conversation) converse(ctx context.Context) error {
	ids, text, err := c.spec.Dialect.Prompt(c.spec.Task)
	if err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	c.traj.appendObserved(RolePrompt, ids, text)
	for {
		turn, finish, err := c.sample(ctx)
		if err != nil {
			return err
		}
		if finish != "" {
			c.end(finish)
			return nil
		}
		action := c.spec.Dialect.Parse(turn)
		c.turns++
		switch {
		case action.Invalid != "":
			c.end(FinishFormat)
			return nil
		case action.Final:
			c.traj.Answer = action.Answer
			c.end(FinishAnswer)
			c.traj.FormatValid = c.traj.FormatValid && action.Answer != ""
			return nil
		}
		calls := c.admit(action.Calls)
		if len(calls) == 0 {
			continue
		}
		results, err := c.execute(ctx, calls)
		if err != nil {
			return err
		}
		ids, text, err := c.spec.Dialect.Observe(turn, results)
		if err != nil {
			return fmt.Errorf("observation after turn %d: %w", c.turns, err)
		}
		c.traj.appendObserved(RoleObserved, ids, text)
	}
}

// sample samples a turn and appends it. finish is not empty if a limit ends the conversation.
func (c *conversation) sample(ctx context.Context) (turn []int32, finish string, err error) {
	if max := c.spec.Limits.Turns; max > 0 && c.turns >= max {
		return nil, FinishTurns, nil
	}
	stops := c.spec.Dialect.Stops()
	room, binding := c.room(stops.MaxNew)
	if room <= 0 {
		return nil, binding, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	s := c.spec.Sampling
	s.MaxNew, s.StopIDs, s.StopStrings = room, stops.IDs, stops.Strings
	// The capacity ends at the length, so an engine that appends to the slice copies it.
	tokens := c.traj.Tokens[:len(c.traj.Tokens):len(c.traj.Tokens)]
	out, err := c.env.Policy.Generate(ctx, policy.Request{Tokens: tokens, Sampling: s, Key: c.spec.Key})
	if err != nil && (out.Finish != policy.FinishCancelled || ctx.Err() == nil) {
		return nil, "", fmt.Errorf("turn %d: %w", c.turns, err)
	}
	cancelled := err
	if err := c.accept(out, room); err != nil {
		return nil, "", fmt.Errorf("turn %d: %w", c.turns, err)
	}
	if len(out.Tokens) > 0 {
		c.traj.appendSampled(out, c.spec.Dialect.Text(out.Tokens))
	}
	switch out.Finish {
	case policy.FinishStop:
		return out.Tokens, "", nil
	case policy.FinishLength:
		return nil, binding, nil
	case policy.FinishContext:
		return nil, FinishContext, nil
	case policy.FinishCancelled:
		if cancelled != nil {
			return nil, "", fmt.Errorf("turn %d: %w", c.turns, cancelled)
		}
		return nil, "", fmt.Errorf("turn %d: the engine answered \"cancelled\", but the context was not cancelled", c.turns)
	}
	return nil, "", fmt.Errorf("turn %d: unknown finish reason %q from the engine", c.turns, out.Finish)
}

// room returns the number of tokens that the next turn may sample, and the finish reason if it samples all of them.
func (c *conversation) room(dialectMax int) (int, string) {
	have := len(c.traj.Tokens)
	room, binding := c.env.Policy.ContextLimit()-have, FinishContext
	tighten := func(n int, finish string) {
		if n <= room {
			room, binding = n, finish
		}
	}
	if max := c.spec.Limits.Tokens; max > 0 {
		tighten(max-have, FinishTokens)
	}
	if max := c.spec.Limits.TurnTokens; max > 0 {
		tighten(max, FinishLength)
	}
	if dialectMax > 0 {
		tighten(dialectMax, FinishLength)
	}
	return room, binding
}

// accept checks a completion before it is appended to the trajectory, on which the learner trains.
func (c *conversation) accept(out policy.Completion, room int) error {
	if len(out.Tokens) != len(out.LogProbs) {
		return fmt.Errorf("engine gave %d tokens but %d log-probs", len(out.Tokens), len(out.LogProbs))
	}
	if len(out.Tokens) > room {
		return fmt.Errorf("engine gave %d tokens, more than the %d asked for", len(out.Tokens), room)
	}
	if len(out.Tokens) == 0 && out.Finish == policy.FinishStop {
		return errors.New("engine stopped without sampling a token")
	}
	for i, lp := range out.LogProbs {
		if math.IsNaN(float64(lp)) || math.IsInf(float64(lp), 0) || lp > 0 {
			return fmt.Errorf("log-prob of sampled token %d is %v, want a finite number <= 0", i, lp)
		}
	}
	if len(out.Tokens) == 0 {
		return nil
	}
	if c.traj.SampledTokens() == 0 {
		c.traj.Version, c.newest = out.Version, out.Version
	}
	c.traj.Version, c.newest = min(c.traj.Version, out.Version), max(c.newest, out.Version)
	if lag := c.newest - c.traj.Version; lag > c.spec.MaxLag {
		return fmt.Errorf("turns sampled by policy versions %d to %d: more than max_lag %d apart", c.traj.Version, c.newest, c.spec.MaxLag)
	}
	return nil
}

// admit counts malformed calls. It replaces the calls beyond CallsPerTurn by a single call with a Problem, so that a
// turn with a thousand calls gets few results.
func (c *conversation) admit(calls []Call) (admitted []Call) {
	limit := c.spec.Limits.CallsPerTurn
	for i, call := range calls {
		if limit > 0 && i == limit {
			surplus := len(calls) - i
			c.traj.Malformed += surplus
			return append(admitted, Call{
				Name:    call.Name,
				Problem: fmt.Sprintf("%d call(s) not executed: at most %d calls a turn. Wait for the answers, then call again.", surplus, limit),
			})
		}
		if call.Problem != "" {
			c.traj.Malformed++
		}
		admitted = append(admitted, call)
	}
	return admitted
}

// execute runs the calls of a turn concurrently and returns their results in the order issued. The first failed
// delegation cancels the other calls.
func (c *conversation) execute(ctx context.Context, calls []Call) ([]Result, error) {
	results := make([]Result, len(calls))
	group, groupCtx := errgroup.WithContext(ctx)
	for i, call := range calls {
		results[i].Call = call
		switch {
		case call.Problem != "":
			results[i].Text = "error: " + call.Problem
		case call.Delegate:
			index := c.traj.Calls[call.Name]
			c.traj.Calls[call.Name]++
			group.Go(func() error {
				answer, err := c.delegate(groupCtx, call, index)
				results[i].Text = answer
				return err
			})
		default:
			group.Go(func() error {
				results[i].Text = c.callTool(groupCtx, call)
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return results, ctx.Err() // the result of a cancelled tool must not be trained on
}

func (c *conversation) delegate(ctx context.Context, call Call, index int) (string, error) {
	if c.env.Delegate == nil {
		return "", fmt.Errorf("delegation to %q, but Env.Delegate is nil: the dialect offers a sub-agent that the environment lacks", call.Name)
	}
	answer, err := c.env.Delegate(ctx, call.Name, index, call.Task)
	if err != nil {
		return "", fmt.Errorf("delegation %d to %s: %w", index, call.Name, err)
	}
	return answer, nil
}

func (c *conversation) callTool(ctx context.Context, call Call) string {
	t, ok := c.env.Tools[call.Name]
	if !ok {
		return fmt.Sprintf("error: no tool is named %q", call.Name)
	}
	k := c.spec.Key
	ctx = tool.WithOrigin(ctx, tool.Origin{Query: k.Query, Row: c.spec.Row, Rollout: k.Rollout, Agent: k.Agent, Invocation: k.Invocation})
	out, err := t.Call(ctx, call.Arguments)
	if err != nil {
		return "error: " + err.Error()
	}
	return out
}
