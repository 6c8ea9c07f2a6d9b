package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// options are the fields that requests of chats and of texts share. In training, fields that change the sampling
// distribution must have the run's values.
type options struct {
	Model               string          `json:"model"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Stop                stopStrings     `json:"stop"`
	Stream              bool            `json:"stream"`
	StreamOptions       streamOptions   `json:"stream_options"`
	N                   *int            `json:"n"`
	Temperature         *float64        `json:"temperature"`
	TopP                *float64        `json:"top_p"`
	TopK                *int            `json:"top_k"`
	MinP                *float64        `json:"min_p"`
	FrequencyPenalty    float64         `json:"frequency_penalty"`
	PresencePenalty     float64         `json:"presence_penalty"`
	RepetitionPenalty   *float64        `json:"repetition_penalty"`
	LogitBias           map[string]any  `json:"logit_bias"`
	ResponseFormat      *responseFormat `json:"response_format"`
}

// ignoredFields are the names of fields that have no effect.
var ignoredFields = []string{"seed", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}

// optionObjects are the names of fields that are objects of options.
var optionObjects = []string{"response_format", "stream_options", "text", "reasoning"}

type streamOptions struct {
	IncludeUsage       bool `json:"include_usage"`
	IncludeObfuscation bool `json:"include_obfuscation"`
}

func (o *options) model() string { return o.Model }

// chatRequest is the body of /v1/chat/completions.
type chatRequest struct {
	options
	Messages    []message         `json:"messages"`
	Tools       []json.RawMessage `json:"tools"`
	ToolChoice  toolChoice        `json:"tool_choice"`
	LogProbs    bool              `json:"logprobs"`
	TopLogProbs int               `json:"top_logprobs"`

	ParallelToolCalls    *bool           `json:"parallel_tool_calls"`
	ChatTemplateKwargs   json.RawMessage `json:"chat_template_kwargs"`
	AddGenerationPrompt  *bool           `json:"add_generation_prompt"`
	ContinueFinalMessage *bool           `json:"continue_final_message"` // nil: true if the last message is the assistant's

	prefix string // prefix of the reply's id; "": the prefix of a chat
}

// textRequest is the body of /v1/completions.
type textRequest struct {
	options
	Prompt   prompt `json:"prompt"`
	LogProbs *int   `json:"logprobs"`
	Echo     bool   `json:"echo"`
	Suffix   string `json:"suffix"`
	BestOf   *int   `json:"best_of"`
}

func (r *chatRequest) decode(body []byte) error { return errors.Join(parse(body, r), r.check()) }
func (r *chatRequest) task() string             { return lastUser(r.Messages) }

func (r *textRequest) decode(body []byte) error { return errors.Join(parse(body, r), r.check()) }
func (r *textRequest) task() string             { return r.Prompt.text }

// prompt is a text or token ids.
type prompt struct {
	text string
	ids  []int32 // nil: text
}

func (p *prompt) UnmarshalJSON(data []byte) error {
	var text string
	var ids []int32
	var texts []string
	var lists [][]int32
	numbers := !bytes.Contains(data, []byte("null")) // null would be read as the id 0

	switch { // a failed read may leave the beginning of a list behind
	case json.Unmarshal(data, &text) == nil:
		*p = prompt{text: text}
		return nil
	case numbers && json.Unmarshal(data, &ids) == nil:
		*p = prompt{ids: ids}
		return nil
	case json.Unmarshal(data, &texts) == nil && len(texts) == 1:
		*p = prompt{text: texts[0]}
		return nil
	case numbers && json.Unmarshal(data, &lists) == nil && len(lists) == 1:
		*p = prompt{ids: lists[0]}
		return nil
	}
	return invalid("prompt", "it must be one text or one list of token ids")
}

// stopStrings are null, a text, or a list of texts.
type stopStrings []string

// maxStops is the largest number of stop strings in a request.
const maxStops = 16

func (s *stopStrings) UnmarshalJSON(data []byte) error {
	var one *string
	if json.Unmarshal(data, &one) == nil {
		if one != nil && *one != "" {
			*s = stopStrings{*one}
		}
		return nil
	}
	var many []string
	if json.Unmarshal(data, &many) != nil || len(many) > maxStops || slices.Contains(many, "") {
		return invalid("stop", "it must be a text, or a list of at most %d texts, none of them empty", maxStops)
	}
	*s = many
	return nil
}

// parse reads a body with known fields. It refuses an unknown field instead of ignoring it, because the field may be
// meant to change the sampling. A field that is null counts as absent, also in the objects of optionObjects.
func parse(body []byte, into any) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return refuse(400, "invalid_request", "the body is not a JSON object: %v", err)
	}
	maps.DeleteFunc(fields, func(name string, value json.RawMessage) bool {
		return slices.Contains(ignoredFields, name) || string(value) == "null"
	})
	for _, name := range optionObjects {
		var inner map[string]json.RawMessage
		if json.Unmarshal(fields[name], &inner) == nil && inner != nil {
			maps.DeleteFunc(inner, func(_ string, value json.RawMessage) bool { return string(value) == "null" })
			fields[name], _ = json.Marshal(inner) // JSON always marshals
		}
	}
	known, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(known))
	dec.DisallowUnknownFields()
	return decodeError(dec.Decode(into))
}

// withoutEmbedded removes the names of embedded structs from the path of a field.
var withoutEmbedded = strings.NewReplacer("options.", "", "namedSchema.", "")

// decodeError converts the decoder's error into an error for the client.
func decodeError(err error) error {
	var api *apiError
	var kind *json.UnmarshalTypeError
	if err == nil || errors.As(err, &api) {
		return err
	}
	if errors.As(err, &kind) {
		want := map[reflect.Kind]string{reflect.String: "a text", reflect.Bool: "true or false", reflect.Slice: "a list", reflect.Map: "an object",
			reflect.Struct: "an object", reflect.Int: "a whole number", reflect.Float64: "a number"}[kind.Type.Kind()]
		return invalid(withoutEmbedded.Replace(kind.Field), "it is a JSON %s, but must be %s", kind.Value, cmp.Or(want, kind.Type.String()))
	}
	if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
		if text, err := strconv.Unquote(name); err == nil {
			name = text
		}
		return invalid(name, "this field is not supported, and ignoring it might change the result: leave it out")
	}
	return refuse(400, "invalid_request", "the body cannot be read: %s", strings.TrimPrefix(err.Error(), "json: "))
}

// Rules are the conditions for the requests of a phase.
type Rules struct {
	Step     int64           // part of the key of the random numbers
	Sampling policy.Sampling // the run's temperature and truncation
	Free     bool            // a request may choose its own temperature and truncation, because it is not trained on
}

// sampling returns the sampling parameters of a request's turn. The conversation sets the room for tokens and the stop
// ids.
func (o *options) sampling(r Rules) (policy.Sampling, error) {
	s := r.Sampling
	s.StopStrings = o.Stop
	if err := o.check(); err != nil {
		return s, err
	}
	for _, n := range []*int{o.MaxTokens, o.MaxCompletionTokens} {
		if n != nil {
			s.MaxNew = *n
		}
	}
	if o.TopP != nil && *o.TopP == 0 { // the smallest nucleus; 0 would turn it off
		least := leastTopP
		o.TopP = &least
	}
	topK := float64(s.TopK)
	for _, f := range []samplingSetting{
		{"temperature", o.Temperature, &s.Temperature, policy.LeastTemperature, 100, math.NaN()},
		{"top_p", o.TopP, &s.TopP, 0, 1, 1},
		{"min_p", o.MinP, &s.MinP, 0, 1, 0},
		{"top_k", asFloat(o.TopK), &topK, 0, math.MaxInt32, -1},
	} {
		if err := f.change(r.Free); err != nil {
			return s, err
		}
	}
	s.TopK = int(topK)
	return s, nil
}

// leastTopP keeps only the likeliest token.
const leastTopP = 1e-9

// check refuses options that no phase allows.
func (o *options) check() error {
	for name, n := range map[string]*int{"max_tokens": o.MaxTokens, "max_completion_tokens": o.MaxCompletionTokens} {
		if n != nil && *n < 1 {
			return invalid(name, "it is %d, but must be at least 1", *n)
		}
	}
	switch {
	case o.N != nil && *o.N != 1:
		return invalid("n", "it is %d, but a request gets one reply: leave it out", *o.N)
	case o.FrequencyPenalty != 0 || o.PresencePenalty != 0 || o.RepetitionPenalty != nil && *o.RepetitionPenalty != 1 || len(o.LogitBias) > 0:
		return refuse(400, "invalid_request", "frequency_penalty, presence_penalty, repetition_penalty and logit_bias would change the distribution "+
			"that the run trains: leave them out")
	}
	return o.ResponseFormat.check()
}

// samplingSetting is a number that changes the sampling distribution.
type samplingSetting struct {
	name      string
	requested *float64 // the request's value; nil: none
	own       *float64 // the run's value
	least     float64  // a smaller value counts as 0
	most      float64
	neutral   float64 // a value that means the same as 0
}

// change sets the run's value to the request's value. They may differ only in a free phase.
func (f samplingSetting) change(free bool) error {
	own := *f.own
	switch {
	case f.requested == nil, *f.requested == own, *f.requested == f.neutral && (own == 0 || own == f.neutral):
		return nil
	case !free:
		return invalid(f.name, "it is %v, but the run samples and trains with %v: leave it out, or change the run's configuration", *f.requested, own)
	case !(*f.requested >= 0 && *f.requested <= f.most):
		return invalid(f.name, "it is %v, but must be from 0 to %v", *f.requested, f.most)
	}
	if *f.own = *f.requested; *f.own < f.least {
		*f.own = 0
	}
	return nil
}

func asFloat(n *int) *float64 {
	if n == nil {
		return nil
	}
	return new(float64(*n))
}

// functions returns the definitions that a chat offers to the model, as compact JSON with the keys in their order.
func (r *chatRequest) functions() ([]json.RawMessage, error) {
	if r.ToolChoice.mode == "none" {
		return nil, nil
	}
	out := make([]json.RawMessage, len(r.Tools))
	for i, raw := range r.Tools {
		v, err := ordered.Parse(raw)
		if err != nil {
			return nil, invalid("tools", "%v", err)
		}
		if f := functionOf(raw); f.Type != "function" || f.Function.Name == "" {
			return nil, invalid("tools", `tool %d must be {"type": "function", "function": {"name": ..., "parameters": ...}}`, i+1)
		}
		text, err := ordered.Dumps(v, ordered.Format{ItemSeparator: ",", KeySeparator: ":"})
		if err != nil {
			return nil, invalid("tools", "%v", err)
		}
		out[i] = json.RawMessage(text)
	}
	return out, nil
}

// check refuses requests that cannot be served.
func (r *chatRequest) check() error {
	if r.TopLogProbs > 0 {
		return invalid("top_logprobs", "only the log-probs of sampled tokens are available: set it to 0")
	}
	if err := checkMessages(r.Messages); err != nil {
		return err
	}
	return errors.Join(r.checkLast(), r.checkChoice())
}

func (r *textRequest) check() error {
	switch {
	case r.Echo:
		return invalid("echo", "the log-probs of the prompt are not available: set it to false")
	case r.Suffix != "":
		return invalid("suffix", "these models only continue a text: leave it out")
	case r.BestOf != nil && *r.BestOf != 1:
		return invalid("best_of", "a request gets one reply: leave it out")
	case r.LogProbs != nil && *r.LogProbs > 1:
		return invalid("logprobs", "only the log-probs of sampled tokens are available: set it to 0 or 1")
	case r.ResponseFormat.schema() != nil:
		return invalid("response_format", "only replies of chats can have a format: use /v1/chat/completions")
	case r.Prompt.text == "" && len(r.Prompt.ids) == 0:
		return invalid("prompt", "it is empty")
	}
	return nil
}
