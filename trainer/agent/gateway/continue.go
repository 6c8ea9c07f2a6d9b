package gateway

import (
	"strings"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// checkLast refuses requests whose last message contradicts their options for the beginning of the turn, as vLLM does.
func (r *chatRequest) checkLast() error {
	last := &r.Messages[len(r.Messages)-1]
	requested := r.ContinueFinalMessage != nil && *r.ContinueFinalMessage
	switch {
	case last.Role != "assistant" && requested:
		return invalid("continue_final_message", "the last message has the role %s, but must have the role assistant", last.Role)
	case last.Role != "assistant" && r.AddGenerationPrompt != nil && !*r.AddGenerationPrompt:
		return invalid("add_generation_prompt", "false, so nothing would open the assistant's turn: leave it out")
	case requested && r.AddGenerationPrompt != nil && *r.AddGenerationPrompt:
		return invalid("add_generation_prompt", "it is true and so is continue_final_message: set only one of them")
	case last.Role == "assistant" && len(last.ToolCalls) > 0:
		return invalid("messages", "the last message is the assistant's, and its tool_calls have no results: add messages with the role tool")
	}
	return nil
}

// continues reports whether the turn continues the last message, which is the assistant's, instead of answering it.
func (r *chatRequest) continues() bool {
	if r.Messages[len(r.Messages)-1].Role != "assistant" || r.ContinueFinalMessage != nil && !*r.ContinueFinalMessage {
		return false
	}
	return r.AddGenerationPrompt == nil || !*r.AddGenerationPrompt
}

// placeContinuation adds the turn that continues the last message. If that message is a turn that a limit cut off, the
// new turn follows its sampled tokens. Otherwise it follows the message as the template prints it. The caller must hold
// the lock.
func (at *attempt) placeContinuation(t *turn, messages []message, all []chain, d *dialect, c turnCall) (err error) {
	n := len(messages) - 1
	for _, before := range at.forest.byHistory[all[n+1]] {
		sameThinking := messages[n].Reasoning == "" || strings.TrimSpace(messages[n].Reasoning) == strings.TrimSpace(before.reply.thinking)
		if before.out.Finish != policy.FinishStop && before.request.dialectKey == d.key && sameThinking {
			t.parent = before
			return before.root.add(t)
		}
	}
	t.prompt.ids, t.prompt.text, err = d.template.Continue(templateMessages(messages, d.template.Neutral))
	if err != nil {
		return invalid("messages", "%v", err)
	}
	t.opening = opening{all[n], lastUser(t.request.messages)}
	return at.begin(t, at.forest.findRewrittenRoot(all), d, c)
}
