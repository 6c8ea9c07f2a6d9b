package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// TestContinues checks that a turn continues an assistant's last message, and that a later request extends both
// together.
func TestContinues(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	s := newStage(t, tok, func(prompt string) string {
		if strings.HasSuffix(prompt, "assistant\nThe answer") {
			return " is 4."
		}
		return "ok"
	})
	ticket := ticketOf("q", 1)
	question := textMessage("user", "2 + 2?")
	if got := s.chat("planner", ticket, []jsonObject{question, textMessage("assistant", "The answer")}, nil); got["content"] != " is 4." {
		t.Fatalf("%v", got)
	}
	s.chat("planner", ticket, []jsonObject{question, textMessage("assistant", "The answer is 4."), textMessage("user", "Sure?")}, nil)
	got := s.finish("planner", ticket)
	if len(got) != 1 || len(got[0].Rows) != 1 {
		t.Fatalf("%+v", got)
	}
	want := "assistant\nThe answer is 4.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\nok<|im_end|>"
	if text := tok.Decode(got[0].Rows[0].Tokens, false); !strings.HasSuffix(text, want) || got[0].Rows[0].SampledTokens() == len(got[0].Rows[0].Tokens) {
		t.Errorf("%q", text)
	}
}

// TestContinuesOwnTokens checks that a turn that was cut off continues with its sampled tokens.
func TestContinuesOwnTokens(t *testing.T) {
	tok := tokenizertest.Golden(t, "qwen3")
	first := true
	s := newStage(t, tok, func(string) string {
		if first {
			first = false
			return "<think>\nhm\n</think>\n\nOne, two, three"
		}
		return " and so on"
	})
	ticket := ticketOf("q", 1)
	cut := s.chat("planner", ticket, []jsonObject{textMessage("user", "Count.")}, jsonObject{"max_tokens": 8})
	rest := s.chat("planner", ticket, []jsonObject{textMessage("user", "Count."), cut}, nil)
	if cut["reasoning_content"] != "hm" || rest["content"] != " and so on" {
		t.Errorf("%v, then %v", cut, rest)
	}
	asked := s.models["planner"].asked
	if want := slices.Concat(asked[0].Tokens, tok.Encode("<think>\nhm\n</think>\n\nOne, two, three")[:8]); !slices.Equal(asked[1].Tokens, want) {
		t.Errorf("the second request has prompt %q, want %q", tok.Decode(asked[1].Tokens, false), tok.Decode(want, false))
	}
	if got := s.finish("planner", ticket); len(got) != 1 || len(got[0].Rows) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestReasoningSentBack: a template that prints the reasoning of earlier turns gets it from the client's history, under either name.
func TestReasoningSentBack(t *testing.T) {
	for _, field := range []string{"reasoning_content", "reasoning"} {
		tok := tokenizertest.Golden(t, "qwen3")
		s := newStage(t, tok, func(string) string { return "ok" })
		call := jsonObject{"role": "assistant", "content": "", field: "PLAN: ask first",
			"tool_calls": []jsonObject{{"id": "c1", "type": "function", "function": jsonObject{"name": "calculator", "arguments": "{}"}}}}
		s.chat("planner", ticketOf("q", 1), []jsonObject{textMessage("user", "go"), call, {"role": "tool", "tool_call_id": "c1", "content": "4"}}, jsonObject{"tools": calculator})
		if prompt := tok.Decode(s.models["planner"].asked[0].Tokens, false); !strings.Contains(prompt, "<think>\nPLAN: ask first\n</think>\n\n<tool_call>") {
			t.Errorf("%s: got prompt %q", field, prompt)
		}
	}
}

// TestOneCall: a client that allows one call in a turn gets one, and the other calls count as malformed.
func TestOneCall(t *testing.T) {
	s := newStage(t, tokenizertest.Golden(t, "qwen3"), func(string) string { return calculation + calculation })
	for i, most := range []any{true, false} {
		ticket := ticketOf(string(rune('a'+i)), 1)
		got := s.chat("planner", ticket, []jsonObject{textMessage("user", "?")}, jsonObject{"tools": calculator, "parallel_tool_calls": most})
		c := s.finish("planner", ticket)[0]
		if calls := got["tool_calls"].([]any); (len(calls) == 1) != (most == false) || c.Malformed != i || c.Valid == (most == false) {
			t.Errorf("parallel_tool_calls %v: got %d calls, %+v", most, len(calls), c)
		}
	}
}

// TestTemplateKwargs: a request's variables reach the template. In training they are accepted only if they do not change the prompt.
func TestTemplateKwargs(t *testing.T) {
	tok := tokenizertest.Golden(t, "qwen3")
	s := newStage(t, tok, func(string) string { return "ok" })
	s.agents["planner"].Begin("eval-3", Rules{Sampling: policy.Sampling{Temperature: 1}, Free: true})
	defer s.agents["planner"].End("eval-3")
	evaluation := ticketOf("q", 1)
	evaluation.Phase = "eval-3"
	ask := func(ticket Ticket, thinks bool) int {
		status, _ := s.post("/v1/chat/completions", runSecret.Key(ticket), jsonObject{"model": "planner", "messages": []jsonObject{textMessage("user", "?")},
			"chat_template_kwargs": jsonObject{"enable_thinking": thinks}})
		return status
	}
	if a, b, c := ask(evaluation, false), ask(ticketOf("q", 1), false), ask(ticketOf("q", 1), true); a != 200 || b != 400 || c != 200 {
		t.Errorf("%d, %d, %d", a, b, c)
	}
	asked := s.models["planner"].asked
	if prompt := tok.Decode(asked[0].Tokens, false); len(asked) != 2 || !strings.HasSuffix(prompt, "<think>\n\n</think>\n\n") {
		t.Errorf("%q", prompt)
	}
}

// TestModels: an agent is described at models/NAME. The error for an unknown name lists the agents.
func TestModels(t *testing.T) {
	s := newAlone(t, "smollm2")
	if got := s.get("models/model", 200); !strings.Contains(got, `"id":"model"`) {
		t.Error(got)
	}
	if got := s.get("models/gpt-5", 404); !strings.Contains(got, "Agents: model") {
		t.Error(got)
	}
}
