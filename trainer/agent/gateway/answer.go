package gateway

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// answer answers a chat request.
func (r *chatRequest) answer(in clientRequest, a *AgentServer, c turnCall) error {
	if r.Stream {
		to := &chunks{eventWriter: eventWriter{w: in.w}, agent: a, object: "chat.completion.chunk", usage: r.StreamOptions.IncludeUsage, chat: true}
		if r.LogProbs {
			to.logProbs = func(t *turn) any { return jsonObject{"content": a.logProbs(t)} }
		}
		return a.streamChat(in.r.Context(), to, r, c)
	}
	t, err := a.chat(in.r.Context(), r, c)
	if err != nil {
		return err
	}
	message := jsonObject{"role": "assistant", "content": t.reply.text, "refusal": nil}
	if t.reply.thinking != "" {
		message["reasoning_content"] = t.reply.thinking
	}
	if len(t.reply.calls) > 0 {
		message["content"], message["tool_calls"] = nullable(t.reply.text), t.reply.calls
	}
	if len(t.reply.written) > 0 {
		message["mgrpo"] = jsonObject{"calls": t.reply.written}
	}
	choice := jsonObject{"message": message, "logprobs": nil}
	if r.LogProbs {
		choice["logprobs"] = jsonObject{"content": a.logProbs(t), "refusal": nil}
	}
	return a.complete(in.w, "chat.completion", choice, t)
}

// complete sends a whole reply with one choice.
func (a *AgentServer) complete(w http.ResponseWriter, kind string, choice jsonObject, t *turn) error {
	choice["index"], choice["finish_reason"] = 0, t.finish()
	return writeJSON(w, jsonObject{"id": t.reply.id, "object": kind, "created": time.Now().Unix(), "model": a.Name, "choices": []any{choice},
		"usage": t.usage()})
}

// streamChat sends the turn of a chat request to a replyWriter while it is sampled.
func (a *AgentServer) streamChat(ctx context.Context, to replyWriter, request *chatRequest, c turnCall) error {
	d, err := a.dialectOf(request)
	if err != nil {
		return err
	}
	template := request.template(d)
	s := &stream{agent: a, to: to, stopIDs: d.template.Stops().IDs, stable: func(text string) agent.Partial {
		return cutPartial(request.Stop, template.Partial(text, d.hasFunctions))
	}}
	return s.run(ctx, c, func(ctx context.Context, c turnCall) (*turn, error) { return a.chat(ctx, request, c) })
}

// answer answers a request for a text.
func (r *textRequest) answer(in clientRequest, a *AgentServer, c turnCall) error {
	var logProbs func(t *turn) any
	if r.LogProbs != nil {
		logProbs = func(t *turn) any {
			return jsonObject{"tokens": a.texts(t), "token_logprobs": t.out.LogProbs, "token_ids": t.out.Tokens}
		}
	}
	if r.Stream {
		to := &chunks{eventWriter: eventWriter{w: in.w}, agent: a, object: "text_completion", usage: r.StreamOptions.IncludeUsage, logProbs: logProbs}
		s := &stream{agent: a, to: to, stopIDs: a.Tokenizer.StopIDs(), plain: true, stable: func(text string) agent.Partial {
			return agent.Partial{Text: agent.SafePrefix(text, r.Stop...)}
		}}
		return s.run(in.r.Context(), c, func(ctx context.Context, c turnCall) (*turn, error) { return a.continueText(ctx, r, c) })
	}
	t, err := a.continueText(in.r.Context(), r, c)
	if err != nil {
		return err
	}
	choice := jsonObject{"text": t.reply.text, "logprobs": nil}
	if logProbs != nil {
		choice["logprobs"] = logProbs(t)
	}
	return a.complete(in.w, "text_completion", choice, t)
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
func (a *AgentServer) logProbs(t *turn) []jsonObject {
	out := make([]jsonObject, len(t.out.Tokens))
	for i, text := range a.texts(t) {
		var bytes []int
		for _, b := range a.Tokenizer.TokenBytes(t.out.Tokens[i]) {
			bytes = append(bytes, int(b))
		}
		out[i] = jsonObject{"token": text, "logprob": t.out.LogProbs[i], "bytes": bytes, "top_logprobs": []any{}}
	}
	return out
}

// texts returns the texts of the turn's tokens. A token that is part of a character has U+FFFD, as in vLLM.
func (a *AgentServer) texts(t *turn) []string {
	out := make([]string, len(t.out.Tokens))
	for i, id := range t.out.Tokens {
		out[i] = strings.ToValidUTF8(string(a.Tokenizer.TokenBytes(id)), "\ufffd")
	}
	return out
}
