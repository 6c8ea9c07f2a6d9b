package agent

import (
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
)

// Reply is the content of a sampled turn.
type Reply struct {
	Text     string            // without end-of-turn token and thinking, up to the first call
	Whole    string            // without end-of-turn token and thinking
	Thinking string            // without its tags
	Calls    []callformat.Call // in the order written
}

// Reply reads a sampled turn.
func (t *Template) Reply(turn []int32) Reply {
	return t.read(t.Text(t.withoutStop(turn)))
}

// read reads the text of a turn.
func (t *Template) read(text string) Reply {
	if h, ok := t.calls.(callformat.Harmony); ok {
		if thought, answer, channels := h.Split(text); channels {
			return Reply{Text: answer, Whole: answer, Thinking: strings.Trim(thought, Blanks), Calls: h.Read(text, t.functions).Calls}
		}
	}
	k := t.thinks
	k.call = t.calls.Mark()
	thought, answer, _ := k.split(text)
	read := t.readCalls(answer)
	return Reply{Text: answer[:read.Start], Whole: answer, Thinking: thought, Calls: read.Calls}
}

// readCalls reads calls in the template's notation. If it finds none, it tries Hermes's notation, because
// demonstrations may use it.
func (t *Template) readCalls(text string) callformat.Reading {
	read := t.calls.Read(text, t.functions)
	if len(read.Calls) == 0 && t.calls != callformat.Hermes {
		read = callformat.Hermes.Read(text, t.functions)
	}
	return read
}

// withoutStop removes the token that ended a turn.
func (t *Template) withoutStop(turn []int32) []int32 {
	if n := len(turn); n > 0 && slices.Contains(t.stops, turn[n-1]) {
		return turn[:n-1]
	}
	return turn
}
