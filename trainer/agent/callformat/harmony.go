package callformat

import (
	"iter"
	"strings"
)

const (
	harmonyStart   = "<|start|>"
	harmonyMessage = "<|message|>"
	harmonyChannel = "<|channel|>"
	harmonyEnd     = "<|end|>"
	harmonyTo      = "to="
	harmonyHint    = "Write " + harmonyChannel + "commentary to=functions.NAME <|constrain|>json" + harmonyMessage + "{...}<|call|>."
)

// harmonyEnds are the marks that end a message. Only <|call|> and <|return|> end a turn.
var harmonyEnds = []string{harmonyEnd, "<|call|>", "<|return|>"}

// Harmony is the notation of GPT-OSS: messages in channels. Messages in the channel analysis are thinking. Messages to
// functions.NAME are calls. All others are text.
type Harmony struct{}

// Hint implements Format.
func (Harmony) Hint() string { return harmonyHint }

// Mark implements Format.
func (Harmony) Mark() string { return harmonyChannel }

// SafeLen implements Format. Thinking and text are in separate messages; see Split.
func (Harmony) SafeLen(text string) int { return len(text) }

// Read implements Format.
func (Harmony) Read(text string, _ Functions) Reading {
	r := noCalls(text)
	for m := range harmonyMessages(text) {
		if m.to == "" {
			continue
		}
		name := strings.TrimPrefix(m.to, "functions.")
		raw, n, err := decode(m.body)
		if len(r.Calls) == 0 {
			r.Start = m.start
		}
		r.End = m.bodyAt + len(m.body)
		if strings.TrimSpace(m.body) == "" {
			r.Calls = append(r.Calls, Call{Name: name, Arguments: []byte("{}")})
			continue
		}
		if err != nil {
			r.Calls = append(r.Calls, invalid(err, harmonyHint))
			continue
		}
		r.End = m.bodyAt + n
		r.Calls = append(r.Calls, withArguments(name, raw, "arguments", harmonyHint))
	}
	return r
}

// Split returns the thinking and the text of a turn. If the turn is unfinished, both are beginnings of the finished
// turn's thinking and text. ok is false for a turn without messages in channels.
func (Harmony) Split(text string) (thinking, answer string, ok bool) {
	var thoughts, texts strings.Builder
	for m := range harmonyMessages(text) {
		ok = true
		switch {
		case m.to != "":
		case m.channel == "analysis":
			thoughts.WriteString(m.body)
		default:
			texts.WriteString(m.body)
		}
	}
	return thoughts.String(), texts.String(), ok
}

// harmonyPart is one message of a turn.
type harmonyPart struct {
	channel, to   string
	body          string
	start, bodyAt int
}

// harmonyMessages returns an iterator over the messages of a turn. The arguments of a call may contain marks.
func harmonyMessages(text string) iter.Seq[harmonyPart] {
	return func(yield func(harmonyPart) bool) {
		for at := 0; at < len(text); {
			header, body, found := strings.Cut(text[at:], harmonyMessage)
			if !found {
				return
			}
			if i := strings.LastIndex(header, harmonyStart); i >= 0 && !strings.HasPrefix(header[i+len(harmonyStart):], "assistant") {
				return // not the assistant's message
			}
			m := harmonyPart{start: at, bodyAt: len(text) - len(body)}
			m.channel, m.to = harmonyHeader(header)
			end := SafeLen(body, append([]string{harmonyStart, harmonyChannel}, harmonyEnds...)...)
			if m.to != "" {
				if _, n, err := decode(body); err == nil {
					end = n
				}
			}
			m.body = body[:end]
			if !yield(m) {
				return
			}
			at = m.bodyAt + end
			for _, e := range harmonyEnds {
				at = skipMark(text, at, e)
			}
		}
	}
}

// harmonyHeader reads the channel and the recipient of a message. The recipient may come before or after the channel.
func harmonyHeader(header string) (channel, to string) {
	if _, after, found := strings.Cut(header, harmonyChannel); found {
		after, _, _ = strings.Cut(strings.TrimSpace(after), "<|")
		if words := strings.Fields(after); len(words) > 0 {
			channel = words[0]
		}
	}
	if _, after, found := strings.Cut(header, harmonyTo); found {
		to, _, _ = strings.Cut(after, "<|")
		if words := strings.Fields(to); len(words) > 0 {
			to = words[0]
		}
	}
	return channel, to
}

func learnHarmony(p *probes) Format {
	if strings.Contains(p.one, harmonyTo+"functions."+probeName) && strings.Contains(p.one, harmonyChannel) {
		return Harmony{}
	}
	return nil
}
