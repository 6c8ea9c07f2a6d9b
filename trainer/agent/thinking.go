package agent

import (
	"regexp"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

const thinkOpen, thinkClose = "<think>", "</think>"

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
func (t *Template) probeThinks(opening string) {
	t.thinks = plainThinking
	for _, key := range []string{"reasoning_content", "reasoning", "thinking"} {
		if t.thinks.key = key; t.printsThinking() {
			break
		}
		t.thinks.key = ""
	}
	opening = strings.TrimSpace(opening)
	t.thinks.opened = strings.HasSuffix(opening, t.thinks.open)
	t.thinks.bare = !strings.HasSuffix(opening, t.thinks.close) && (t.thinks.key != "" || t.dropsThinking())
}

// printsThinking reports whether the template prints an assistant's thinking, and stores the marks around it.
func (t *Template) printsThinking() bool {
	text, err := t.render([]tokenizer.Message{{Role: "user", Content: probeUser}, {Role: "assistant", Content: probeTurn, Reasoning: probeThinking}},
		t.tools, false)
	before, after, found := strings.Cut(text, probeThinking)
	between, _, hasTurn := strings.Cut(after, probeTurn)
	if err != nil || !found || !hasTurn {
		return false
	}
	if open, end := lastMark.FindString(before), firstMark.FindString(between); open != "" && end != "" {
		t.thinks.open, t.thinks.close = strings.TrimSpace(open), strings.TrimSpace(end)
	}
	return true
}

var (
	lastMark  = regexp.MustCompile(`(<[^<>]*>\w*|\[[A-Z]+\])\s*$`)
	firstMark = regexp.MustCompile(`^\s*(<[^<>]*>|\[/[A-Z]+\])`)
)

// dropsThinking reports whether the template removes thinking from an assistant's text. Only templates of reasoning
// models do so.
func (t *Template) dropsThinking() bool {
	inText := thinkOpen + "\n" + probeThinking + "\n" + thinkClose + "\n\n" + probeTurn
	text, err := t.render([]tokenizer.Message{{Role: "user", Content: probeUser}, {Role: "assistant", Content: inText}}, t.tools, false)
	return err == nil && !strings.Contains(text, probeThinking)
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

// WithoutThinking removes the thinking of a reasoning model's answer: the text between <think> and </think> at its
// beginning, or everything up to a lone </think>.
func WithoutThinking(text string) string {
	k := plainThinking
	k.bare = true
	_, rest, _ := k.split(text)
	return rest
}
