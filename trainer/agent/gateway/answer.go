package gateway

import (
	"context"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// answer answers a chat request.
func (r *chatRequest) answer(in incoming, a *AgentServer, c call) error {
	if !r.Stream {
		t, err := a.chat(in.r.Context(), r, c)
		if err != nil {
			return err
		}
		message := map[string]any{"role": "assistant", "content": t.reply.text, "refusal": nil}
		if t.reply.thinking != "" {
			message["reasoning_content"] = t.reply.thinking
		}
		if len(t.reply.calls) > 0 {
			message["content"], message["tool_calls"] = nullable(t.reply.text), t.reply.calls
		}
		if len(t.reply.written) > 0 {
			message["mgrpo"] = map[string]any{"calls": t.reply.written}
		}
		choice := map[string]any{"index": 0, "message": message, "finish_reason": t.finish(), "logprobs": nil}
		if r.LogProbs {
			choice["logprobs"] = map[string]any{"content": a.logProbs(t), "refusal": nil}
		}
		return writeJSON(in.w, map[string]any{"id": t.reply.id, "object": "chat.completion", "created": time.Now().Unix(), "model": a.Name,
			"choices": []any{choice}, "usage": t.usage()})
	}
	to := newChunks(in.w, a, &r.options)
	to.object, to.chat = "chat.completion.chunk", true
	if r.LogProbs {
		to.logProbs = func(t *turn) any { return map[string]any{"content": a.logProbs(t)} }
	}
	return a.streamChat(in.r.Context(), to, r, c)
}

// streamChat sends the turn of a chat request to a listener while it is sampled.
func (a *AgentServer) streamChat(ctx context.Context, to listener, request *chatRequest, c call) error {
	d, err := a.dialectOf(request)
	if err != nil {
		return err
	}
	template := request.template(d)
	s := &stream{agent: a, to: to, stopIDs: d.Stops().IDs, certain: func(text string) agent.Partial {
		return until(request.Stop, template.Partial(text, d.offers))
	}}
	return s.run(ctx, c, func(ctx context.Context, c call) (*turn, error) { return a.chat(ctx, request, c) })
}

// answer answers a request for a text.
func (r *textRequest) answer(in incoming, a *AgentServer, c call) error {
	if !r.Stream {
		t, err := a.complete(in.r.Context(), r, c)
		if err != nil {
			return err
		}
		choice := map[string]any{"index": 0, "text": t.reply.text, "finish_reason": t.finish(), "logprobs": nil}
		if r.LogProbs != nil {
			choice["logprobs"] = a.textLogProbs(t)
		}
		return writeJSON(in.w, map[string]any{"id": t.reply.id, "object": "text_completion", "created": time.Now().Unix(), "model": a.Name,
			"choices": []any{choice}, "usage": t.usage()})
	}
	to := newChunks(in.w, a, &r.options)
	to.object = "text_completion"
	if r.LogProbs != nil {
		to.logProbs = func(t *turn) any { return a.textLogProbs(t) }
	}
	s := &stream{agent: a, to: to, stopIDs: a.Tokenizer.StopIDs(), plain: true, certain: func(text string) agent.Partial {
		return agent.Partial{Text: agent.SafePrefix(text, r.Stop...)}
	}}
	return s.run(in.r.Context(), c, func(ctx context.Context, c call) (*turn, error) { return a.complete(ctx, r, c) })
}

// textLogProbs returns the log-probs of a turn in the form of /v1/completions.
func (a *AgentServer) textLogProbs(t *turn) map[string]any {
	return map[string]any{"tokens": a.texts(t), "token_logprobs": t.out.LogProbs, "token_ids": t.out.Tokens}
}

// nullable returns nil, which JSON writes as null, for an empty text.
func nullable(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// finish returns the finish_reason.
func (t *turn) finish() string {
	switch {
	case t.out.Finish != policy.FinishStop:
		return "length"
	case len(t.reply.calls) > 0:
		return "tool_calls"
	}
	return "stop"
}

func (t *turn) usage() map[string]int {
	sampled := len(t.out.Tokens)
	return map[string]int{"prompt_tokens": t.size() - sampled, "completion_tokens": sampled, "total_tokens": t.size()}
}

// logProbs returns the log-probs of the turn's tokens in the form of /v1/chat/completions.
func (a *AgentServer) logProbs(t *turn) []map[string]any {
	out := make([]map[string]any, len(t.out.Tokens))
	for i, text := range a.texts(t) {
		var bytes []int
		for _, b := range a.Tokenizer.TokenBytes(t.out.Tokens[i]) {
			bytes = append(bytes, int(b))
		}
		out[i] = map[string]any{"token": text, "logprob": t.out.LogProbs[i], "bytes": bytes, "top_logprobs": []any{}}
	}
	return out
}

func (a *AgentServer) texts(t *turn) []string {
	out := make([]string, len(t.out.Tokens))
	for i, id := range t.out.Tokens {
		out[i] = a.Tokenizer.Token(id)
	}
	return out
}
