package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Tokenizer holds the methods of *tokenizer.Tokenizer that a chat uses.
type Tokenizer interface {
	Encode(text string) []int32 // recognises added tokens in the text and adds no special tokens
	Decode(ids []int32, skipSpecial bool) string
	Render(c tokenizer.Chat) (string, error)
	Special(id int32) bool
	Added(id int32) bool // matched in a text before the model splits it, as special tokens are
	Token(id int32) string
	VocabSize() int
	StopIDs() []int32
}

// TemplateOptions configures a Template.
type TemplateOptions struct {
	Tokenizer    Tokenizer
	Functions    []json.RawMessage // OpenAI function definitions that the model is offered
	TemplateArgs *ordered.Object   // further variables of the template, such as enable_thinking; nil: none
	Date         time.Time         // the date that a template prints as today; zero: the clock's date
}

// Template is a model's chat template, used for a conversation that only appends tokens, and the format in which the
// model writes calls. If the template does not print functions, the system message describes them. If it has no tool
// role, a user message carries the results. A Template is immutable; several conversations may use it at once.
type Template struct {
	cfg       TemplateOptions
	tools     []any  // function definitions for the template; nil if it ignores them
	always    []any  // function definitions for a template that fails without them, even if it does not print them; nil if not needed
	prompt    string // describes the functions in the system message; "" if the template prints them
	noSystem  bool   // the template prints no system message, so the description is in the first user message
	history   messageSupport
	opening   string // the text that the template prints between a user's message and an assistant's
	calls     callformat.Format
	functions callformat.Functions
	thinks    thinking
	stops     []int32
	end       int32 // the one of stops that the template prints at the end of a turn
	neutral   *strings.Replacer
}

// Texts of the messages that probe a template. No template contains these texts.
const (
	probeUser     = "mgrpo-probe-user"
	probeTurn     = "mgrpo-probe-turn"
	probeAnswer   = "mgrpo-probe-answer"
	probeThinking = "mgrpo-probe-thinking"
	probeFunction = "mgrpo_probe_function"
	probeOther    = "mgrpo_probe_second"
	probeArgument = "mgrpo-probe-argument"
)

// NewTemplate probes the template and returns an error if it cannot render a conversation.
func NewTemplate(cfg TemplateOptions) (*Template, error) {
	if cfg.Tokenizer == nil {
		return nil, errors.New("the template needs a tokenizer")
	}
	t := &Template{cfg: cfg, neutral: Neutralizer(cfg.Tokenizer), functions: callformat.FunctionsOf(cfg.Functions)}
	// These functions complete t. Its methods do not change it.
	if err := placeFunctions(t); err != nil {
		return nil, err
	}
	if err := probeCalls(t); err != nil {
		return nil, err
	}
	if err := probeTurns(t); err != nil {
		return nil, err
	}
	return t, describeFunctions(t)
}

// placeFunctions passes the definitions to the template if it prints them. Otherwise the system message will describe
// them.
func placeFunctions(t *Template) error {
	if len(t.cfg.Functions) == 0 {
		return nil
	}
	question := []tokenizer.Message{{Role: "user", Content: probeUser}}
	plain, without := t.render(question, nil, true)
	for _, d := range t.cfg.Functions {
		parsed, err := ordered.Parse(d)
		if err != nil {
			return fmt.Errorf("tool definition %s: %w", d, err)
		}
		t.tools = append(t.tools, NeutralValue(parsed, t.Neutral))
	}
	switch with, err := t.render(question, t.tools, true); {
	case without != nil: // the template needs functions in every conversation
		t.always = t.tools
		return err
	case err != nil || with != plain:
		return err
	}
	t.tools = nil
	return nil
}

// render applies the chat template. If open is true, the text ends with the opening of an assistant's turn.
func (t *Template) render(messages []tokenizer.Message, tools []any, open bool) (string, error) {
	text, err := t.cfg.Tokenizer.Render(tokenizer.Chat{
		Messages:            t.thinks.objects(messages),
		Tools:               tools,
		AddGenerationPrompt: open,
		Kwargs:              t.cfg.TemplateArgs,
		Date:                t.cfg.Date,
	})
	if err != nil {
		return "", fmt.Errorf("rendering a prompt: %w", err)
	}
	return text, nil
}

// Stops returns the model's end-of-turn tokens.
func (t *Template) Stops() dialect.Stops { return dialect.Stops{IDs: t.stops} }

// Encode tokenises a text that Prompt or Observe may have returned.
func (t *Template) Encode(text string) []int32 { return t.cfg.Tokenizer.Encode(text) }

// Text decodes a turn, including control tokens.
func (t *Template) Text(turn []int32) string { return t.cfg.Tokenizer.Decode(turn, false) }

// Prompt returns the tokens and the text of messages up to the opening of the assistant's turn. It renders the texts as
// they are. Call Neutral first to break control tokens in texts from outside.
func (t *Template) Prompt(messages []tokenizer.Message) ([]int32, string, error) {
	text, err := t.render(t.withFunctions(t.printable(messages)), t.tools, true)
	if err != nil {
		return nil, "", err
	}
	return t.cfg.Tokenizer.Encode(text), text, nil
}

// withFunctions adds the description of the functions if the template does not print them. The description goes into
// the system message, or into the first user message if the template prints no system message either.
func (t *Template) withFunctions(messages []tokenizer.Message) []tokenizer.Message {
	if t.prompt == "" {
		return messages
	}
	first := tokenizer.Message{Role: "system"}
	if len(messages) > 0 && (messages[0].Role == "system" || t.noSystem && messages[0].Role == "user") {
		first, messages = messages[0], messages[1:]
	}
	if first.Role == "user" {
		first.Content = t.prompt + "\n\n" + first.Content
	} else {
		first.Content = strings.TrimSpace(first.Content + "\n\n" + t.prompt)
	}
	return append([]tokenizer.Message{first}, messages...)
}

// Observe returns the tokens from the end of a sampled turn to the opening of the next, with messages between, and
// their text. It does not repeat an end-of-turn token that the policy sampled.
func (t *Template) Observe(turn []int32, messages []tokenizer.Message) ([]int32, string, error) {
	text, err := t.delta(messages)
	if err != nil {
		return nil, "", err
	}
	ids := t.cfg.Tokenizer.Encode(text)
	if n := len(turn); n > 0 && slices.Contains(t.stops, turn[n-1]) {
		// Some templates put a space before the token that ends a turn.
		const lookahead = 4
		if i := slices.Index(ids[:min(lookahead, len(ids))], turn[n-1]); i >= 0 {
			ids = ids[i+1:]
		}
	}
	return ids, t.cfg.Tokenizer.Decode(ids, false), nil
}

// Extends reports whether the template still prints the messages before a turn, and the turn's thinking, in the same
// way once further messages follow. If not, a client that renders the whole history shows the model a different prompt
// from the sampled tokens followed by Observe's tokens. Spaces that the template itself prints before a turn's text, as
// Llama 2's template does, do not count: the model has sampled its own spaces.
func (t *Template) Extends(before []tokenizer.Message, thought bool, messages []tokenizer.Message) (bool, error) {
	before = t.withFunctions(t.printable(before))
	prompt, err := t.render(before, t.tools, true)
	if err != nil {
		return false, err
	}
	turn := tokenizer.Message{Role: "assistant", Content: probeTurn}
	if thought {
		turn.Content = t.thinks.open + "\n" + probeThinking + "\n" + t.thinks.close + "\n\n" + probeTurn
	}
	whole, err := t.render(slices.Concat(before, []tokenizer.Message{turn}, t.printable(messages)), t.tools, true)
	if err != nil {
		return false, err
	}
	whole, _, found := strings.Cut(whole, probeTurn)
	thinking, same := strings.CutPrefix(whole, prompt)
	return found && same && (strings.TrimSpace(thinking) == "" && !thought || thought && strings.Contains(thinking, probeThinking)), nil
}

// Continue returns the tokens and the text of messages up to the end of the last message. The last message must be the
// assistant's, and the next turn continues it. If it has only reasoning, the turn continues the reasoning.
func (t *Template) Continue(messages []tokenizer.Message) ([]int32, string, error) {
	messages = t.withFunctions(t.printable(messages))
	last := messages[len(messages)-1]
	if last.Content == "" && last.Reasoning != "" {
		last.Reasoning, last.Content = last.Reasoning+probeThinking, probeTurn
	} else {
		last.Content += probeThinking
	}
	text, err := t.render(append(messages[:len(messages)-1:len(messages)-1], last), t.tools, false)
	if err != nil {
		return nil, "", err
	}
	text, _, found := strings.Cut(text, probeThinking)
	if !found {
		return nil, "", errors.New("the chat template does not print the assistant's last message, so it cannot be continued")
	}
	return t.cfg.Tokenizer.Encode(text), text, nil
}

// Within returns the template for a turn that continues an assistant's message. Whether that turn begins in thinking
// depends on the message.
func (t *Template) Within(content, reasoning string) *Template {
	if content == "" && reasoning == "" {
		return t
	}
	within := *t
	within.thinks.opened, within.thinks.bare = false, false
	_, _, closed := within.thinks.split(content)
	within.thinks.opened = !closed || content == ""
	return &within
}
