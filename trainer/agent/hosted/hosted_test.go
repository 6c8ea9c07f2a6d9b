package hosted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/openai"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// request is a chat completion request as a server sees it.
type request struct {
	Model       string
	Messages    []openai.Message
	Tools       []json.RawMessage
	Temperature float64
	TopP        *float64 `json:"top_p"`
	MaxTokens   int      `json:"max_tokens"`
}

// stage is a server that answers with the given bodies, one after the other, and records its requests. If a body begins with a status, the
// answer has this status.
type stage struct {
	*Chat
	bodies []string
	asked  []request
}

func newStage(t *testing.T, bodies ...string) *stage {
	t.Helper()
	s := &stage{bodies: bodies}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q request
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		s.asked = append(s.asked, q)
		body := s.bodies[min(len(s.asked), len(s.bodies))-1]
		var status int
		if n, _ := fmt.Sscanf(body, "%d ", &status); n == 1 {
			w.WriteHeader(status)
		}
		io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	m, err := Open(openai.Options{URL: server.URL + "/v1"}, "big")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	echo := tool.Func("echo", "Says it again.", "text", "what", func(_ context.Context, text string) (string, error) { return text + "!", nil })
	if s.Chat, err = NewChat(m, "Be brief.", []agent.SubAgent{{Name: "helper", Description: "Helps."}}, []tool.Tool{echo}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stage) run(ctx context.Context, l agent.Limits) (agent.Trajectory, error) {
	echo := tool.Func("echo", "Says it again.", "text", "what", func(_ context.Context, text string) (string, error) { return text + "!", nil })
	return s.Run(ctx, agent.Spec{Key: policy.Key{Query: "q", Agent: "boss"}, Main: true, Task: "What?", Sampling: policy.Sampling{Temperature: 0.5, TopP: 1}, Limits: l},
		agent.Env{Tools: map[string]tool.Tool{"echo": echo}, Delegate: func(_ context.Context, d agent.Delegation) (string, error) {
			return fmt.Sprintf("%s %d: %s", d.Agent, d.Index, d.Task), nil
		}})
}

// says returns the body of a turn with calls of the form name, arguments, name, arguments.
func says(content, finish string, calls ...string) string {
	m := openai.Message{Role: "assistant", Content: content}
	for i := 0; i < len(calls); i += 2 {
		m.ToolCalls = append(m.ToolCalls, openai.ToolCall{ID: fmt.Sprint("c", i), Type: "function", Function: openai.Function{Name: calls[i], Arguments: calls[i+1]}})
	}
	body, _ := json.Marshal(map[string]any{"choices": []any{map[string]any{"message": m, "finish_reason": finish}}, "usage": openai.Usage{Prompt: 20, Completion: 5}})
	return string(body)
}

// TestConversation: tools and sub-agents are offered, called and answered in the API's format.
// The trajectory has the texts, the calls and the server's counts of tokens.
func TestConversation(t *testing.T) {
	s := newStage(t,
		says("Let me see.", "tool_calls", "echo", `{"text": "a"}`, "helper", `{"task": "b"}`),
		says("<think>so</think> done ", "stop"))
	got, err := s.run(t.Context(), agent.Limits{Turns: 3, CallsPerTurn: 4, TurnTokens: 64, Tokens: 1000, Wall: time.Hour})
	if err != nil || got.Answer != "done" || !got.FormatValid || got.Finish != agent.FinishAnswer || got.Calls["helper"] != 1 || got.ID != "q/0" {
		t.Errorf("%+v, %v", got, err)
	}
	want := []agent.Turn{
		{Role: agent.RolePrompt, Text: "Be brief.\n\nWhat?"},
		{Role: agent.RoleSampled, Sampled: true, Text: "Let me see.\necho({\"text\": \"a\"})\nhelper({\"task\": \"b\"})"},
		{Role: agent.RoleObserved, Text: "a!\nhelper 0: b"},
		{Role: agent.RoleSampled, Sampled: true, Text: "<think>so</think> done "},
	}
	if !reflect.DeepEqual(got.Turns, want) {
		t.Errorf("turns %+v", got.Turns)
	}
	if err := got.Check(); err != nil {
		t.Error(err)
	}
	if tokens, sampled, known := got.Size(); tokens != 25 || sampled != 10 || !known {
		t.Errorf("got %d tokens, %d of them sampled, known: %v", tokens, sampled, known)
	}
	first, second := s.asked[0], s.asked[1]
	if first.Model != "big" || first.Temperature != 0.5 || first.TopP != nil || first.MaxTokens != 64 || len(first.Tools) != 2 || !strings.Contains(string(first.Tools[0]), `"name":"helper"`) {
		t.Errorf("asked %+v", first)
	}
	var roles []string
	for _, m := range second.Messages {
		roles = append(roles, m.Role+m.ToolCallID)
	}
	if want := []string{"system", "user", "assistant", "toolc0", "toolc2"}; !slices.Equal(roles, want) || len(second.Messages[2].ToolCalls) != 2 || second.Messages[4].Content != "helper 0: b" {
		t.Errorf("the second request has messages %v", second.Messages)
	}
	if stats := s.model.Stats(); stats.Requests != 2 || stats.PromptTokens != 40 || stats.SampledTokens != 10 || stats.MaxInFlight != 1 {
		t.Errorf("%+v", stats)
	}
}

// TestBadCalls checks that each bad call is answered with its problem, and that it goes back to the server in a
// readable form.
func TestBadCalls(t *testing.T) {
	s := newStage(t,
		says("", "tool_calls", "echo", `{"text": `, "nobody", `{}`, "echo", `[1]`, "helper", ``, "echo", `{"text": "a"}`, "echo", `{"text": "b"}`, "echo", `{"text": "c"}`),
		says("done", "stop"))
	got, err := s.run(t.Context(), agent.Limits{CallsPerTurn: 5})
	if err != nil || got.FormatValid || got.Malformed != 6 || got.Answer != "done" {
		t.Errorf("%+v, %v", got, err)
	}
	said, results := s.asked[1].Messages[2].ToolCalls, s.asked[1].Messages[3:]
	for i, want := range []string{"not a JSON object", `no tool "nobody"`, "not a JSON object", "do not fit", "a!", "2 call(s) not executed", "2 call(s) not executed"} {
		if !strings.Contains(results[i].Content, want) || results[i].ToolCallID != fmt.Sprint("c", 2*i) || !json.Valid([]byte(said[i].Function.Arguments)) {
			t.Errorf("call %d, arguments %q: got result %+v, want %q", i, said[i].Function.Arguments, results[i], want)
		}
	}
}

// TestCallsWithoutID: a call without an id gets one, because every result must name its call.
func TestCallsWithoutID(t *testing.T) {
	s := newStage(t, strings.NewReplacer(`"id":"c0"`, `"id":""`, `"id":"c2"`, `"id":""`).Replace(says("", "tool_calls", "echo", `{"text": "a"}`, "echo", `{"text": "b"}`)), says("done", "stop"))
	if _, err := s.run(t.Context(), agent.Limits{}); err != nil {
		t.Fatal(err)
	}
	m := s.asked[1].Messages
	if a, b := m[3].ToolCallID, m[4].ToolCallID; a == "" || a == b || a != m[2].ToolCalls[0].ID || b != m[2].ToolCalls[1].ID {
		t.Errorf("ids %q and %q", a, b)
	}
}

// TestLimits: a limit ends a conversation with the same Finish as with a model of our own.
func TestLimits(t *testing.T) {
	call := says("", "tool_calls", "echo", `{"text": "a"}`)
	for name, c := range map[string]struct {
		limits agent.Limits
		bodies []string
		finish string
		asked  int
	}{
		"turns":           {agent.Limits{Turns: 2}, []string{call}, agent.FinishTurns, 2},
		"a turn's tokens": {agent.Limits{TurnTokens: 5}, []string{says("and so on", "length")}, agent.FinishLength, 1},
		"all tokens":      {agent.Limits{TurnTokens: 9, Tokens: 25}, []string{call}, agent.FinishTokens, 1},
		"the last tokens": {agent.Limits{TurnTokens: 9, Tokens: 30}, []string{call, says("and so on", "length")}, agent.FinishTokens, 2},
		"the context":     {agent.Limits{}, []string{call, `400 {"error": {"code": "context_length_exceeded"}}`}, agent.FinishContext, 2},
		"the rest of the context": {agent.Limits{TurnTokens: 9}, []string{call, `400 {"error": {"message": "maximum context length is 30 tokens"}}`, says("and so on", "length")},
			agent.FinishContext, 3},
		"a prompt too long":    {agent.Limits{TurnTokens: 9}, []string{call, `400 {"error": {"message": "maximum context length is 30 tokens"}}`}, agent.FinishContext, 3},
		"thinking without end": {agent.Limits{TurnTokens: 5}, []string{`400 {"error": {"message": "Could not finish the message because max_tokens or model output limit was reached."}}`}, agent.FinishLength, 1},
		"a filter":             {agent.Limits{}, []string{says("", "content_filter")}, agent.FinishFilter, 1},
		"an answer of nothing": {agent.Limits{}, []string{says(" ", "stop")}, agent.FinishAnswer, 1},
		"all bytes":            {agent.Limits{}, []string{says(strings.Repeat("x", maxTurn-100), "tool_calls", "echo", `{"text": "a"}`)}, agent.FinishTokens, maxConversation/maxTurn + 1},
	} {
		s := newStage(t, c.bodies...)
		got, err := s.run(t.Context(), c.limits)
		if err != nil || got.Finish != c.finish || got.FormatValid || len(s.asked) != c.asked {
			t.Errorf("%s: got finish %s, valid %v, error %v after %d requests; want %s after %d", name, got.Finish, got.FormatValid, err, len(s.asked), c.finish, c.asked)
		}
		if name == "the last tokens" && s.asked[1].MaxTokens != 5 {
			t.Errorf("%s: the second request has max_tokens %d", name, s.asked[1].MaxTokens)
		}
	}
}

// TestThinkingComesBack: servers refuse a message with calls that comes back without the thinking before it.
func TestThinkingComesBack(t *testing.T) {
	s := newStage(t, `{"choices": [{"finish_reason": "tool_calls", "message": {"content": "", "reasoning_content": "hm", "reasoning": null, "reasoning_details": [{"id": "r1"}],
		"tool_calls": [{"id": "1", "type": "function", "function": {"name": "echo", "arguments": "{\"text\": \"a\"}"}, "extra_content": {"google": {"thought_signature": "s"}}}]}}]}`,
		`{"choices": [{"finish_reason": "stop", "message": {"content": "a", "reasoning_content": "hm"}}]}`)
	if _, err := s.run(t.Context(), agent.Limits{}); err != nil || len(s.asked) != 2 {
		t.Fatalf("%d requests, %v", len(s.asked), err)
	}
	turn := s.asked[1].Messages[len(s.asked[1].Messages)-2]
	if string(turn.ReasoningContent) != `"hm"` || string(turn.ReasoningDetails) != `[{"id":"r1"}]` || turn.Reasoning != nil || len(turn.ToolCalls) != 1 ||
		string(turn.ToolCalls[0].ExtraContent) != `{"google":{"thought_signature":"s"}}` {
		t.Errorf("the turn comes back as %+v", turn)
	}
}

// TestWallTime: the limit of wall time cancels a request that is in flight.
func TestWallTime(t *testing.T) {
	asked := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // a server notices that its client left only after the body
		close(asked)
		<-r.Context().Done()
	}))
	defer server.Close()
	m, err := Open(openai.Options{URL: server.URL, Retries: 3}, "slow")
	if err != nil {
		t.Fatal(err)
	}
	chat, err := NewChat(m, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := chat.Run(t.Context(), agent.Spec{Task: "?", Limits: agent.Limits{Wall: 200 * time.Millisecond}}, agent.Env{})
	if <-asked; err != nil || got.Finish != agent.FinishWall {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestServerFails checks that a server's failure is neither an answer nor the end of a trajectory. A caller that gives
// up gets its own error.
func TestServerFails(t *testing.T) {
	for name, body := range map[string]string{
		"status":        `500 {"error": "out of order"}`,
		"refused":       `401 {"error": "no such key"}`,
		"not JSON":      `{"choices": [{"message": `,
		"no choice":     `{"error": {"message": "overloaded"}}`,
		"a turn's size": says(strings.Repeat("x", maxTurn+1), "stop"),
	} {
		s := newStage(t, body)
		got, err := s.run(t.Context(), agent.Limits{})
		var silent *agent.UnansweredError
		if !errors.As(err, &silent) || silent.Agent != "boss" || got.Finish != "" {
			t.Errorf("%s: got %+v, error %v", name, got, err)
		}
	}
	s := newStage(t, says("ok", "stop"))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the round is over")
	cancel(why)
	if _, err := s.run(ctx, agent.Limits{}); !errors.Is(err, why) || errors.As(err, new(*agent.UnansweredError)) {
		t.Errorf("a caller that gave up: got error %v", err)
	}
}

// TestUncounted checks that tokens are unknown if a server counts only some of them.
func TestUncounted(t *testing.T) {
	counted, not := says("", "tool_calls", "echo", `{"text": "a"}`), strings.Replace(says("", "tool_calls", "echo", `{"text": "a"}`), `"usage"`, `"other"`, 1)
	for _, bodies := range [][]string{{counted, not, counted}, {not, counted, counted}} {
		got, err := newStage(t, bodies...).run(t.Context(), agent.Limits{Turns: 3})
		if _, _, known := got.Size(); known || err != nil || got.SampledTurns() != 3 {
			t.Errorf("got usage %+v, want unknown; error %v", got.Usage, err)
		}
	}
}

// TestCheck: Check sends the same request as a conversation does, and its error names the settings to check.
func TestCheck(t *testing.T) {
	for body, want := range map[string]string{says("ok", "stop"): "", says("", "length"): "", `401 no`: "check the key", `403 no`: "check the key", `404 no`: "check url and name", `400 bad tool`: "bad tool"} {
		s := newStage(t, body)
		err := s.Check(t.Context(), policy.Sampling{Temperature: 1, TopP: 0.5}, 7)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
		if q := s.asked[0]; len(q.Tools) != 2 || q.MaxTokens != 7 || q.TopP == nil || *q.TopP != 0.5 || q.Messages[0].Role != "system" {
			t.Errorf("asked %+v", q)
		}
	}
}

func TestOpen(t *testing.T) {
	if _, err := Open(openai.Options{URL: "host"}, "big"); err == nil || !strings.Contains(err.Error(), "hosted model big") {
		t.Error(err)
	}
	same := tool.Func("helper", "", "x", "", func(context.Context, string) (string, error) { return "", nil })
	if _, err := NewChat(&Model{}, "", []agent.SubAgent{{Name: "helper"}}, []tool.Tool{same}); err == nil || !strings.Contains(err.Error(), "helper") {
		t.Errorf("two of one name: %v", err)
	}
}
