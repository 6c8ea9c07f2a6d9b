package gateway

import (
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// reply is a turn in the form that the client receives.
type reply struct {
	id        string
	text      string
	thinking  string
	calls     []toolCall
	malformed int           // calls that cannot be executed
	written   []writtenCall // all calls in the order written, if any is malformed
	violation bool          // it violates the request's response_format or tool_choice
}

// writtenCall is a call as the model wrote it. Problem is the text for the model in place of a result.
type writtenCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments,omitempty"`
	Problem   string `json:"problem,omitempty"`
}

// read converts a turn into a reply. If a call cannot be parsed, the client receives the whole turn as text, together
// with the problem. A turn that a limit cut off has no malformed calls, because its conversation is invalid anyway.
// Calls beyond the first most calls are malformed; 0 means no limit. A client that takes one call per turn receives the
// first call.
func (r *chatRequest) read(d *dialect, turn policy.Completion, most int) reply {
	parsed := r.template(d).Reply(turn.Tokens)
	out := reply{text: parsed.Text, thinking: parsed.Thinking}
	if !d.hasFunctions { // without functions, a text that looks like a call is text
		return reply{text: parsed.Whole, thinking: parsed.Thinking}
	}
	handed := len(parsed.Calls)
	if r.oneCall() {
		most, handed = 1, min(1, handed)
	}
	unreadable := false
	for i, c := range parsed.Calls {
		problem := d.functions.Call(c).Problem
		if most > 0 && i >= most {
			problem = agent.SurplusProblem(len(parsed.Calls)-most, most)
		}
		if problem != "" && turn.Finish == policy.FinishStop {
			out.malformed++
		}
		out.written = append(out.written, writtenCall{c.Name, string(c.Arguments), problem})
		if i < handed {
			unreadable = unreadable || c.Problem != ""
			out.calls = append(out.calls, toolCall{Type: "function", Function: functionCall{Name: c.Name, Arguments: string(c.Arguments)}})
		}
	}
	if unreadable {
		out.text, out.calls = parsed.Whole, nil
	}
	if out.malformed == 0 {
		out.written = nil
	}
	return out
}

// oneCall reports whether the client takes only one call per turn.
func (r *chatRequest) oneCall() bool { return r.ParallelToolCalls != nil && !*r.ParallelToolCalls }

// template returns the template that reads the turn.
func (r *chatRequest) template(d *dialect) *agent.Template {
	if last := r.Messages[len(r.Messages)-1]; r.continues() {
		return d.template.Within(string(last.Content), last.Reasoning)
	}
	return d.template
}
