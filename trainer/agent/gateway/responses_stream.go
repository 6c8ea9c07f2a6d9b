package gateway

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"time"
)

// answer answers a request of /v1/responses.
func (r *responsesTurn) answer(in clientRequest, a *AgentServer, c turnCall) error {
	s := &response{eventWriter: eventWriter{w: in.w}, agent: a, request: &r.request}
	if !r.request.Stream {
		t, err := a.chat(in.r.Context(), r.chat, c)
		if err != nil {
			return err
		}
		s.id = t.reply.id
		return writeJSON(in.w, s.object(t, s.output(t)))
	}
	return a.streamChat(in.r.Context(), s, r.chat, c)
}

// response is a reply in the form of /v1/responses, whole or as events.
type response struct {
	eventWriter
	agent   *AgentServer
	request *responsesRequest
	id      string
	number  int    // number of the next event
	items   int    // number of complete items
	kind    string // kind of the current item, reasoning or message; "": no current item
	written strings.Builder
}

func (s *response) open(id string) {
	s.id = id
	for _, name := range []string{"created", "in_progress"} {
		s.sendEvent("response."+name, jsonObject{"response": s.object(nil, []any{})})
	}
}

func (s *response) thinking(piece string) { s.delta("reasoning", piece) }
func (s *response) text(piece string)     { s.delta("message", piece) }

// end completes the current item and sends the calls and the whole response.
func (s *response) end(t *turn) {
	s.complete()
	output := s.output(t)
	for _, one := range output[s.items:] { // the calls
		call := one.(jsonObject)
		begun := maps.Clone(call)
		begun["arguments"], begun["status"] = "", "in_progress"
		at := jsonObject{"item_id": call["id"], "output_index": s.items}
		s.sendEvent("response.output_item.added", jsonObject{"output_index": s.items, "item": begun})
		s.sendEvent("response.function_call_arguments.delta", at, jsonObject{"delta": call["arguments"]})
		s.sendEvent("response.function_call_arguments.done", at, jsonObject{"name": call["name"], "arguments": call["arguments"]})
		s.sendEvent("response.output_item.done", jsonObject{"output_index": s.items, "item": call})
		s.items++
	}
	whole := s.object(t, output)
	s.sendEvent("response."+whole["status"].(string), jsonObject{"response": whole})
}

func (s *response) fail(err *apiError) {
	failed := s.object(nil, []any{})
	failed["status"], failed["error"] = "failed", jsonObject{"code": err.code, "message": err.message}
	s.sendEvent("response.failed", jsonObject{"response": failed})
}

// delta sends a piece of an item of the kind reasoning or message.
func (s *response) delta(kind, piece string) {
	if s.kind != kind {
		s.complete()
		s.kind = kind
		item, part := s.item(kind, "", "in_progress")
		if kind == "message" {
			item["content"] = []any{}
		}
		s.sendEvent("response.output_item.added", jsonObject{"output_index": s.items, "item": item})
		s.sendEvent("response.content_part.added", s.part(), jsonObject{"part": part})
	}
	s.written.WriteString(piece)
	s.sendEvent(s.name("delta"), s.part(), jsonObject{"delta": piece})
}

// complete completes the current item.
func (s *response) complete() {
	if s.kind == "" {
		return
	}
	item, part := s.item(s.kind, s.written.String(), "completed")
	s.sendEvent(s.name("done"), s.part(), jsonObject{"text": s.written.String()})
	s.sendEvent("response.content_part.done", s.part(), jsonObject{"part": part})
	s.sendEvent("response.output_item.done", jsonObject{"output_index": s.items, "item": item})
	s.items++
	s.kind = ""
	s.written.Reset()
}

// name returns the name of an event of the current item.
func (s *response) name(what string) string {
	if s.kind == "reasoning" {
		return "response.reasoning_text." + what
	}
	return "response.output_text." + what
}

// part returns the position of the current item.
func (s *response) part() jsonObject {
	at := jsonObject{"item_id": s.itemID(s.kind), "output_index": s.items, "content_index": 0}
	if s.kind == "message" {
		at["logprobs"] = []any{}
	}
	return at
}

func (s *response) itemID(kind string) string {
	prefix := map[string]string{"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}[kind]
	return prefix + strings.TrimPrefix(s.id, "resp_")
}

// item returns an item with a text, and its only part.
func (s *response) item(kind, text, status string) (item, part jsonObject) {
	item = jsonObject{"id": s.itemID(kind), "type": kind, "status": status}
	if kind == "reasoning" {
		part = jsonObject{"type": "reasoning_text", "text": text}
		item["summary"] = []any{}
	} else {
		part = jsonObject{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
		item["role"] = "assistant"
	}
	item["content"] = []any{part}
	return item, part
}

// output returns the items of a reply.
func (s *response) output(t *turn) []any {
	out := []any{}
	add := func(kind, text string) {
		if text != "" {
			item, _ := s.item(kind, text, "completed")
			out = append(out, item)
		}
	}
	add("reasoning", t.reply.thinking)
	add("message", t.reply.text)
	for i, c := range t.reply.calls {
		out = append(out, jsonObject{"id": s.itemID("function_call") + "_" + strconv.Itoa(i), "type": "function_call", "status": "completed", "call_id": c.ID,
			"name": c.Function.Name, "arguments": c.Function.Arguments})
	}
	return out
}

// object returns the response object. t is nil while the turn is being sampled.
func (s *response) object(t *turn, output []any) jsonObject {
	r := s.request
	out := jsonObject{"id": s.id, "object": "response", "created_at": time.Now().Unix(), "model": s.agent.Name, "status": "in_progress", "output": output,
		"error": nil, "incomplete_details": nil, "instructions": nullable(r.Instructions), "max_output_tokens": r.MaxOutputTokens, "metadata": jsonObject{},
		"parallel_tool_calls": r.ParallelToolCalls == nil || *r.ParallelToolCalls, "previous_response_id": nil,
		"reasoning": jsonObject{"effort": nil, "summary": nil},
		"store":     false, "temperature": r.Temperature, "top_p": r.TopP, "text": jsonObject{"format": jsonObject{"type": "text"}}, "tool_choice": "auto",
		"tools": r.Tools, "truncation": "disabled", "usage": nil}
	if r.Tools == nil {
		out["tools"] = []any{}
	}
	if f := r.Text.Format; f != nil {
		out["text"] = jsonObject{"format": f}
	}
	switch c := r.ToolChoice; {
	case c.name != "":
		out["tool_choice"] = jsonObject{"type": "function", "name": c.name}
	case c.mode != "":
		out["tool_choice"] = c.mode
	}
	if t == nil {
		return out
	}
	if out["status"] = "completed"; t.finish() == "length" {
		out["status"], out["incomplete_details"] = "incomplete", jsonObject{"reason": "max_output_tokens"}
	}
	usage := t.usage()
	out["usage"] = jsonObject{"input_tokens": usage["prompt_tokens"], "input_tokens_details": jsonObject{"cached_tokens": 0},
		"output_tokens": usage["completion_tokens"], "output_tokens_details": jsonObject{"reasoning_tokens": 0}, "total_tokens": usage["total_tokens"]}
	if len(t.reply.written) > 0 {
		out["mgrpo"] = jsonObject{"calls": t.reply.written}
	}
	return out
}

// sendEvent sends an event with the fields of all bodies.
func (s *response) sendEvent(kind string, bodies ...jsonObject) {
	event := jsonObject{"type": kind, "sequence_number": s.number}
	for _, b := range bodies {
		maps.Copy(event, b)
	}
	s.number++
	data, err := json.Marshal(event)
	if err != nil {
		data = toAPIError(err).body()
	}
	s.send(kind, data)
}
