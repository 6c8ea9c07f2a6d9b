package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Tokenizer are the methods of *tokenizer.Tokenizer that a chat uses.
type Tokenizer interface {
	Encode(text string) []int32 // recognises added tokens in the text and adds no special tokens
	Decode(ids []int32, skipSpecial bool) string
	Render(c tokenizer.Chat) (string, error)
	Special(id int32) bool
	Added(id int32) bool // matched in a text before the model splits it; special tokens are
	Token(id int32) string
	VocabSize() int
	StopIDs() []int32
}

// TemplateConfig configures a Template.
type TemplateConfig struct {
	Tokenizer      Tokenizer
	Functions      []json.RawMessage // OpenAI function definitions that the model is offered
	EnableThinking *bool             // nil: not passed to the template
	TemplateArgs   *ordered.Object   // further variables of the template; nil: none
	Date           time.Time         // date that a template prints as today's; zero: the clock's
}

// Template is a model's chat template, as a conversation that only appends tokens uses
// it, and the format in which the model writes calls. If the template does not print functions, the system message describes them. If it has no tool role, a user message
// carries the results. A Template is immutable; several conversations may use it at once.
type Template struct {
	cfg       TemplateConfig
	tools     []any  // function definitions for the template; nil if it ignores them
	always    []any  // function definitions that the template needs even where it does not print them; nil if it needs none
	prompt    string // describes the functions in the system message; "" if the template prints them
	noSystem  bool   // the template prints no system message, so the first user message has the description
	history   history
	opening   string // what the template prints between a user's message and an assistant's
	calls     callformat.Format
	functions callformat.Functions
	thinks    thinking
	stops     []int32
	end       int32 // of stops: with which the template ends a turn
	neutral   *strings.Replacer
}

// Texts of the messages that probe a template. No template contains them.
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
func NewTemplate(cfg TemplateConfig) (*Template, error) {
	if cfg.Tokenizer == nil {
		return nil, errors.New("needs a tokenizer")
	}
	t := &Template{cfg: cfg, neutral: Neutralizer(cfg.Tokenizer), functions: callformat.FunctionsOf(cfg.Functions)}
	if err := t.placeFunctions(); err != nil {
		return nil, err
	}
	if err := t.probeCalls(); err != nil {
		return nil, err
	}
	if err := t.probeTurns(); err != nil {
		return nil, err
	}
	return t, t.describe()
}

// placeFunctions passes the definitions to the template if it prints them, else the system message will have them.
func (t *Template) placeFunctions() error {
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
	case without != nil: // a template for conversations with functions alone
		t.always = t.tools
		return err
	case err != nil || with != plain:
		return err
	}
	t.tools = nil
	return nil
}

// render applies the chat template. With open, the text ends with the opening of an assistant's turn.
func (t *Template) render(messages []tokenizer.Message, tools []any, open bool) (string, error) {
	text, err := t.cfg.Tokenizer.Render(tokenizer.Chat{
		Messages:            t.objects(messages),
		Tools:               tools,
		AddGenerationPrompt: open,
		EnableThinking:      t.cfg.EnableThinking,
		Kwargs:              t.cfg.TemplateArgs,
		Date:                t.cfg.Date,
	})
	if err != nil {
		return "", fmt.Errorf("rendering a prompt: %w", err)
	}
	return text, nil
}

// Stops ends a turn at the model's end-of-turn tokens.
func (t *Template) Stops() Stops { return Stops{IDs: t.stops} }

// Encode tokenises a text that Prompt or Observe may have returned.
func (t *Template) Encode(text string) []int32 { return t.cfg.Tokenizer.Encode(text) }

// Text decodes a turn, control tokens included.
func (t *Template) Text(turn []int32) string { return t.cfg.Tokenizer.Decode(turn, false) }

// Prompt returns the tokens and the text of messages up to the opening of the assistant's turn. The texts are rendered as
// they are: Neutral breaks control tokens in texts from outside.
func (t *Template) Prompt(messages []tokenizer.Message) ([]int32, string, error) {
	text, err := t.render(t.withFunctions(t.printable(messages)), t.tools, true)
	if err != nil {
		return nil, "", err
	}
	return t.cfg.Tokenizer.Encode(text), text, nil
}

// withFunctions adds the description of the functions to the system message, if the template does not print them, or to the first message
// of the user, if it prints no system message either.
func (t *Template) withFunctions(messages []tokenizer.Message) []tokenizer.Message {
	if t.prompt == "" {
		return messages
	}
	if t.noSystem && len(messages) > 0 && messages[0].Role == "user" {
		user := messages[0]
		user.Content = t.prompt + "\n\n" + user.Content
		return append([]tokenizer.Message{user}, messages[1:]...)
	}
	if len(messages) == 0 || messages[0].Role != "system" {
		return append([]tokenizer.Message{{Role: "system", Content: t.prompt}}, messages...)
	}
	system := messages[0]
	system.Content = strings.TrimSpace(system.Content + "\n\n" + t.prompt)
	return append([]tokenizer.Message{system}, messages[1:]...)
}

// Observe returns the tokens, and their text, from the end of a sampled turn to the opening of the next, with messages
// between. It does not repeat an end-of-turn token that the policy sampled.
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

// Extends reports whether the template still prints the messages before a turn, and the turn's thinking, as it did when the
// turn was sampled, once messages follow. If not, a client that renders the whole history shows the model another prompt
// than the tokens at hand with Observe's tokens appended. Spaces that the template itself prints before a turn's text, as
// Llama 2's does, make no difference: the model has sampled its own, and those are the tokens at hand.
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
