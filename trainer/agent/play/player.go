// Package play runs the conversations of one agent. It chooses their dialect, tools and limits, and it turns
// demonstrations into the tokens that such a conversation would have.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package play

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/agent/hosted"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Options configure a Player.
type Options struct {
	Role      task.AgentRole
	SubAgents []agent.SubAgent // the agents that it may call, with their descriptions for its prompt
	Absent    []string         // configured agents that this run leaves out
	Seed      uint64           // the run's seed
	Task      task.Task
	Tokenizer *tokenizer.Tokenizer
	Tools     *Toolbox        // tools of the configuration; the player closes them
	Policy    policy.Sampler  // nil: the player can only demonstrate
	Hosted    *hosted.Model   // in place of Tokenizer and Policy; nil: use these
	Variables *ordered.Object // variables of the chat template; nil: none
	Date      time.Time       // the date that templates print as today; zero: the clock's date
	Limits    agent.Limits
	MaxLag    int64 // largest difference of policy versions within a conversation
}

// Player plays one agent of a team, in any number of conversations at once.
type Player struct {
	Options
	dialect  func() (dialect.Dialect, error) // makes the dialect of one conversation; nil: the model is hosted
	chat     *hosted.Chat                    // nil: the model is not hosted
	inFlight atomic.Int64                    // conversations in progress
	program  programDialect                  // dialect of the last demonstration of a program's conversation
}

// programDialect is the dialect of conversations that a program holds. key identifies the system prompt and the
// functions.
type programDialect struct {
	key     string
	dialect dialect.Dialect
}

// New chooses the agent's dialect: the task's own if the task implements task.WithDialect, otherwise the model's chat template. A
// hosted model exchanges messages, so New refuses it for such a task. New owns opt.Tools and closes them if it fails.
func New(opt Options) (*Player, error) {
	p := &Player{Options: opt}
	if err := p.chooseDialect(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Player) chooseDialect() (err error) {
	own, ok := p.Task.(task.WithDialect)
	switch {
	case ok && p.Hosted != nil:
		return fmt.Errorf("the task %s has its own dialect, which a hosted model cannot use: choose another task or a model with weights", p.Task.Name())
	case p.Hosted != nil:
		p.chat, err = hosted.NewChat(p.Hosted, p.Role.System, p.SubAgents, p.offered())
		return err
	case ok:
		p.dialect = func() (dialect.Dialect, error) { return own.Dialect(p.Role, p.Tokenizer) }
		if _, err = p.dialect(); err == nil && p.Limits.Fold.At > 0 {
			err = fmt.Errorf("limits.fold: the task %s has its own dialect, which cannot express a summary: remove this key", p.Task.Name())
		}
		return err
	}
	chat, err := agent.NewChat(agent.ChatOptions{Tokenizer: p.Tokenizer, System: p.Role.System,
		SubAgents: p.SubAgents, Tools: p.offered(), TemplateArgs: p.Variables, Date: p.Date})
	if err != nil {
		return err
	}
	p.dialect = func() (dialect.Dialect, error) { return chat, nil }
	return p.Limits.CheckFold(chat)
}

// offered returns the tools that a chat describes.
func (p *Player) offered() []tool.Tool {
	all := p.Tools.all
	return append(all[:len(all):len(all)], p.bound(task.Query{})...)
}

// Check requests a turn from a hosted model and returns an error if the server refuses it. For other players it does
// nothing.
func (p *Player) Check(ctx context.Context, s policy.Sampling) error {
	if p.chat == nil {
		return nil
	}
	return p.chat.Check(ctx, s, p.Limits.TurnTokens)
}

// Conversation specifies one conversation to play.
type Conversation struct {
	Query      task.Query
	Step       int64 // part of the key of the sampler's random numbers, with query, rollout and invocation
	Rollout    int
	Invocation int    // 0 for the main agent
	Repeat     int    // earlier conversations of the agent within the rollout on the same text
	Text       string // the question, or the sub-task of a sub-agent
	Sampling   policy.Sampling

	// Delegate hands a sub-task to another agent and returns the text of its answer; see agent.Env.
	Delegate func(ctx context.Context, d agent.Delegation) (string, error)
}

// Play runs a conversation and returns its trajectory. It returns the errors of agent.Run, or of hosted.Chat.Run for a
// hosted model.
func (p *Player) Play(ctx context.Context, c Conversation) (agent.Trajectory, error) {
	p.inFlight.Add(1)
	defer p.inFlight.Add(-1)
	spec, err := p.spec(c)
	if err != nil {
		return agent.Trajectory{}, err
	}
	env := agent.Env{Policy: p.Policy, Tools: p.toolsFor(c.Query), Delegate: c.Delegate}
	if p.chat != nil {
		return p.chat.Run(ctx, spec, env)
	}
	return agent.Run(ctx, spec, env)
}

// PlayWithoutCall plays the end of a conversation again as if a sub-agent had not answered one of its calls. t is the
// conversation that Play returned. See agent.WithoutCall.
func (p *Player) PlayWithoutCall(ctx context.Context, c Conversation, t *agent.Trajectory, subAgent string, index int) (agent.Trajectory, error) {
	p.inFlight.Add(1)
	defer p.inFlight.Add(-1)
	spec, err := p.spec(c)
	if err != nil {
		return agent.Trajectory{}, err
	}
	return agent.WithoutCall(ctx, spec, agent.Env{Policy: p.Policy}, t, subAgent, index)
}

// spec specifies a conversation for package agent. A hosted model has no dialect.
func (p *Player) spec(c Conversation) (spec agent.Spec, err error) {
	spec = agent.Spec{
		Key: policy.Key{RunSeed: p.Seed, Step: c.Step, Query: c.Query.ID, Rollout: c.Rollout,
			Agent: p.Role.Agent, Invocation: c.Invocation},
		Repeat: c.Repeat, Main: p.Role.Main, Row: c.Query.Columns, Task: c.Text, Limits: p.Limits, MaxLag: p.MaxLag, Sampling: c.Sampling,
	}
	if p.chat == nil {
		spec.Dialect, err = p.dialect()
	}
	return spec, err
}

// PromptTokens returns the number of prompt tokens in a conversation about a text.
func (p *Player) PromptTokens(text string) (int, error) {
	dialect, err := p.dialect()
	if err != nil {
		return 0, err
	}
	ids, _, err := dialect.Prompt(text)
	return len(ids), err
}

// InFlight returns the number of conversations in progress.
func (p *Player) InFlight() int { return int(p.inFlight.Load()) }

// Usage returns the outcomes of the tool calls since the last Usage, by tool, and the tool servers lost since then.
func (p *Player) Usage() (byTool map[string]tool.Usage, lost []string) { return p.Tools.Take() }

// toolsFor returns the player's tools together with the tools that the task binds to a query.
func (p *Player) toolsFor(q task.Query) map[string]tool.Tool {
	bound := p.bound(q)
	if len(bound) == 0 {
		return p.Tools.byName
	}
	tools := maps.Clone(p.Tools.byName)
	if tools == nil {
		tools = map[string]tool.Tool{}
	}
	for _, t := range bound {
		tools[t.Name()] = t
	}
	return tools
}

// Limits of the tools that a task brings.
const (
	taskToolTime   = 10 * time.Second
	taskToolOutput = 4096 // bytes
)

// bound returns the tools that the task binds to q.
func (p *Player) bound(q task.Query) []tool.Tool {
	kit, ok := p.Task.(task.WithTools)
	if !ok {
		return nil
	}
	brought := kit.Tools(q, p.Role)
	tools := make([]tool.Tool, len(brought)) // the task may keep its slice
	for i, t := range brought {
		tools[i] = p.Tools.Counted(tool.Limited(tool.WithCallPolicy(t, tool.CallPolicy{Timeout: taskToolTime}), tool.Limits{Bytes: taskToolOutput}))
	}
	return tools
}

// Close closes the tools.
func (p *Player) Close() error {
	if err := p.Tools.Close(); err != nil {
		return fmt.Errorf("closing tools: %w", err)
	}
	return nil
}
