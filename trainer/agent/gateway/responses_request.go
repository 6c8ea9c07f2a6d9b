package gateway

import (
	"cmp"
	"encoding/json"
	"errors"
)

// responsesRequest is the body of /v1/responses in its stateless form. Nothing is stored, so the input contains the
// whole conversation.
type responsesRequest struct {
	Model              string            `json:"model"`
	Input              items             `json:"input"`
	Instructions       string            `json:"instructions"`
	Tools              []json.RawMessage `json:"tools"`
	ToolChoice         toolChoice        `json:"tool_choice"`
	ParallelToolCalls  *bool             `json:"parallel_tool_calls"`
	MaxOutputTokens    *int              `json:"max_output_tokens"`
	Temperature        *float64          `json:"temperature"`
	TopP               *float64          `json:"top_p"`
	TopLogProbs        int               `json:"top_logprobs"`
	Text               textFormat        `json:"text"`
	Reasoning          reasoningOptions  `json:"reasoning"`
	Stream             bool              `json:"stream"`
	StreamOptions      streamOptions     `json:"stream_options"`
	Truncation         string            `json:"truncation"`
	Background         bool              `json:"background"`
	PreviousResponseID string            `json:"previous_response_id"`
	Conversation       any               `json:"conversation"`
	Include            []string          `json:"include"` // has no effect: replies always contain everything available

	ChatTemplateKwargs json.RawMessage `json:"chat_template_kwargs"`
}

// responsesTurn is a request of /v1/responses with the chat request for the same turn.
type responsesTurn struct {
	request responsesRequest
	chat    *chatRequest
}

func (r *responsesTurn) decode(body []byte) (err error) {
	if err = parse(body, &r.request); err == nil {
		r.chat, err = r.request.chat()
	}
	return err
}

func (r *responsesTurn) model() string { return r.request.Model }
func (r *responsesTurn) task() string  { return r.chat.task() }

// textFormat is the form of the reply's text, in the notation of /v1/responses.
type textFormat struct {
	Format *struct {
		Type string `json:"type"`
		namedSchema
	} `json:"format"`
}

// reasoningOptions ask for reasoning effort and summaries. mgrpo provides no summaries.
type reasoningOptions struct {
	Effort          string `json:"effort"`
	Summary         string `json:"summary"`
	GenerateSummary string `json:"generate_summary"`
}

// items are the input: a text of the user, or a list of items.
type items []item

func (i *items) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*i = items{{Role: "user", Content: content(text)}}
		return nil
	}
	var list []item
	if err := json.Unmarshal(data, &list); err != nil {
		if api := (*apiError)(nil); errors.As(err, &api) {
			return api
		}
		return invalid("input", "it must be a text or a list of items: %v", err)
	}
	*i = list
	return nil
}

// item is a message, a call of a function, the result of a call, or reasoning.
type item struct {
	Type      string    `json:"type"` // "": message
	Role      string    `json:"role"`
	Content   content   `json:"content"` // content of a message, or text of reasoning
	Summary   content   `json:"summary"` // summary of reasoning
	CallID    string    `json:"call_id"`
	Name      string    `json:"name"`
	Arguments arguments `json:"arguments"`
	Output    content   `json:"output"`
}

// chat returns the chat request for the same turn.
func (r *responsesRequest) chat() (*chatRequest, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	out := &chatRequest{options: options{Model: r.Model, MaxTokens: r.MaxOutputTokens, Temperature: r.Temperature, TopP: r.TopP, Stream: r.Stream},
		ToolChoice: r.ToolChoice, ParallelToolCalls: r.ParallelToolCalls, ChatTemplateKwargs: r.ChatTemplateKwargs, prefix: "resp_"}
	if f := r.Text.Format; f != nil {
		out.ResponseFormat = &responseFormat{f.Type, &f.namedSchema}
	}
	for i, raw := range r.Tools {
		tool, err := chatTool(raw)
		if err != nil {
			return nil, invalid("tools", "tool %d: %v", i+1, err)
		}
		out.Tools = append(out.Tools, tool)
	}
	if r.Instructions != "" {
		out.Messages = append(out.Messages, message{Role: "system", Content: content(r.Instructions)})
	}
	for n, i := range r.Input {
		if err := out.add(i); err != nil {
			return nil, invalid("input", "item %d: %s", n+1, err.message)
		}
	}
	return out, out.check()
}

func (r *responsesRequest) check() error {
	switch {
	case r.PreviousResponseID != "":
		return invalid("previous_response_id", "no response is stored here: send the whole conversation as input")
	case r.Conversation != nil:
		return invalid("conversation", "no conversation is stored here: send the whole conversation as input")
	case r.Background:
		return invalid("background", "background responses are not supported: set it to false")
	case r.Truncation != "" && r.Truncation != "disabled":
		return invalid("truncation", "it is %q, but the input is never truncated: set it to disabled", r.Truncation)
	case r.TopLogProbs > 0:
		return invalid("top_logprobs", "only the log-probs of sampled tokens are available: set it to 0")
	case r.Reasoning.Effort != "":
		return invalid("reasoning", "these models do not support effort: leave it out, or set a variable of the chat template with chat_template_kwargs")
	}
	return nil
}

// add adds an item to the messages. The reasoning, the text and the calls of one turn become one message of the
// assistant.
func (r *chatRequest) add(i item) *apiError {
	last := &message{}
	if n := len(r.Messages); n > 0 && r.Messages[n-1].Role == "assistant" {
		last = &r.Messages[n-1]
	}
	turn := func(joins bool) *message {
		if last.Role != "" && joins {
			return last
		}
		r.Messages = append(r.Messages, message{Role: "assistant"})
		return &r.Messages[len(r.Messages)-1]
	}
	switch cmp.Or(i.Type, "message") {
	case "message":
		if i.Role != "assistant" {
			r.Messages = append(r.Messages, message{Role: i.Role, Content: i.Content})
			return nil
		}
		turn(last.Content == "" && len(last.ToolCalls) == 0).Content = i.Content
	case "reasoning":
		turn(false).Reasoning = string(cmp.Or(i.Content, i.Summary))
	case "function_call":
		m := turn(true)
		m.ToolCalls = append(m.ToolCalls, toolCall{ID: i.CallID, Type: "function", Function: functionCall{Name: i.Name, Arguments: string(i.Arguments)}})
	case "function_call_output":
		r.Messages = append(r.Messages, message{Role: "tool", ToolCallID: i.CallID, Content: i.Output})
	default:
		return refuse(400, "invalid_request", "the type is %q, but must be message, reasoning, function_call or function_call_output", i.Type)
	}
	return nil
}

// chatTool converts the definition of a function into the form of /v1/chat/completions.
func chatTool(raw json.RawMessage) (json.RawMessage, error) {
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	}
	var tool struct {
		Type string `json:"type"`
		function
	}
	if err := json.Unmarshal(raw, &tool); err != nil {
		return nil, err
	}
	if tool.Type != "function" {
		return nil, refuse(400, "invalid_request", "the type is %q, but must be function: the program itself runs the calls", tool.Type)
	}
	if string(tool.Parameters) == "null" {
		tool.Parameters = nil
	}
	return json.Marshal(struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}{tool.Type, tool.function})
}
