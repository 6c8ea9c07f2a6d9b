package gateway

import (
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// reply is a turn as the client reads it.
type reply struct {
	id        string
	text      string
	thinking  string
	calls     []toolCall
	malformed int     // calls that cannot be executed
	written   []wrote // all calls in the order written, if any is malformed
	broken    bool    // it is not what the request's response_format and tool_choice ask for
}

// wrote is a call as the model wrote it. Problem is what to tell the model in place of a result.
type wrote struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments,omitempty"`
	Problem   string `json:"problem,omitempty"`
}

// read makes a reply of a turn. If a call cannot even be parsed, the turn is text for the client, with what is wrong. A turn that was cut
// has no malformed calls: its conversation is invalid anyway. Calls beyond the first most are malformed; 0: there is no limit. A client
// that takes one call a turn gets the first.
func (r *chatRequest) read(d *dialect, turn policy.Completion, most int) reply {
	said := r.template(d).Reply(turn.Tokens)
	out := reply{text: said.Text, thinking: said.Thinking}
	if !d.offers { // what looks like a call is text
		return reply{text: said.Whole, thinking: said.Thinking}
	}
	handed := len(said.Calls)
	if r.oneCall() {
		most, handed = 1, min(1, handed)
	}
	unreadable := false
	for i, c := range said.Calls {
		problem := d.functions.Call(c).Problem
		if most > 0 && i >= most {
			problem = agent.Surplus(len(said.Calls)-most, most)
		}
		if problem != "" && turn.Finish == policy.FinishStop {
			out.malformed++
		}
		out.written = append(out.written, wrote{c.Name, string(c.Arguments), problem})
		if i < handed {
			unreadable = unreadable || c.Problem != ""
			out.calls = append(out.calls, toolCall{Type: "function", Function: functionCall{Name: c.Name, Arguments: string(c.Arguments)}})
		}
	}
	if unreadable {
		out.text, out.calls = said.Whole, nil
	}
	if out.malformed == 0 {
		out.written = nil
	}
	return out
}

// oneCall reports whether the client takes one call a turn.
func (r *chatRequest) oneCall() bool { return r.ParallelToolCalls != nil && !*r.ParallelToolCalls }

// template is the template that reads the turn.
func (r *chatRequest) template(d *dialect) *agent.Template {
	if last := r.Messages[len(r.Messages)-1]; r.continues() {
		return d.Within(string(last.Content), last.Reasoning)
	}
	return d.Template
}
