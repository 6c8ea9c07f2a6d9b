package gateway

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// message is one message of a request. Its reasoning is under reasoning_content, which replies use, or under reasoning.
type message struct {
	Role       string     `json:"role"`
	Content    content    `json:"content"`
	Name       string     `json:"name"`
	ToolCallID string     `json:"tool_call_id"`
	ToolCalls  []toolCall `json:"tool_calls"`
	Reasoning  string     `json:"-"`
}

// UnmarshalJSON reads the supported fields and ignores others, because clients send back every field of a reply.
func (m *message) UnmarshalJSON(data []byte) error {
	type lenient message
	var reasoning struct {
		Content any `json:"reasoning_content"`
		Short   any `json:"reasoning"`
		Legacy  any `json:"function_call"`
	}
	if err := errors.Join(json.Unmarshal(data, (*lenient)(m)), json.Unmarshal(data, &reasoning)); err != nil {
		return err
	}
	if reasoning.Legacy != nil {
		return invalid("messages", "a message has function_call, the older form of a call: write the call into tool_calls")
	}
	for _, text := range []any{reasoning.Short, reasoning.Content} {
		if text, ok := text.(string); ok && text != "" {
			m.Reasoning = text
		}
	}
	return nil
}

// toolCall is a call of a function, in the form of requests and replies.
type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // JSON text
}

func (f *functionCall) UnmarshalJSON(data []byte) error {
	var read struct {
		Name      string    `json:"name"`
		Arguments arguments `json:"arguments"`
	}
	err := json.Unmarshal(data, &read)
	f.Name, f.Arguments = read.Name, string(read.Arguments)
	return err
}

// arguments are JSON text. Requests may also have them as an object or null.
type arguments string

func (a *arguments) UnmarshalJSON(data []byte) error {
	var text *string
	switch err := json.Unmarshal(data, &text); {
	case data[0] == '{':
		*a = arguments(data)
	case err != nil:
		return invalid("messages", "the arguments of a call are neither a text nor an object")
	case text != nil:
		*a = arguments(*text)
	}
	return nil
}

// content is a text, null, or a list of texts and of parts. Only text parts are accepted. They are joined with newlines.
type content string

func (c *content) UnmarshalJSON(data []byte) error {
	var text *string
	if json.Unmarshal(data, &text) == nil {
		if text != nil {
			*c = content(*text)
		}
		return nil
	}
	var parts []part
	if err := json.Unmarshal(data, &parts); err != nil {
		return invalid("messages", "content is neither a text nor a list of parts")
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		if !slices.Contains([]string{"text", "input_text", "output_text", "reasoning_text", "summary_text", "refusal"}, p.Type) {
			return invalid("messages", "a part has the type %q, but these models read only text", p.Type)
		}
		texts[i] = p.Text + p.Refusal
	}
	*c = content(strings.Join(texts, "\n"))
	return nil
}

// part is a part of a content. A text in its place is a part of the type text.
type part struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Refusal string `json:"refusal"` // the text of a part of the type refusal
}

func (p *part) UnmarshalJSON(data []byte) error {
	type plain part
	if data[0] == '"' {
		p.Type = "text"
		return json.Unmarshal(data, &p.Text)
	}
	return json.Unmarshal(data, (*plain)(p))
}

// checkMessages refuses messages that no template can render, and changes the role developer to its older name system.
func checkMessages(messages []message) error {
	if len(messages) == 0 {
		return invalid("messages", "the list is empty")
	}
	for i := range messages {
		m := &messages[i]
		if m.Role == "developer" {
			m.Role = "system"
		}
		if !slices.Contains([]string{"system", "user", "assistant", "tool"}, m.Role) {
			return invalid("messages", "message %d has the role %q, but must have system, developer, user, assistant or tool", i+1, m.Role)
		}
		if len(m.ToolCalls) > 0 && m.Role != "assistant" {
			return invalid("messages", "message %d has the role %s and tool_calls: only messages of the assistant may have tool_calls", i+1, m.Role)
		}
	}
	return nil
}

// chain is a hash of a conversation's messages, starting with the first.
type chain [sha256.Size]byte

// then returns the chain with one more message. Differences that a client makes when it stores and repeats a message are
// ignored: spaces around the content and in the arguments of calls, the ids of calls, and reasoning.
func (c chain) then(m message) chain {
	h := sha256.New()
	h.Write(c[:])
	part := func(text string) { fmt.Fprintf(h, "%d:%s", len(text), text) }
	part(m.Role)
	part(strings.TrimSpace(string(m.Content)))
	for _, call := range m.ToolCalls {
		part(call.Function.Name)
		part(plainJSON(call.Function.Arguments))
	}
	return chain(h.Sum(nil))
}

// chains returns a list whose element i is the chain of the first i messages.
func chains(messages []message) []chain {
	out := make([]chain, len(messages)+1)
	for i, m := range messages {
		out[i+1] = out[i].then(m)
	}
	return out
}

// plainJSON returns a JSON text with standard spacing. It returns a text that is not JSON unchanged.
func plainJSON(text string) string {
	if v, err := ordered.Parse([]byte(text)); err == nil {
		if plain, err := ordered.Dumps(v, ordered.Format{}); err == nil {
			return plain
		}
	}
	return text
}

// templateMessages converts messages for a template. It breaks control tokens in texts of users, tools and assistants;
// system prompts may contain them.
func templateMessages(messages []message, neutral func(string) string) []tokenizer.Message {
	called := map[string]string{} // names of functions, by the id of the call
	out := make([]tokenizer.Message, len(messages))
	for i, m := range messages {
		text := string(m.Content)
		if m.Role != "system" {
			text = neutral(text)
		}
		r := tokenizer.Message{Role: m.Role, Content: text, Reasoning: neutral(m.Reasoning), Name: neutral(m.Name), ToolCallID: neutral(m.ToolCallID)}
		if m.Role == "tool" && r.Name == "" {
			r.Name = neutral(called[m.ToolCallID])
		}
		for _, c := range m.ToolCalls {
			called[c.ID] = c.Function.Name
			var arguments any = c.Function.Arguments
			if strings.TrimSpace(c.Function.Arguments) == "" { // clients write this, or null, for a call without arguments
				arguments = &ordered.Object{}
			} else if v, err := ordered.Parse([]byte(c.Function.Arguments)); err == nil {
				arguments = v
			}
			r.ToolCalls = append(r.ToolCalls, tokenizer.ToolCall{ID: neutral(c.ID), Name: neutral(c.Function.Name),
				Arguments: agent.NeutralValue(arguments, neutral)})
		}
		out[i] = r
	}
	return out
}

// lastUser returns the text of the last message of a user. In a conversation's first request, this is the task.
func lastUser(messages []message) string {
	for _, m := range slices.Backward(messages) {
		if m.Role == "user" {
			return string(m.Content)
		}
	}
	return ""
}
