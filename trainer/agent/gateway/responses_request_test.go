package gateway

import (
	"bufio"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// output requests a response and returns its items.
func (s *untrainedServer) output(body jsonObject) []any {
	s.t.Helper()
	body["stream"] = false
	var answer jsonObject
	if err := json.Unmarshal(s.post("responses", body).Body.Bytes(), &answer); err != nil {
		s.t.Fatal(err)
	}
	return answer["output"].([]any)
}

// outputOfEvents requests a response as events. It returns the items assembled from the deltas, and the items of the last event.
func (s *untrainedServer) outputOfEvents(body jsonObject) (pieces, last []any) {
	s.t.Helper()
	body["stream"] = true
	pieces = []any{}
	number, name := 0, ""
	for lines := bufio.NewScanner(s.post("responses", body).Body); lines.Scan(); {
		if event, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = event
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var event jsonObject
		if err := json.Unmarshal([]byte(data), &event); err != nil || event["type"] != name || event["sequence_number"] != float64(number) {
			s.t.Fatalf("event %d, %s: %v: %s", number, name, err, data)
		}
		number++
		var item jsonObject
		if i, ok := event["output_index"].(float64); ok && int(i) < len(pieces) {
			item = pieces[int(i)].(jsonObject)
		}
		switch name {
		case "response.output_item.added":
			pieces = append(pieces, event["item"])
		case "response.content_part.added":
			item["content"] = []any{event["part"]}
		case "response.output_text.delta", "response.reasoning_text.delta":
			part := item["content"].([]any)[0].(jsonObject)
			part["text"] = part["text"].(string) + event["delta"].(string)
		case "response.function_call_arguments.delta":
			item["arguments"] = item["arguments"].(string) + event["delta"].(string)
		case "response.output_item.done":
			item["status"] = "completed"
		case "response.completed", "response.incomplete":
			last = event["response"].(jsonObject)["output"].([]any)
		case "response.failed":
			s.t.Fatal(data)
		}
	}
	return pieces, last
}

// withoutIDs returns items without their ids, which differ between requests.
func withoutIDs(items []any) []any {
	for _, i := range items {
		delete(i.(jsonObject), "id")
		delete(i.(jsonObject), "call_id")
	}
	return items
}

// TestResponses: a response has the same content as the reply to the same chat, both as a whole and as events.
func TestResponses(t *testing.T) {
	s := newAlone(t, "qwen3")
	var flat jsonObject
	if err := json.Unmarshal(calculator[0], &flat); err != nil {
		t.Fatal(err)
	}
	flat = flat["function"].(jsonObject)
	flat["type"] = "function"
	for _, s.says = range corpus {
		want := s.chat(jsonObject{"messages": []jsonObject{textMessage("system", "Be brief."), textMessage("user", "?")}, "tools": calculator})
		body := jsonObject{"input": "?", "instructions": "Be brief.", "tools": []jsonObject{flat}, "store": false}
		got := s.output(body)
		var as receivedReply
		for _, i := range got {
			one := i.(jsonObject)
			switch one["type"] {
			case "reasoning":
				as.Reasoning = one["content"].([]any)[0].(jsonObject)["text"].(string)
			case "message":
				as.Content = one["content"].([]any)[0].(jsonObject)["text"].(string)
			case "function_call":
				as.ToolCalls = append(as.ToolCalls, struct{ Function functionCall }{functionCall{one["name"].(string), one["arguments"].(string)}})
			}
		}
		as.Finish = want.Finish
		if !reflect.DeepEqual(as, want) {
			t.Errorf("%q: got %+v, want %+v as in a chat", s.says, as, want)
		}
		pieces, last := s.outputOfEvents(body)
		if !reflect.DeepEqual(pieces, last) || len(withoutIDs(got)) != len(withoutIDs(last)) || len(got) > 0 && !reflect.DeepEqual(got, last) {
			t.Errorf("%q: got from deltas\n%v, from the last event\n%v, want as without events\n%v", s.says, pieces, last, got)
		}
	}
}

// TestResponsesContinue: the items of a response, sent back with a tool's result, continue the conversation.
func TestResponsesContinue(t *testing.T) {
	s := newStage(t, tokenizertest.Golden(t, "qwen3"), func(prompt string) string {
		if strings.Contains(prompt, "\n4") {
			return "It is 4."
		}
		return "<think>\nhm\n</think>\n\n" + calculation
	})
	ask := func(input []any) []any {
		status, answer := s.post("/v1/responses", runSecret.Key(ticketOf("q", 1)), jsonObject{"model": "planner", "input": input, "include": []string{"reasoning.encrypted_content"},
			"tools": []jsonObject{{"type": "function", "name": "calculator", "parameters": jsonObject{"type": "object", "properties": jsonObject{"expression": jsonObject{"type": "string"}}}, "strict": true}}})
		if status != 200 {
			t.Fatalf("%v", answer)
		}
		return answer["output"].([]any)
	}
	input := []any{textMessage("user", "2 + 2?")}
	first := ask(input)
	call := first[len(first)-1].(jsonObject)
	ask(append(append(input, first...), jsonObject{"type": "function_call_output", "call_id": call["call_id"], "output": "4"}))
	got := s.finish("planner", ticketOf("q", 1))
	if len(first) != 3 || len(got) != 1 || len(got[0].Rows) != 1 || got[0].Answer != "It is 4." || !strings.HasPrefix(got[0].Replies[0], "resp_") {
		t.Errorf("%v: %+v", first, got)
	}
}

// TestResponsesRefused: fields that need a store of responses, and fields that a chat would refuse, are refused by name.
func TestResponsesRefused(t *testing.T) {
	s := newStage(t, tokenizertest.Golden(t, "smollm2"), func(string) string { return "ok" })
	for field, c := range map[string]struct {
		value any
		want  string
	}{
		"previous_response_id": {"resp_1", "send the whole conversation"}, "background": {true, "background"}, "truncation": {"auto", "truncation"},
		"tools": {[]jsonObject{{"type": "web_search"}}, "web_search"}, "input": {[]jsonObject{{"type": "item_reference", "id": "x"}}, "item_reference"},
		"temperature": {0.5, "the run samples and trains"}, "unheard_of": {1, "unheard_of: this field is not supported"}, "conversation": {"c", "conversation"},
		"text": {jsonObject{"format": jsonObject{"type": "json_schema", "name": "x", "schema": jsonObject{"not": jsonObject{}}}}, "schema.not"},
	} {
		body := jsonObject{"model": "planner", "input": "?"}
		body[field] = c.value
		if status, answer := s.post("/v1/responses", runSecret.Key(ticketOf("q", 1)), body); status != 400 || !strings.Contains(answer["error"].(jsonObject)["message"].(string), c.want) {
			t.Errorf("%s: got status %d: %v", field, status, answer)
		}
	}
}
