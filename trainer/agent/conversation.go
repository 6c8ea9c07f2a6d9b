package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// Spec specifies the conversation that Run runs.
type Spec struct {
	Key      policy.Key      // names the trajectory and seeds its sampling; Run sets Root
	Repeat   int             // earlier conversations of this agent within the rollout with the same task
	Main     bool            // the main agent of the rollout, rather than an invocation of a sub-agent
	Task     string          // question of the main agent, sub-task of a sub-agent
	Row      json.RawMessage // the query's row with all its columns, for tools; nil: no row
	Dialect  dialect.Dialect
	Sampling policy.Sampling // Temperature, TopK, TopP, MinP; Run sets the other fields for each turn
	Limits   Limits
	MaxLag   int64 // largest difference of policy versions between turns
}

// Limits bound a conversation; 0 means no limit. A conversation that reaches a limit ends with an invalid format.
// CallsPerTurn is an exception: surplus calls get an error as their result, like malformed calls.
type Limits struct {
	Turns        int           // sampled turns, without summaries
	CallsPerTurn int           // calls executed for one turn
	TurnTokens   int           // sampled tokens of a turn
	Tokens       int           // all tokens: prompt, sampled, observed; applies to each stretch of a folded conversation
	Fold         Fold          // needs a dialect that accepts any text as an answer
	Wall         time.Duration // from the first prompt to the answer, calls included
}

// Env is the environment of a conversation: the policy that samples, the tools and the sub-agents.
type Env struct {
	Policy policy.Sampler
	Tools  map[string]tool.Tool

	// Delegate asks a sub-agent and waits for its answer. An error ends the conversation. If only the sub-agent failed,
	// Delegate returns no error and the answer describes the failure.
	Delegate func(ctx context.Context, d Delegation) (answer string, err error)
}

// Delegation is one call of a sub-agent.
type Delegation struct {
	Agent  string
	Index  int // counts this rollout's delegations to the agent from 0, in the order issued
	Repeat int // counts, from 0, the delegations among them with the same task
	Task   string
}

var errWall = errors.New("the conversation used up its wall time (limits.wall_time)")

// Voice produces the turns of one conversation. It appends everything that the agent reads and samples to the
// conversation's trajectory. Its methods must not be called concurrently.
type Voice interface {
	// Open appends the text that the agent reads before its first turn: the question or sub-task and everything around
	// it.
	Open(task string) error

	// Turn appends the agent's next turn and returns its meaning, or the Finish constant of the limit that the turn
	// reached. An error means that the infrastructure failed; see Run.
	Turn(ctx context.Context) (a dialect.Action, finish string, err error)

	// Observe appends the results of the newest turn's calls, in the order issued.
	Observe(results []dialect.Result) error
}

// Run runs a conversation of a policy and returns its trajectory. If a limit is reached, a turn is outside the grammar
// or a tool fails, the trajectory records it, and Run returns no error. Run returns an error if the infrastructure
// failed (engine, store, cancellation, policy versions more than MaxLag apart), together with the trajectory so far.
func Run(ctx context.Context, spec Spec, env Env) (Trajectory, error) {
	if spec.Dialect == nil || env.Policy == nil {
		return Trajectory{}, errors.New("conversation: Spec.Dialect and Env.Policy must be set")
	}
	return Converse(ctx, spec, env, func(t *Trajectory) Voice { return &sampler{spec: spec, policy: env.Policy, traj: t} })
}

// Converse runs a conversation like Run, but the turns come from the Voice that voice returns for the new trajectory.
// Only the voice uses the fields of spec and env that concern tokens: Dialect, Sampling, MaxLag, Policy and the limits
// of tokens.
func Converse(ctx context.Context, spec Spec, env Env, voice func(*Trajectory) Voice) (Trajectory, error) {
	c := &conversation{spec: spec, env: env, delegated: map[subtask]int{}, called: map[string]int{}}
	c.traj = Trajectory{Row: NewRow(spec.Key, spec.Main), Calls: map[string]int{}}
	c.voice = voice(&c.traj)
	if spec.Limits.Wall > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, spec.Limits.Wall, errWall)
		defer cancel()
	}
	err := c.converse(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errWall) && interrupted(err) {
		c.traj.Finish, err = FinishWall, nil
	}
	if err != nil {
		return c.traj, fmt.Errorf("conversation %s: %w", c.traj.ID, err)
	}
	return c.traj, nil
}

// UnansweredError means that an agent gave no answer through no fault of its own: the server of a hosted model failed,
// or the workers that should have answered failed. The rollout then has no result. That is different from a wrong
// answer.
type UnansweredError struct {
	Agent string
	Err   error
}

func (e *UnansweredError) Error() string { return fmt.Sprintf("%s gave no answer: %v", e.Agent, e.Err) }

func (e *UnansweredError) Unwrap() error { return e.Err }

// interrupted reports whether err comes from an expired context: the context's error or cause, or a network deadline.
func interrupted(err error) bool {
	return errors.Is(err, errWall) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, os.ErrDeadlineExceeded)
}

type conversation struct {
	spec      Spec
	env       Env
	voice     Voice
	traj      Trajectory
	delegated map[subtask]int
	called    map[string]int // number of calls of each tool
}

// subtask is a task given to a sub-agent. A conversation counts how often it gives the same task.
type subtask struct{ agent, task string }

// conclude records a limit that a turn reached, an invalid turn or the answer. It returns false if the turn is none of these.
func (t *Trajectory) conclude(a dialect.Action, finish string) bool {
	switch {
	case finish != "":
		t.Finish = finish
	case a.Invalid != "":
		t.Finish = FinishFormat
	case a.Final:
		t.Finish, t.Answer, t.FormatValid = FinishAnswer, a.Answer, t.Malformed == 0 && a.Answer != ""
	default:
		return false
	}
	return true
}

// converse runs the loop of a turn, its calls and their results.
func (c *conversation) converse(ctx context.Context) error {
	if err := c.voice.Open(c.spec.Task); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	for turns := 0; ; turns++ {
		if limit := c.spec.Limits.Turns; limit > 0 && turns >= limit {
			c.traj.Finish = FinishTurns
			return nil
		}
		action, finish, err := c.voice.Turn(ctx)
		if err != nil {
			return fmt.Errorf("turn %d: %w", turns+1, err)
		}
		if c.traj.conclude(action, finish) {
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
		if err := c.voice.Observe(results); err != nil {
			return fmt.Errorf("observation after turn %d: %w", turns+1, err)
		}
	}
}

// admit counts malformed calls. It replaces all calls beyond CallsPerTurn by one call with a Problem, so that a turn
// with a thousand calls gets few results.
func (c *conversation) admit(calls []dialect.Call) (admitted []dialect.Call) {
	limit := c.spec.Limits.CallsPerTurn
	for i, call := range calls {
		if limit > 0 && i == limit {
			c.traj.Malformed += len(calls) - i
			return append(admitted, dialect.Call{Name: call.Name, Problem: SurplusProblem(len(calls)-i, limit)})
		}
		if call.Problem != "" {
			c.traj.Malformed++
		}
		admitted = append(admitted, call)
	}
	return admitted
}

// SurplusProblem returns the Problem of the calls of a turn that are beyond the limit.
func SurplusProblem(calls, limit int) string {
	return fmt.Sprintf("%d call(s) not executed: at most %d calls a turn. Wait for the answers, then call again.", calls, limit)
}

// execute runs the calls of a turn concurrently and returns their results in the order issued. It cancels the other
// calls when a delegation fails, or when a cache has no answer.
func (c *conversation) execute(ctx context.Context, calls []dialect.Call) ([]dialect.Result, error) {
	results := make([]dialect.Result, len(calls))
	group, groupCtx := errgroup.WithContext(ctx)
	for i, call := range calls {
		results[i].Call = call
		switch {
		case call.Problem != "":
			results[i].Text = "error: " + call.Problem
		case call.Delegate:
			d := c.delegation(call)
			group.Go(func() error {
				answer, err := c.delegate(groupCtx, d)
				results[i].Text = answer
				return err
			})
		default:
			origin := c.origin(call)
			group.Go(func() (err error) {
				results[i].Text, err = c.callTool(tool.WithOrigin(groupCtx, origin), call)
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return results, ctx.Err() // the result of a cancelled tool must not be trained on
}

// delegation numbers a call of a sub-agent.
func (c *conversation) delegation(call dialect.Call) Delegation {
	d := Delegation{Agent: call.Name, Index: c.traj.Calls[call.Name], Task: call.Task}
	c.traj.Calls[call.Name]++
	same := subtask{call.Name, call.Task}
	d.Repeat = c.delegated[same]
	c.delegated[same]++
	return d
}

func (c *conversation) delegate(ctx context.Context, d Delegation) (string, error) {
	if c.env.Delegate == nil {
		return "", fmt.Errorf("delegation to %q, but Env.Delegate is nil: the dialect offers a sub-agent that is missing from the environment", d.Agent)
	}
	answer, err := c.env.Delegate(ctx, d)
	if err != nil {
		return "", fmt.Errorf("delegation %d to %s: %w", d.Index, d.Agent, err)
	}
	return answer, nil
}

// origin numbers a call of a tool.
func (c *conversation) origin(call dialect.Call) tool.Origin {
	k := c.spec.Key
	o := tool.Origin{Query: k.Query, Row: c.spec.Row, Rollout: k.Rollout, Agent: k.Agent, Invocation: k.Invocation, Call: c.called[call.Name]}
	c.called[call.Name]++
	return o
}

// callTool returns the result of a call as the agent reads it. It returns an error only if the cache failed, because
// the tool's answer is then unknown.
func (c *conversation) callTool(ctx context.Context, call dialect.Call) (string, error) {
	t, ok := c.env.Tools[call.Name]
	if !ok {
		return fmt.Sprintf("error: no tool is named %q", call.Name), nil
	}
	out, err := t.Call(ctx, call.Arguments)
	var unknown *recorded.Error
	switch {
	case errors.As(err, &unknown):
		return "", fmt.Errorf("tool %s: %w", call.Name, unknown)
	case err != nil:
		return "error: " + err.Error(), nil
	}
	return out, nil
}
