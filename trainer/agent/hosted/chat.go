package hosted

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/openai"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// Chat holds the parts that all conversations of an agent with a hosted model share: the system prompt, and the tools
// and sub-agents that it may call.
type Chat struct {
	model     *Model
	system    string
	callables *agent.Callables
}

// NewChat returns an error if the sub-agents and tools cannot be offered together; see agent.NewCallables. If system is
// empty, the requests contain no system message.
func NewChat(m *Model, system string, subAgents []agent.SubAgent, tools []tool.Tool) (*Chat, error) {
	callables, err := agent.NewCallables(subAgents, tools)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return &Chat{model: m, system: system, callables: callables}, nil
}

// Run holds a conversation and returns its trajectory, as agent.Run does. If the model's server fails, the error is an
// *agent.UnansweredError. Limits.Tokens applies only if the server reports the number of tokens.
func (c *Chat) Run(ctx context.Context, spec agent.Spec, env agent.Env) (agent.Trajectory, error) {
	return agent.Converse(ctx, spec, env, func(t *agent.Trajectory) agent.Voice {
		return &conversation{chat: c, spec: spec, traj: t}
	})
}

// Check requests a turn of at most maxNew tokens in the same way as a conversation. It returns an error if the server
// refuses the request, for instance because of the address, the key, the model's name, an option or a tool.
func (c *Chat) Check(ctx context.Context, s policy.Sampling, maxNew int) error {
	_, err := c.model.complete(ctx, c.request(c.opening("Reply with the word ok."), s, maxNew))
	var refused *openai.StatusError
	if openai.OutOfTokens(err) { // as a reply with the finish reason length
		return nil
	}
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w; check the key in the environment variable that key_env names", err)
	case http.StatusNotFound:
		return fmt.Errorf("%w; check url and name", err)
	}
	return err
}

// opening returns the messages before the first turn.
func (c *Chat) opening(task string) (messages []openai.Message) {
	if c.system != "" {
		messages = append(messages, openai.Message{Role: "system", Content: c.system})
	}
	return append(messages, openai.Message{Role: "user", Content: task})
}

func (c *Chat) request(messages []openai.Message, s policy.Sampling, maxNew int) openai.Request {
	r := openai.Request{Messages: messages, Tools: c.callables.Definitions(), Temperature: s.Temperature, TopK: s.TopK, MinP: s.MinP, MaxTokens: maxNew}
	if s.TopP < 1 {
		r.TopP = s.TopP
	}
	return r
}
