package agent

import (
	"regexp"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

const thinkOpen, thinkClose = "<think>", "</think>"

// ThinkingMarks lists the marks around thinking that models write, as pairs of an opening and a closing mark. The first pair is the
// default.
var ThinkingMarks = [][2]string{
	{thinkOpen, thinkClose}, {"[THINK]", "[/THINK]"}, {"<|channel>thought", "<channel|>"}, {"<|START_THINKING|>", "<|END_THINKING|>"},
	{"<seed:think>", "</seed:think>"}, {"◁think▷", "◁/think▷"}, {"<thinking>", "</thinking>"},
	{"<thought>", "</thought>"}, {"<reasoning>", "</reasoning>"}, {"<analysis>", "</analysis>"},
}

// thinking describes how the model of a template writes its thinking.
type thinking struct {
	open, close string // marks around thinking
	opened      bool   // the prompt ends with open: a turn begins inside its thinking
	bare        bool   // the template handles thinking, so a turn may close it without having opened it
	call        string // mark of calls: a turn that begins with it has no thinking
	key         string // the template reads a message's thinking from this key; "" if it reads none
}

// plainThinking has the default marks, for models whose template does not handle thinking.
var plainThinking = thinking{open: thinkOpen, close: thinkClose}

// probeThinks finds out how the template handles thinking. opening is the text that opens an assistant's turn.
func probeThinks(t *Template, opening string) {
	t.thinks = plainThinking
	handles := printsThinking(t) || dropsThinking(t)
	if !handles {
		namesThinking(t)
	}
	opening = strings.TrimSpace(opening)
	t.thinks.opened = strings.HasSuffix(opening, t.thinks.open)
	t.thinks.bare = !strings.HasSuffix(opening, t.thinks.close) && handles
}

// printsThinking finds the key under which the template reads an assistant's thinking, and the marks that it prints around it. Some
// templates print thinking only before calls.
func printsThinking(t *Template) bool {
	message := tokenizer.Message{Role: "assistant", Content: probeTurn, Reasoning: probeThinking}
	calling := tokenizer.Message{Role: "assistant", Reasoning: probeThinking, ToolCalls: t.history.adapted([]tokenizer.ToolCall{{ID: callformat.ProbeID,
		Name: probeFunction, Arguments: ordered.NewObject("key", probeArgument)}})}
	for _, key := range []string{"reasoning_content", "reasoning", "thinking"} {
		if t.thinks.key = key; printsThinkingOf(t, message, probeTurn) || t.history.calls && printsThinkingOf(t, calling, probeFunction) {
			return true
		}
	}
	t.thinks.key = ""
	return false
}

// printsThinkingOf reports whether the template prints the thinking of a message before a text of it, and stores the marks around the
// thinking.
func printsThinkingOf(t *Template, m tokenizer.Message, before string) bool {
	text, err := t.render([]tokenizer.Message{{Role: "user", Content: probeUser}, m}, t.tools, false)
	head, after, found := strings.Cut(text, probeThinking)
	between, _, follows := strings.Cut(after, before)
	if err != nil || !found || !follows {
		return false
	}
	open, end := lastMark.FindString(head), firstMark.FindString(between)
	if open != "" && end != "" {
		t.thinks.open, t.thinks.close = strings.TrimSpace(open), strings.TrimSpace(end)
	}
	return before == probeTurn || open != "" && end != ""
}

var (
	lastMark  = regexp.MustCompile(`(<[^<>]*>\w*|\[[A-Z]+\])\s*$`)
	firstMark = regexp.MustCompile(`^\s*(<[^<>]*>|\[/[A-Z]+\])`)
)

// dropsThinking reports whether the template removes thinking from an assistant's text, and stores its marks. Only templates of
// reasoning models do so.
func dropsThinking(t *Template) bool {
	for _, marks := range ThinkingMarks {
		inText := marks[0] + "\n" + probeThinking + "\n" + marks[1] + "\n\n" + probeTurn
		text, err := t.render([]tokenizer.Message{{Role: "user", Content: probeUser}, {Role: "assistant", Content: inText}}, t.tools, false)
		if err == nil && !strings.Contains(text, probeThinking) {
			t.thinks.open, t.thinks.close = marks[0], marks[1]
			return true
		}
	}
	return false
}

// namesThinking stores the marks that occur in the template's own system prompt, which asks the model to write them.
func namesThinking(t *Template) {
	prompt, err := t.render([]tokenizer.Message{{Role: "user", Content: probeUser}}, t.tools, false)
	for _, marks := range ThinkingMarks {
		if err == nil && strings.Contains(prompt, marks[0]) && strings.Contains(prompt, marks[1]) {
			t.thinks.open, t.thinks.close = marks[0], marks[1]
			return
		}
	}
}

// split separates a turn's text into its thinking, without the marks, and the rest. Thinking comes first, so a later
// mark is text. closed reports whether the thinking has ended. It is true for a turn without thinking.
func (k thinking) split(text string) (thought, rest string, closed bool) {
	within, began := strings.CutPrefix(strings.TrimLeft(text, Blanks), k.open)
	if !began {
		within = text
	}
	if !began && !k.opened && k.call != "" && strings.HasPrefix(strings.TrimLeft(text, Blanks), k.call) {
		return "", text, true
	}
	i := callformat.IndexUnquoted(within, 0, k.close)
	if !began && !k.opened && strings.Contains(within[:i], k.open) { // both marks are quoted
		i = len(within)
	}
	switch {
	case i < len(within) && (began || k.opened || k.bare):
		return strings.Trim(within[:i], Blanks), within[i+len(k.close):], true
	case began || k.opened:
		return strings.Trim(within, Blanks), "", false
	}
	return "", text, true
}

// empty returns the text that closes thinking that the template has opened.
func (k thinking) empty() string { return "\n" + k.close + "\n\n" }

// withoutThought returns the opening of a turn without an empty thought at its end.
func (k thinking) withoutThought(opening string) string {
	before, end := strings.CutSuffix(strings.TrimSpace(opening), k.close)
	if !end {
		return opening
	}
	return strings.TrimSuffix(strings.TrimSpace(before), k.open)
}

// withoutEmptyThought returns a turn without an empty thought at its beginning.
func (k thinking) withoutEmptyThought(turn string) string {
	within, open := strings.CutPrefix(strings.TrimLeft(turn, Blanks), k.open)
	rest, end := strings.CutPrefix(strings.TrimLeft(within, Blanks), k.close)
	if !open || !end {
		return turn
	}
	return strings.TrimLeft(rest, Blanks)
}

// objects returns messages as the template's objects, with thinking under the key that the template reads.
func (k thinking) objects(messages []tokenizer.Message) []any {
	list := tokenizer.Messages(messages...)
	for i, m := range messages {
		if key := k.key; m.Reasoning != "" && key != "" && key != "reasoning_content" && (m.Content == "" || len(m.ToolCalls) == 0) {
			list[i].(*ordered.Object).Set(key, m.Reasoning)
		}
	}
	return list
}

// Blanks are the characters around thinking that do not belong to it.
const Blanks = " \t\r\n"

// Partial is the part of an unfinished turn's Reply that no continuation changes: the final Thinking and Text begin
// with these.
type Partial struct {
	Thinking string
	Thought  bool // the thinking is complete
	Text     string
}

// Partial reads the text of an unfinished turn. If offered is false, the model has no functions and no text is a call.
func (t *Template) Partial(text string, offered bool) Partial {
	if h, ok := t.calls.(callformat.Harmony); ok {
		thought, answer, _ := h.Split(text)
		return Partial{Thinking: strings.Trim(thought, Blanks), Text: answer}
	}
	k := t.thinks
	k.call = t.calls.Mark()
	start := strings.TrimLeft(text, Blanks)
	thought, rest, closed := k.split(text)
	switch last := strings.LastIndex(text, k.close); {
	case strings.HasPrefix(k.open, start): // the text may still become an opening mark
		return Partial{}
	case last > 0 && last+len(k.close) == len(text) && strings.IndexByte("`'\"", text[last-1]) >= 0: // the next character may quote it
		return Partial{}
	case closed && rest == text && k.bare: // the whole text is thinking if a closing mark follows
		return Partial{}
	case !closed:
		return Partial{Thinking: strings.TrimRight(SafePrefix(thought, k.close), Blanks)}
	case !offered:
		return Partial{thought, true, rest}
	}
	return Partial{thought, true, rest[:min(t.calls.SafeLen(rest), callformat.Hermes.SafeLen(rest))]}
}

// SafePrefix returns the beginning of a text up to the first of the marks, without a tail that may be the beginning of a
// mark.
func SafePrefix(text string, marks ...string) string {
	return text[:callformat.SafeLen(text, marks...)]
}

// WithoutThinking removes the thinking of a reasoning model's answer: the text between marks of ThinkingMarks at its beginning,
// everything up to a lone </think>, or the channel analysis of GPT-OSS.
func WithoutThinking(text string) string {
	start := strings.TrimLeft(text, Blanks)
	if _, answer, channels := (callformat.Harmony{}).Split(text); channels && strings.HasPrefix(start, "<|channel|>") {
		return answer
	}
	k := plainThinking
	k.bare = true
	for _, marks := range ThinkingMarks[1:] {
		if strings.HasPrefix(start, marks[0]) {
			k.open, k.close = marks[0], marks[1]
		}
	}
	_, rest, _ := k.split(text)
	return rest
}

// ThinkingOpen returns the mark before the thinking of a template's model.
func ThinkingOpen(t *Template) string { return t.thinks.open }
