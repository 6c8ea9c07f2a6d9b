package tokenizer

import "github.com/mgrpo/mgrpo/trainer/tokenizer/ordered"

// Message is the common shape of a chat message. What it cannot say (content in parts, say) can be passed
// to Chat as an *ordered.Object.
type Message struct {
	Role       string
	Content    string
	Reasoning  string     // reasoning_content, left out if empty
	ToolCalls  []ToolCall // of an assistant
	Name       string     // of a tool, left out if empty
	ToolCallID string     // left out if empty
}

// ToolCall is one call of a function by an assistant.
type ToolCall struct {
	ID        string // left out if empty
	Name      string
	Arguments any // an ordered value, usually *ordered.Object; nil means no arguments
}

// JSON is the message as OpenAI's chat format has it, keys in the usual order.
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

// JSON is the call as OpenAI's chat format has it, the arguments as an object.
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

// Messages lists messages as Chat takes them.
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
