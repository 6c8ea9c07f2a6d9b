package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// ChatOptions configures a Chat.
type ChatOptions struct {
	Tokenizer    Tokenizer
	System       string // system prompt; empty: the template's own
	SubAgents    []SubAgent
	Tools        []tool.Tool
	Functions    []json.RawMessage // OpenAI function definitions of a program, in place of sub-agents and tools; nil: sub-agents and tools
	TemplateArgs *ordered.Object   // further variables of the template, such as enable_thinking; nil: none
	Date         time.Time         // the date that a template prints as today; zero: the clock's date
}

// Chat is the dialect of a pretrained model: the model's Template with the agent's system prompt, tools and sub-agents.
// Chat is immutable; several conversations may use it at once.
type Chat struct {
	template  *Template
	system    string
	callables *Callables
}

// NewChat probes the template and returns an error if it cannot render a conversation.
func NewChat(cfg ChatOptions) (*Chat, error) {
	callables, err := NewCallables(cfg.SubAgents, cfg.Tools)
	if err == nil && cfg.Functions != nil {
		callables, err = CallablesOf(cfg.Functions)
	}
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	functions := cfg.Functions // unchanged: the template prints the program's own text
	if functions == nil {
		functions = callables.definitions
	}
	template, err := NewTemplate(TemplateOptions{Tokenizer: cfg.Tokenizer, Functions: functions, TemplateArgs: cfg.TemplateArgs, Date: cfg.Date})
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return &Chat{template, cfg.System, callables}, nil
}

// Prompt renders the system prompt, the tools and the question.
func (c *Chat) Prompt(task string) ([]int32, string, error) {
	question := []tokenizer.Message{{Role: "user", Content: c.template.Neutral(task)}}
	if c.system != "" {
		question = append([]tokenizer.Message{{Role: "system", Content: c.system}}, question...)
	}
	return c.template.Prompt(question)
}

// Stops returns the model's end-of-turn tokens.
func (c *Chat) Stops() dialect.Stops { return c.template.Stops() }

// Text decodes a turn, including control tokens.
func (c *Chat) Text(turn []int32) string { return c.template.Text(turn) }

// Parse reads the calls of a turn. A turn without calls is the final answer, without its thinking.
func (c *Chat) Parse(turn []int32) dialect.Action {
	reply := c.template.Reply(turn)
	if len(reply.Calls) == 0 {
		return dialect.Action{Final: true, Answer: strings.TrimSpace(reply.Text)}
	}
	calls := make([]dialect.Call, len(reply.Calls))
	for i, p := range reply.Calls {
		calls[i] = c.callables.Call(p)
	}
	return dialect.Action{Calls: calls}
}

// Observe renders the results as the template does after an assistant's turn: from the end of that turn to the opening
// of the next.
func (c *Chat) Observe(turn []int32, results []dialect.Result) ([]int32, string, error) {
	messages := make([]tokenizer.Message, len(results))
	for i, r := range results {
		messages[i] = tokenizer.Message{Role: "tool", Content: c.template.Neutral(r.Text), Name: r.Call.Name}
	}
	return c.template.Observe(turn, messages)
}
