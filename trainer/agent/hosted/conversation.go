package hosted

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/agent/openai"
)

// Bounds on the size of a server's messages, in bytes.
const (
	maxTurn         = 256 << 10 // one turn, with its calls
	maxConversation = 4 << 20   // all messages, which each request sends
)

// conversation is the agent.Voice of a hosted model.
type conversation struct {
	chat      *Chat
	spec      agent.Spec
	traj      *agent.Trajectory
	messages  []openai.Message
	bytes     int // size of all messages
	uncounted bool
}

func (c *conversation) Open(task string) error {
	opening := c.chat.opening(task)
	var texts []string
	for _, m := range opening {
		c.add(m)
		texts = append(texts, m.Content)
	}
	c.read(agent.RolePrompt, strings.Join(texts, "\n\n"))
	return nil
}

func (c *conversation) Turn(ctx context.Context) (dialect.Action, string, error) {
	room, binding := c.room()
	if room < 0 {
		return dialect.Action{}, binding, nil
	}
	reply, err := c.chat.model.complete(ctx, c.chat.request(c.messages, c.spec.Sampling, room))
	if openai.ContextExceeded(err) && room > 0 { // perhaps only with the limit on the reply: take what the context has left
		binding = agent.FinishContext
		reply, err = c.chat.model.complete(ctx, c.chat.request(c.messages, c.spec.Sampling, 0))
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return dialect.Action{}, "", context.Cause(ctx)
	case openai.ContextExceeded(err):
		return dialect.Action{}, agent.FinishContext, nil
	case openai.OutOfTokens(err):
		return dialect.Action{}, binding, nil
	case err == nil:
		err = c.appendTurn(reply)
	}
	if err != nil {
		return dialect.Action{}, "", &agent.UnansweredError{Agent: c.spec.Key.Agent, Err: err}
	}
	switch reply.Finish {
	case "length":
		return dialect.Action{}, binding, nil
	case "content_filter":
		return dialect.Action{}, agent.FinishFilter, nil
	}
	return c.action(), "", nil
}

// room returns the number of tokens that the next turn may have (0: unlimited), and the finish reason if the turn
// reaches that number. It returns a negative number if no tokens are left.
func (c *conversation) room() (room int, binding string) {
	l := c.spec.Limits
	tokens := l.Tokens
	if c.traj.Usage != nil {
		tokens -= c.traj.Usage.Tokens
	}
	switch {
	case l.Tokens > 0 && tokens <= 0, c.bytes > maxConversation:
		return -1, agent.FinishTokens
	case l.Tokens > 0 && (l.TurnTokens == 0 || tokens <= l.TurnTokens):
		return tokens, agent.FinishTokens
	}
	return l.TurnTokens, agent.FinishLength
}

// appendTurn appends the model's turn.
func (c *conversation) appendTurn(reply openai.Reply) error {
	m := reply.Message
	if m.Role, m.ToolCallID = "assistant", ""; len(m.ToolCalls) == 0 {
		m.Thinking = openai.Thinking{} // only a message with calls comes back with it
	}
	for _, raw := range []*json.RawMessage{&m.ReasoningContent, &m.Reasoning, &m.ReasoningDetails} {
		if string(*raw) == "null" {
			*raw = nil
		}
	}
	if n := size(m); n > maxTurn {
		return fmt.Errorf("a turn of %d bytes; the limit is %d", n, maxTurn)
	}
	text := m.Content
	for i := range m.ToolCalls {
		call := &m.ToolCalls[i]
		call.Type = "function"
		if call.ID == "" {
			call.ID = fmt.Sprintf("call_%d_%d", len(c.messages), i)
		}
		text += fmt.Sprintf("\n%s(%s)", call.Function.Name, call.Function.Arguments)
	}
	c.add(m)
	c.traj.Turns = append(c.traj.Turns, agent.Turn{Role: agent.RoleSampled, Text: strings.TrimPrefix(text, "\n"), Sampled: true})
	c.count(reply.Usage)
	return nil
}

// count adds a turn's tokens. If the server does not report the tokens of one turn, the whole conversation has no
// Usage.
func (c *conversation) count(u *openai.Usage) {
	if c.uncounted = c.uncounted || u == nil; c.uncounted {
		c.traj.Usage = nil
		return
	}
	sum := &agent.Usage{Tokens: u.Prompt + u.Completion, Sampled: u.Completion}
	if before := c.traj.Usage; before != nil {
		sum.Sampled += before.Sampled
	}
	c.traj.Usage = sum
}

// action returns the action of the newest turn. A turn without calls is the answer, without the thinking that some
// servers leave in the text.
func (c *conversation) action() dialect.Action {
	m := &c.messages[len(c.messages)-1]
	if len(m.ToolCalls) == 0 {
		return dialect.Action{Final: true, Answer: strings.TrimSpace(agent.WithoutThinking(m.Content))}
	}
	var a dialect.Action
	for i := range m.ToolCalls {
		f := &m.ToolCalls[i].Function
		call := callOf(*f)
		a.Calls = append(a.Calls, c.chat.callables.Call(call))
		// The server must be able to read the message that it gets back. The result of a bad call states what was
		// wrong.
		f.Arguments = "{}"
		if call.Problem == "" {
			f.Arguments = string(call.Arguments)
		}
	}
	return a
}

// callOf returns a call as the model wrote it. If the call is malformed, its Problem explains what to write instead.
func callOf(f openai.Function) callformat.Call {
	arguments := strings.TrimSpace(f.Arguments)
	switch {
	case arguments == "": // some models write this for a function without arguments
		return callformat.Call{Name: f.Name, Arguments: json.RawMessage("{}")}
	case arguments[0] != '{' || !json.Valid([]byte(arguments)):
		return callformat.Call{Name: f.Name, Problem: `the arguments are not a JSON object. Write {"name": value, ...}.`}
	}
	return callformat.Call{Name: f.Name, Arguments: json.RawMessage(arguments)}
}

// Observe adds a result for every call of the newest turn, because the API requires one for each. Calls beyond
// Limits.CallsPerTurn share the last result.
func (c *conversation) Observe(results []dialect.Result) error {
	calls := c.messages[len(c.messages)-1].ToolCalls
	var texts []string
	for i, call := range calls {
		r := results[min(i, len(results)-1)]
		c.add(openai.Message{Role: "tool", ToolCallID: call.ID, Content: r.Text})
		if i < len(results) {
			texts = append(texts, r.Text)
		}
	}
	c.read(agent.RoleObserved, strings.Join(texts, "\n"))
	return nil
}

// read appends a text that the model reads to the trajectory.
func (c *conversation) read(role, text string) {
	c.traj.Turns = append(c.traj.Turns, agent.Turn{Role: role, Text: text})
}

func (c *conversation) add(m openai.Message) {
	c.messages = append(c.messages, m)
	c.bytes += size(m)
}

// size returns the size of a message in bytes, without its JSON.
func size(m openai.Message) int {
	n := len(m.Content) + len(m.ReasoningContent) + len(m.Reasoning) + len(m.ReasoningDetails)
	for _, call := range m.ToolCalls {
		n += len(call.ExtraContent) + len(call.ID) + len(call.Function.Name) + len(call.Function.Arguments)
	}
	return n
}
