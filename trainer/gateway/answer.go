package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/policy"
)

// serveChat answers a chat request.
func (a *Agent) serveChat(w http.ResponseWriter, r *http.Request, request *chatRequest, c call) error {
	if !request.Stream {
		t, err := a.chat(r.Context(), request, c)
		if err != nil {
			return err
		}
		said := map[string]any{"role": "assistant", "content": t.reply.text, "refusal": nil}
		if t.reply.thinking != "" {
			said["reasoning_content"] = t.reply.thinking
		}
		if len(t.reply.calls) > 0 {
			said["content"], said["tool_calls"] = nullable(t.reply.text), t.reply.calls
		}
		if len(t.reply.written) > 0 {
			said["mgrpo"] = map[string]any{"calls": t.reply.written}
		}
		choice := map[string]any{"index": 0, "message": said, "finish_reason": t.finish(), "logprobs": nil}
		if request.LogProbs {
			choice["logprobs"] = map[string]any{"content": a.logProbs(t), "refusal": nil}
		}
		return writeJSON(w, map[string]any{"id": t.reply.id, "object": "chat.completion", "created": time.Now().Unix(), "model": a.Name,
			"choices": []any{choice}, "usage": t.usage()})
	}
	s := &stream{w: w, agent: a, object: "chat.completion.chunk", usage: request.StreamOptions.IncludeUsage, piece: func(text string) map[string]any {
		return map[string]any{"delta": map[string]any{"content": text}}
	}}
	functions, err := request.functions()
	if err != nil {
		return err
	}
	d, err := a.dialect(functions)
	if err != nil {
		return err
	}
	s.role = true
	s.visible = func(text string) string {
		if d.OpensThinking() && !strings.Contains(text, thinkClose) {
			return ""
		}
		return visible(text, d.CallMark(), request.Stop)
	}
	return s.run(r.Context(), c, func(ctx context.Context, c call) (*turn, error) { return a.chat(ctx, request, c) }, func(t *turn) {
		delta := map[string]any{}
		if len(t.reply.calls) > 0 {
			calls := make([]map[string]any, len(t.reply.calls))
			for i, called := range t.reply.calls {
				calls[i] = map[string]any{"index": i, "id": called.ID, "type": called.Type, "function": called.Function}
			}
			delta["tool_calls"] = calls
		}
		if t.reply.thinking != "" {
			delta["reasoning_content"] = t.reply.thinking
		}
		if len(t.reply.written) > 0 {
			delta["mgrpo"] = map[string]any{"calls": t.reply.written}
		}
		end := map[string]any{"delta": delta}
		if request.LogProbs {
			end["logprobs"] = map[string]any{"content": a.logProbs(t)}
		}
		s.send(end, t.finish())
	})
}

// serveText answers a request for a text.
func (a *Agent) serveText(w http.ResponseWriter, r *http.Request, request *textRequest, c call) error {
	if !request.Stream {
		t, err := a.complete(r.Context(), request, c)
		if err != nil {
			return err
		}
		choice := map[string]any{"index": 0, "text": t.reply.text, "finish_reason": t.finish(), "logprobs": nil}
		if request.LogProbs != nil {
			choice["logprobs"] = a.textLogProbs(t)
		}
		return writeJSON(w, map[string]any{"id": t.reply.id, "object": "text_completion", "created": time.Now().Unix(), "model": a.Name,
			"choices": []any{choice}, "usage": t.usage()})
	}
	s := &stream{w: w, agent: a, object: "text_completion", usage: request.StreamOptions.IncludeUsage, piece: func(text string) map[string]any {
		return map[string]any{"text": text}
	}}
	s.plain = true
	s.visible = func(text string) string { return held(text, request.Stop) }
	return s.run(r.Context(), c, func(ctx context.Context, c call) (*turn, error) { return a.complete(ctx, request, c) }, func(t *turn) {
		end := map[string]any{"text": ""}
		if request.LogProbs != nil {
			end["logprobs"] = a.textLogProbs(t)
		}
		s.send(end, t.finish())
	})
}

// textLogProbs are those of an answer with a text.
func (a *Agent) textLogProbs(t *turn) map[string]any {
	return map[string]any{"tokens": a.texts(t), "token_logprobs": t.out.LogProbs, "token_ids": t.out.Tokens}
}

// nullable is null for an empty text.
func nullable(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// finish is finish_reason.
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

// logProbs are those of the turn's tokens, as a chat's reply has them.
func (a *Agent) logProbs(t *turn) []map[string]any {
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

func (a *Agent) texts(t *turn) []string {
	out := make([]string, len(t.out.Tokens))
	for i, id := range t.out.Tokens {
		out[i] = a.Tokenizer.Token(id)
	}
	return out
}

// stream tells a turn as server-sent events while it is sampled.
type stream struct {
	w       http.ResponseWriter
	agent   *Agent
	object  string
	usage   bool
	piece   func(text string) map[string]any // the choice of a piece of text
	visible func(text string) string         // what may be shown of a text that is not complete
	id      string
	plain   bool // special tokens are no text
	role    bool // the first delta names it
	begun   bool
}

// run samples and sends. Errors before the first event are returned, later ones sent.
func (s *stream) run(ctx context.Context, c call, sample func(context.Context, call) (*turn, error), end func(*turn)) error {
	sampled := make(chan int32, s.agent.longest())
	c.onTurn, c.onToken = func(id string) { s.id = id }, func(id int32) { sampled <- id }
	var t *turn
	var err error
	go func() {
		defer close(sampled)
		t, err = sample(ctx, c)
	}()
	shown := s.follow(sampled)
	if err != nil {
		if !s.begun {
			return err
		}
		s.event(asAPI(err).body())
		return nil
	}
	if rest, ok := strings.CutPrefix(t.reply.text, shown); ok && rest != "" {
		s.send(s.piece(rest), "")
	}
	end(t)
	if s.usage {
		s.chunk(map[string]any{"choices": []any{}, "usage": t.usage()})
	}
	s.event([]byte("[DONE]"))
	return nil
}

// follow sends what is certain of the text while the tokens come, and returns what it has sent.
func (s *stream) follow(sampled <-chan int32) (shown string) {
	var text strings.Builder
	decoder := s.agent.Tokenizer.NewStream(s.plain)
	last := int32(-1) // a stop token is no text, and only the last can be one
	for id := range sampled {
		if last >= 0 {
			text.WriteString(decoder.Push(last))
		}
		last = id
		if now := s.visible(text.String()); len(now) > len(shown) && strings.HasPrefix(now, shown) {
			s.send(s.piece(now[len(shown):]), "")
			shown = now
		}
	}
	return shown
}

// send sends a choice.
func (s *stream) send(choice map[string]any, finish string) {
	if delta, ok := choice["delta"].(map[string]any); ok && s.role {
		delta["role"], s.role = "assistant", false
	}
	choice["index"], choice["finish_reason"] = 0, nullable(finish)
	s.chunk(map[string]any{"choices": []any{choice}})
}

func (s *stream) chunk(body map[string]any) {
	body["id"], body["object"], body["created"], body["model"] = s.id, s.object, time.Now().Unix(), s.agent.Name
	line, err := json.Marshal(body)
	if err != nil {
		line = asAPI(err).body()
	}
	s.event(line)
}

// sendTime is how long a client may take to read an event.
const sendTime = time.Minute

// event sends an event. A client that has gone is noticed by the request's context.
func (s *stream) event(data []byte) {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "text/event-stream")
		s.w.Header().Set("Cache-Control", "no-store")
	}
	c := http.NewResponseController(s.w)
	_ = c.SetWriteDeadline(time.Now().Add(sendTime))
	fmt.Fprintf(s.w, "data: %s\n\n", data)
	_ = c.Flush()
}

// Marks that begin what a chat's reply does not have in its text.
const (
	thinkOpen, thinkClose = "<think>", "</think>"
	callOpen              = "<tool_call>"
)

// visible is the part of an unfinished turn that its reply will have as text.
func visible(text, mark string, stops []string) string {
	if i := strings.LastIndex(text, thinkClose); i >= 0 {
		text = text[i+len(thinkClose):]
	}
	text, _, _ = strings.Cut(text, thinkOpen)
	if mark == "{" { // such a call is the whole turn
		if start := strings.TrimSpace(text); start == "" || start[0] == '{' || start[0] == '<' {
			return ""
		}
		mark = callOpen
	}
	return held(text, append([]string{thinkOpen, callOpen, mark}, stops...))
}

// held is text without a mark and what follows it, and without an end that a mark may begin with.
func held(text string, marks []string) string {
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
