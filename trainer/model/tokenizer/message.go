package tokenizer

import "github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"

// Message is a chat message of the usual form. Pass other messages (content in parts, for example) to Chat as
// *ordered.Object.
type Message struct {
	Role       string
	Content    string
	Reasoning  string     // reasoning_content; omitted if empty
	ToolCalls  []ToolCall // calls by an assistant
	Name       string     // name of a tool; omitted if empty
	ToolCallID string     // omitted if empty
}

// ToolCall is one call of a function by an assistant.
type ToolCall struct {
	ID        string // omitted if empty
	Name      string
	Arguments any // an ordered value, usually *ordered.Object; nil means no arguments
}

// JSON returns the message in OpenAI's chat format, with keys in the usual order.
func (m Message) JSON() *ordered.Object {
	o := ordered.NewObject("role", m.Role, "content", m.Content)
	setNonEmpty(o, "reasoning_content", m.Reasoning)
	if len(m.ToolCalls) > 0 {
		calls := make([]any, len(m.ToolCalls))
		for i, c := range m.ToolCalls {
			calls[i] = c.JSON()
		}
		o.Set("tool_calls", calls)
	}
	setNonEmpty(o, "name", m.Name)
	setNonEmpty(o, "tool_call_id", m.ToolCallID)
	return o
}

// JSON returns the call in OpenAI's chat format, with the arguments as an object.
func (c ToolCall) JSON() *ordered.Object {
	o := &ordered.Object{}
	setNonEmpty(o, "id", c.ID)
	o.Set("type", "function")
	arguments := c.Arguments
	if arguments == nil {
		arguments = &ordered.Object{}
	}
	o.Set("function", ordered.NewObject("name", c.Name, "arguments", arguments))
	return o
}

// Messages converts messages for Chat.Messages.
func Messages(messages ...Message) []any {
	list := make([]any, len(messages))
	for i, m := range messages {
		list[i] = m.JSON()
	}
	return list
}

func setNonEmpty(o *ordered.Object, key, value string) {
	if value != "" {
		o.Set(key, value)
	}
}
