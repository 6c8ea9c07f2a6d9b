package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Request is a request for one chat completion. Fields that are 0 or empty are not sent, except Temperature. A server that refuses a
// temperature gets none.
type Request struct {
	Model       string            `json:"model"`
	Messages    []Message         `json:"messages"`
	Tools       []json.RawMessage `json:"tools,omitempty"` // function definitions
	Temperature float64           `json:"-"`
	TopP        float64           `json:"top_p,omitempty"`
	TopK        int               `json:"top_k,omitempty"` // not in OpenAI's own API; vLLM, SGLang and llama.cpp accept it
	MinP        float64           `json:"min_p,omitempty"` // as TopK
	MaxTokens   int               `json:"-"`               // maximum number of tokens in the reply; its key depends on the server

	Check func(Reply) error `json:"-"` // the request is repeated if Check returns an error; nil: every reply is accepted
}

// Message is one message of a chat.
type Message struct {
	Role       string     `json:"role"` // "system", "user", "assistant" or "tool"
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`   // only in an assistant's message
	ToolCallID string     `json:"tool_call_id,omitempty"` // only in a tool's message: the id of the call that it answers
	Refusal    string     `json:"-"`                      // only in a reply: the text of OpenAI's models that refuse to answer
	Thinking
}

// Thinking holds the thinking of an assistant's message under the names that servers use. DeepSeek and Moonshot refuse a message with calls
// that comes back without it.
type Thinking struct {
	ReasoningContent json.RawMessage `json:"reasoning_content,omitempty"`
	Reasoning        json.RawMessage `json:"reasoning,omitempty"`
	ReasoningDetails json.RawMessage `json:"reasoning_details,omitempty"` // OpenRouter
}

// ToolCall is a call of a function.
type ToolCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"` // "function"
	Function Function `json:"function"`

	// Gemini's signature of the thinking before the call, which must come back.
	ExtraContent json.RawMessage `json:"extra_content,omitempty"`
}

// Function is a function's name and its arguments as the model wrote them, which may not be valid JSON.
type Function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// UnmarshalJSON reads a message. Its content may be null, a text, or a list of parts whose texts are joined.
func (m *Message) UnmarshalJSON(raw []byte) error {
	type plain Message
	read := struct {
		*plain
		Content json.RawMessage `json:"content"`
		Refusal *string         `json:"refusal"`
	}{plain: (*plain)(m), Refusal: &m.Refusal}
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	var err error
	if m.Content, err = readContent(read.Content); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	return nil
}

// readContent reads a message's content. It skips thinking among its parts.
func readContent(raw json.RawMessage) (text string, err error) {
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return "", nil
	case raw[0] == '"':
		return text, json.Unmarshal(raw, &text)
	case raw[0] == '{':
		raw = append(append([]byte("["), raw...), ']')
	case raw[0] != '[':
		return "", errors.New("must be a text or a list of parts")
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, raw := range parts {
		part, err := readPart(raw)
		if err != nil {
			return "", err
		}
		b.WriteString(part)
	}
	return b.String(), nil
}

func readPart(raw json.RawMessage) (string, error) {
	if raw[0] == '"' {
		return readContent(raw)
	}
	var part struct {
		Type    string  `json:"type"`
		Text    *string `json:"text"`
		Refusal *string `json:"refusal"`
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return "", err
	}
	switch {
	case part.Type == "thinking", part.Type == "reasoning", part.Type == "redacted_thinking":
		return "", nil
	case part.Text != nil:
		return *part.Text, nil
	case part.Refusal != nil:
		return *part.Refusal, nil
	}
	return "", fmt.Errorf("a part of the type %q is not text", part.Type)
}

// UnmarshalJSON reads a function's name and arguments. Some servers write the arguments as an object instead of as
// text.
func (f *Function) UnmarshalJSON(raw []byte) error {
	var read struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	f.Name = read.Name
	f.Arguments = string(bytes.TrimSpace(read.Arguments))
	switch {
	case f.Arguments == "null":
		f.Arguments = ""
	case strings.HasPrefix(f.Arguments, `"`):
		return json.Unmarshal(read.Arguments, &f.Arguments)
	}
	return nil
}

// Reply is a chat completion.
type Reply struct {
	Message Message
	Finish  string // "stop", "tool_calls", "length", "content_filter", or the server's own word
	Usage   *Usage // nil: the server does not report it, or reports impossible numbers
}

// finishError is the finish reason of a reply that the server could not complete.
const finishError = "error"

// finish returns OpenAI's word for a server's finish reason, or the server's word if OpenAI has none.
func finish(reason string) string {
	word, _, _ := strings.Cut(strings.ToLower(reason), ":") // Gemini adds a reason
	switch word {
	case "length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded": // Anthropic, Gemini, Mistral
		return "length"
	case "content_filter", "safety", "recitation", "prohibited_content", "blocklist", "spii": // Gemini
		return "content_filter"
	case finishError, "abort", "insufficient_system_resource": // OpenRouter, SGLang, DeepSeek
		return finishError
	}
	return reason
}

// Usage is the number of tokens of a request and of its reply, as the server counts them.
type Usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
}

// maxCounted is the largest number of tokens that is accepted from a server.
const maxCounted = 1 << 30

// usageOf reads a usage, or returns nil for one that is absent or impossible.
func usageOf(raw json.RawMessage) *Usage {
	var read struct {
		Prompt     float64 `json:"prompt_tokens"`
		Completion float64 `json:"completion_tokens"`
	}
	possible := func(n float64) bool { return n >= 0 && n <= maxCounted && n == math.Trunc(n) }
	if json.Unmarshal(raw, &read) != nil || !possible(read.Prompt) || !possible(read.Completion) || read.Prompt+read.Completion == 0 {
		return nil
	}
	return &Usage{int(read.Prompt), int(read.Completion)}
}

// requestForm is the form of requests that a server accepts.
type requestForm struct {
	newName       bool // the limit on the reply is max_completion_tokens; other servers only know max_tokens
	noTemperature bool // OpenAI's reasoning models refuse any temperature except 1
}

// body encodes a request.
func (r Request) body(w requestForm) ([]byte, error) {
	named := struct {
		Request
		Temperature *float64 `json:"temperature,omitempty"`
		Old         int      `json:"max_tokens,omitempty"`
		New         int      `json:"max_completion_tokens,omitempty"`
	}{Request: r}
	if !w.noTemperature {
		named.Temperature = &r.Temperature
	}
	if w.newName {
		named.New = r.MaxTokens
	} else {
		named.Old = r.MaxTokens
	}
	return json.Marshal(named)
}
