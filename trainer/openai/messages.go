package openai

import "encoding/json"

// Request asks for one chat completion. Fields that are 0 or empty are not sent, except Temperature.
type Request struct {
	Model       string            `json:"model"`
	Messages    []Message         `json:"messages"`
	Tools       []json.RawMessage `json:"tools,omitempty"` // function definitions
	Temperature float64           `json:"temperature"`
	TopP        float64           `json:"top_p,omitempty"`
	TopK        int               `json:"top_k,omitempty"` // not of OpenAI's own API, but of vLLM, SGLang and llama.cpp
	MinP        float64           `json:"min_p,omitempty"` // the same
	MaxTokens   int               `json:"-"`               // most tokens of the reply; its key depends on the server
}

// Message is one message of a chat.
type Message struct {
	Role       string     `json:"role"` // "system", "user", "assistant" or "tool"
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`   // of an assistant's message
	ToolCallID string     `json:"tool_call_id,omitempty"` // of a tool's message: the call that it answers
}

// ToolCall is a call of a function.
type ToolCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"` // "function"
	Function Function `json:"function"`
}

// Function names a function, with its arguments as the model wrote them: JSON, or what it took for JSON.
type Function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Reply is a chat completion.
type Reply struct {
	Message Message
	Finish  string // "stop", "tool_calls", "length", "content_filter", or a word of the server's own
	Usage   *Usage // nil: the server does not say, or says what cannot be
}

// Usage is the number of tokens of a request and of its reply, as the server counts them.
type Usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
}

// maxCounted bounds a number of tokens that a server may claim.
const maxCounted = 1 << 30

func (u *Usage) possible() bool {
	return u != nil && u.Prompt >= 0 && u.Completion >= 0 && u.Prompt <= maxCounted && u.Completion <= maxCounted
}

// body encodes a request. Servers call the bound on the reply max_tokens; newer models of OpenAI refuse that name.
func (r Request) body(newName bool) ([]byte, error) {
	named := struct {
		Request
		Old int `json:"max_tokens,omitempty"`
		New int `json:"max_completion_tokens,omitempty"`
	}{Request: r}
	if newName {
		named.New = r.MaxTokens
	} else {
		named.Old = r.MaxTokens
	}
	return json.Marshal(named)
}
