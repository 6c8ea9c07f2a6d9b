package agent

import (
	"strings"

	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

// thinking is how the turns of a template's model think.
type thinking struct {
	opened bool // the prompt ends with <think>: a turn begins inside its thinking
	bare   bool // the template handles thinking, so a turn may close it with </think> although nothing opened it
}

// probeThinks finds out how the template handles thinking. opening is the text with which it opens an assistant's turn.
func (t *Template) probeThinks(opening string) {
	opening = strings.TrimSpace(opening)
	t.thinks = thinking{opened: strings.HasSuffix(opening, thinkOpen)}
	if strings.HasSuffix(opening, thinkClose) {
		return
	}
	inText := thinkOpen + "\n" + probeThinking + "\n" + thinkClose + "\n\n" + probeTurn
	for _, m := range []tokenizer.Message{{Role: "assistant", Content: probeTurn, Reasoning: probeThinking}, {Role: "assistant", Content: inText}} {
		text, err := t.render([]tokenizer.Message{{Role: "user", Content: probeUser}, m}, nil, false)
		printed := strings.Contains(text, probeThinking)
		t.thinks.bare = t.thinks.bare || err == nil && printed == (m.Reasoning != "")
	}
}

// split parts a turn's text into its thinking, without the tags, and what follows. Thinking comes first: a tag further on is text.
// closed reports whether the thinking has ended; a turn without any has.
func (k thinking) split(text string) (thought, rest string, closed bool) {
	within, began := strings.CutPrefix(strings.TrimLeft(text, Blanks), thinkOpen)
	if !began {
		within = text
	}
	i := closing(within)
	switch {
	case i >= 0 && (began || k.opened || k.bare):
		return strings.Trim(within[:i], Blanks), within[i+len(thinkClose):], true
	case began || k.opened:
		return strings.Trim(within, Blanks), "", false
	}
	return "", text, true
}

// Blanks are the characters around thinking that are no part of it.
const Blanks = " \t\r\n"

// closing finds the first </think> that is not quoted, or returns -1.
func closing(text string) int {
	for from := 0; ; {
		i := strings.Index(text[from:], thinkClose)
		if i < 0 {
			return -1
		}
		i += from
		if from = i + len(thinkClose); !quoted(text, i, from) {
			return i
		}
	}
}

// quoted reports whether text[i:j] stands between two equal quotation marks.
func quoted(text string, i, j int) bool {
	return i > 0 && j < len(text) && text[i-1] == text[j] && strings.IndexByte("`'\"", text[j]) >= 0
}

// Partial is the part of an unfinished turn's Reply that no continuation changes: its Thinking and its Text begin with these.
type Partial struct {
	Thinking string
	Thought  bool // the thinking is complete
	Text     string
}

// Partial reads the text of an unfinished turn. offered reports whether functions were offered: without them no text is a call.
func (t *Template) Partial(text string, offered bool) Partial {
	start := strings.TrimLeft(text, Blanks)
	thought, rest, closed := t.thinks.split(text)
	switch last := strings.LastIndex(text, thinkClose); {
	case strings.HasPrefix(thinkOpen, start): // what it begins with is not known yet
		return Partial{}
	case last > 0 && last+len(thinkClose) == len(text) && strings.IndexByte("`'\"", text[last-1]) >= 0: // the next character may quote it
		return Partial{}
	case closed && rest == text && t.thinks.bare: // all of it is thinking if a </think> follows
		return Partial{}
	case !closed:
		return Partial{Thinking: strings.TrimRight(Held(thought, thinkClose), Blanks)}
	case !offered:
		return Partial{thought, true, rest}
	}
	return Partial{thought, true, t.beforeCalls(rest)}
}

// beforeCalls is the part of an unfinished text that comes before its first call, if any.
func (t *Template) beforeCalls(text string) string {
	mark := t.calls.mark
	if mark == "{" { // such a call is the whole turn
		if start := strings.TrimLeft(text, Blanks); start == "" || start[0] == '{' || start[0] == '<' {
			return ""
		}
		mark = callOpen
	}
	return Held(text, callOpen, mark)
}

// Held is a text up to the first of the marks, without an end with which a mark may begin.
func Held(text string, marks ...string) string {
	for _, m := range marks {
		text, _, _ = strings.Cut(text, m)
		for n := min(len(m)-1, len(text)); n > 0; n-- {
			if strings.HasSuffix(text, m[:n]) {
				text = text[:len(text)-n]
				break
			}
		}
	}
	return text
}

// WithoutThinking drops the thinking of a reasoning model's answer: what <think> and </think> enclose at its beginning, or all up to a
// </think> alone. opened reports whether the prompt ended with <think>.
func WithoutThinking(text string, opened bool) string {
	_, rest, _ := thinking{opened: opened, bare: true}.split(text)
	return rest
}
