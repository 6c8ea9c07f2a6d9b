package gateway

import (
	"encoding/json"
	"time"
)

// chunks sends a reply as the chunks of OpenAI's streams. Chunks of a chat have the field delta, chunks of a text the
// field text.
type chunks struct {
	eventWriter
	agent    *AgentServer
	object   string
	id       string
	usage    bool
	logProbs func(t *turn) any // returns the log-probs for the last chunk; nil: no log-probs
	chat     bool
}

func (s *chunks) open(id string) {
	if s.id = id; s.chat {
		s.choice(jsonObject{"delta": jsonObject{"role": "assistant", "content": ""}}, nil)
	}
}

func (s *chunks) thinking(piece string) {
	s.choice(jsonObject{"delta": jsonObject{"reasoning_content": piece}}, nil)
}

func (s *chunks) text(piece string) {
	if s.chat {
		s.choice(jsonObject{"delta": jsonObject{"content": piece}}, nil)
	} else {
		s.choice(jsonObject{"text": piece}, nil)
	}
}

func (s *chunks) end(t *turn) {
	last := jsonObject{"text": ""}
	if s.chat {
		last = jsonObject{"delta": t.reply.lastDelta()}
	}
	if s.logProbs != nil {
		last["logprobs"] = s.logProbs(t)
	}
	s.choice(last, t.finish())
	if s.usage {
		s.chunk(jsonObject{"choices": []any{}, "usage": t.usage()})
	}
	s.send("", []byte("[DONE]"))
}

func (s *chunks) fail(err *apiError) { s.send("", err.body()) }

// lastDelta returns the parts of a reply other than its text: the calls.
func (r *reply) lastDelta() jsonObject {
	delta := jsonObject{}
	if len(r.calls) > 0 {
		calls := make([]jsonObject, len(r.calls))
		for i, called := range r.calls {
			calls[i] = jsonObject{"index": i, "id": called.ID, "type": called.Type, "function": called.Function}
		}
		delta["tool_calls"] = calls
	}
	if len(r.written) > 0 {
		delta["mgrpo"] = jsonObject{"calls": r.written}
	}
	return delta
}

// choice sends a choice. finish is its finish_reason, which is nil in all chunks but the last.
func (s *chunks) choice(choice jsonObject, finish any) {
	choice["index"], choice["finish_reason"] = 0, finish
	s.chunk(jsonObject{"choices": []any{choice}})
}

func (s *chunks) chunk(body jsonObject) {
	body["id"], body["object"], body["created"], body["model"] = s.id, s.object, time.Now().Unix(), s.agent.Name
	line, err := json.Marshal(body)
	if err != nil {
		line = toAPIError(err).body()
	}
	s.send("", line)
}
