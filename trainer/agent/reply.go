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
	if n := len(turn); n > 0 && slices.Contains(t.stops, turn[n-1]) {
		turn = turn[:n-1] // without the token that ended it
	}
	return t.read(t.Text(turn))
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
	read := t.calls.Read(answer, t.functions)
	if len(read.Calls) == 0 && t.calls != callformat.Hermes { // demonstrations may use Hermes's notation
		read = callformat.Hermes.Read(answer, t.functions)
	}
	return Reply{Text: answer[:read.Start], Whole: answer, Thinking: thought, Calls: read.Calls}
}
