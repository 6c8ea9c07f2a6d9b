package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/tokenizer/ordered"
)

// Tokenizer are the methods of *tokenizer.Tokenizer that a chat uses.
type Tokenizer interface {
	Encode(text string) []int32 // recognises added tokens in the text and adds no special tokens
	Decode(ids []int32, skipSpecial bool) string
	Render(c tokenizer.Chat) (string, error)
	Special(id int32) bool
	Token(id int32) string
	VocabSize() int
	StopIDs() []int32
}

// ChatConfig configures a Chat.
type ChatConfig struct {
	Tokenizer      Tokenizer
	System         string // system prompt; empty leaves the template's own
	Colleagues     []Colleague
	Tools          []tool.Tool
	EnableThinking *bool           // nil: not passed to the template
	TemplateArgs   *ordered.Object // further variables of the template; nil: none
	Date           time.Time       // date that a template prints as today's; zero: the clock's
}

// Chat is the dialect of a pretrained model: the model's chat template, with calls in the Hermes format. If the template
// does not print tools, the system prompt describes them. If it has no tool role, a user message carries the results.
// Chat is immutable; several conversations may use it at once.
type Chat struct {
	cfg       ChatConfig
	callables *Callables
	system    string
	tools     []any // tool definitions for the template; nil if it ignores them
	toolRole  bool  // the template prints tool messages
	thinking  bool  // the template opens the assistant's turn with <think>
	stops     []int32
	neutral   *strings.Replacer
}

// Texts of the messages that probe a template. No template contains them.
const (
	probeUser   = "mgrpo-probe-user"
	probeTurn   = "mgrpo-probe-turn"
	probeAnswer = "mgrpo-probe-answer"
)

// NewChat probes the template and returns an error if it cannot render a conversation.
func NewChat(cfg ChatConfig) (*Chat, error) {
	if cfg.Tokenizer == nil {
		return nil, errors.New("chat: needs a tokenizer")
	}
	callables, err := NewCallables(cfg.Colleagues, cfg.Tools)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	c := &Chat{cfg: cfg, callables: callables, system: cfg.System, neutral: neutralizer(cfg.Tokenizer)}
	if err := c.placeTools(); err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	if err := c.probeObservation(); err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return c, nil
}

// placeTools passes the tool definitions to the template if it prints them, else it adds them to the system prompt.
func (c *Chat) placeTools() error {
	if len(c.callables.definitions) == 0 {
		return nil
	}
	question := c.withSystem(tokenizer.Message{Role: "user", Content: probeUser})
	plain, err := c.render(question, nil)
	if err != nil {
		return err
	}
	for _, d := range c.callables.definitions {
		parsed, err := ordered.Parse(d)
		if err != nil {
			return fmt.Errorf("tool definition %s: %w", d, err)
		}
		c.tools = append(c.tools, parsed)
	}
	if with, err := c.render(question, c.tools); err != nil || with != plain {
		return err
	}
	c.tools = nil
	c.system = strings.TrimSpace(c.system + "\n\n" + c.callables.prompt())
	return nil
}

// render applies the chat template with the generation prompt at the end.
func (c *Chat) render(messages []tokenizer.Message, tools []any) (string, error) {
	text, err := c.cfg.Tokenizer.Render(tokenizer.Chat{
		Messages:            tokenizer.Messages(messages...),
		Tools:               tools,
		AddGenerationPrompt: true,
		EnableThinking:      c.cfg.EnableThinking,
		Kwargs:              c.cfg.TemplateArgs,
		Date:                c.cfg.Date,
	})
	if err != nil {
		return "", fmt.Errorf("rendering a prompt: %w", err)
	}
	return text, nil
}

// prompt describes the callables and how to call them, for a template that does not print tools.
func (c *Callables) prompt() string {
	var b strings.Builder
	b.WriteString("# Tools\n\nYou may call these functions:\n<tools>\n")
	for _, d := range c.definitions {
		b.Write(d)
		b.WriteByte('\n')
	}
	b.WriteString("</tools>\n\nTo call one, write its name and arguments like this:\n" +
		callOpen + "\n" + c.example + "\n" + callClose +
		"\nThe answer comes between " + responseOpen + " and " + responseClose + ". Without a call, what you write is your final answer.")
	return b.String()
}

// probeObservation finds out whether the template has a tool role, how it opens a turn, and which token ends a turn.
func (c *Chat) probeObservation() error {
	answer := []Result{{Call: Call{Name: "probe"}, Text: probeAnswer}}
	c.toolRole = true
	delta, err := c.delta(answer)
	if c.tools == nil && len(c.callables.definitions) > 0 || err != nil || !strings.Contains(delta, probeAnswer) {
		c.toolRole = false
		if delta, err = c.delta(answer); err != nil {
			return err
		}
	}
	c.thinking = strings.HasSuffix(strings.TrimSpace(delta), thinkOpen)
	c.stops = c.cfg.Tokenizer.StopIDs()
	// The token right after an assistant's text ends the turn, even if the model's files name other tokens.
	if ids := c.cfg.Tokenizer.Encode(delta); len(ids) > 0 && c.cfg.Tokenizer.Special(ids[0]) && !slices.Contains(c.stops, ids[0]) {
		c.stops = append(c.stops, ids[0])
	}
	if len(c.stops) == 0 {
		return errors.New("no token ends a turn: name an end-of-turn token in generation_config.json (eos_token_id) or in the chat template")
	}
	return nil
}

func (c *Chat) withSystem(messages ...tokenizer.Message) []tokenizer.Message {
	if c.system == "" {
		return messages
	}
	return append([]tokenizer.Message{{Role: "system", Content: c.system}}, messages...)
}

// Prompt renders the system prompt, the tools and the question.
func (c *Chat) Prompt(task string) ([]int32, string, error) {
	text, err := c.render(c.withSystem(tokenizer.Message{Role: "user", Content: c.neutral.Replace(task)}), c.tools)
	if err != nil {
		return nil, "", err
	}
	return c.cfg.Tokenizer.Encode(text), text, nil
}

// Stops ends a turn at the model's end-of-turn tokens.
func (c *Chat) Stops() Stops { return Stops{IDs: c.stops} }

// Text decodes a turn, control tokens included.
func (c *Chat) Text(turn []int32) string { return c.cfg.Tokenizer.Decode(turn, false) }

// Parse reads the calls of a turn. A turn without calls is the final answer, without its thinking.
func (c *Chat) Parse(turn []int32) Action {
	if n := len(turn); n > 0 && slices.Contains(c.stops, turn[n-1]) {
		turn = turn[:n-1]
	}
	text := WithoutThinking(c.Text(turn), c.thinking)
	parsed := ParseToolCalls(text)
	if len(parsed) == 0 {
		return Action{Final: true, Answer: strings.TrimSpace(text)}
	}
	calls := make([]Call, len(parsed))
	for i, p := range parsed {
		calls[i] = c.callables.Call(p)
	}
	return Action{Calls: calls}
}

// Observe renders the results as the template does after an assistant turn, from the end of that turn to the opening of
// the next. It does not repeat an end-of-turn token that the policy sampled.
func (c *Chat) Observe(turn []int32, results []Result) ([]int32, string, error) {
	neutral := make([]Result, len(results))
	for i, r := range results {
		neutral[i] = Result{Call: r.Call, Text: c.neutral.Replace(r.Text)}
	}
	text, err := c.delta(neutral)
	if err != nil {
		return nil, "", err
	}
	ids := c.cfg.Tokenizer.Encode(text)
	if n := len(turn); n > 0 && slices.Contains(c.stops, turn[n-1]) {
		// Some templates put a space before the token that ends a turn.
		const lookahead = 4
		if i := slices.Index(ids[:min(lookahead, len(ids))], turn[n-1]); i >= 0 {
			ids = ids[i+1:]
		}
	}
	return ids, c.cfg.Tokenizer.Decode(ids, false), nil
}

// delta returns the template's text between an assistant's turn and its next turn. It renders a fixed conversation and
// not the real one: some templates rewrite history (Qwen3 drops earlier thinking), so a rendering of the real
// conversation need not be a prefix of the next rendering.
func (c *Chat) delta(results []Result) (string, error) {
	messages := []tokenizer.Message{{Role: "user", Content: probeUser}, {Role: "assistant", Content: probeTurn}}
	if c.toolRole {
		for _, r := range results {
			messages = append(messages, tokenizer.Message{Role: "tool", Content: r.Text, Name: r.Call.Name})
		}
	} else {
		blocks := make([]string, len(results))
		for i, r := range results {
			blocks[i] = responseOpen + "\n" + r.Text + "\n" + responseClose
		}
		messages = append(messages, tokenizer.Message{Role: "user", Content: strings.Join(blocks, "\n")})
	}
	text, err := c.render(messages, nil)
	if err != nil {
		return "", err
	}
	_, delta, found := strings.Cut(text, probeTurn)
	if !found {
		return "", errors.New("the chat template does not print an assistant's message: use another template")
	}
	return delta, nil
}

// neutralizer breaks control tokens in text from outside: a tool's output or a sub-task that contains <|im_end|> must
// not end a turn.
func neutralizer(t Tokenizer) *strings.Replacer {
	var pairs []string
	for id := range int32(t.VocabSize()) {
		if text := t.Token(id); t.Special(id) && len(text) > 1 {
			pairs = append(pairs, text, text[:1]+" "+text[1:])
		}
	}
	return strings.NewReplacer(pairs...)
}
