package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// corpus are replies in which text, thinking and calls are hard to distinguish before the reply is complete.
var corpus = []string{
	"", " ", "Hello, wörld 🌍!\n", "The sum is 3, so\n</think>\n\nThe answer is 3.", "<think>A</think>Use `</think>` to end it.",
	"<think>\nIt says \"</think>\" there.\n</think>\n\nNo.", "<think>never ends", "Use `</think>` to end it.", "Write <think> or <tool_call> first.",
	"I see. " + calculation, "<think>\nhm\n</think>\n\n" + calculation + "\n" + calculation + " after", calculation + "</tool_call>",
	`<tool_call>{"name": "calculator", "arguments": [</tool_call> or so`, `{"name": "calculator", "arguments": {"expression": "1"}}`,
	`{"answer": 3}`, "[TOOL_CALLS][{\"name\": \"calculator\", \"arguments\": {}}]", "<|python_tag|>{", "a < b, and <thinner> things", "stop here STOP and not there",
}

// untrainedServer is a server with one agent that is not trained, so requests may set all fields.
type untrainedServer struct {
	t      *testing.T
	server *Server
	says   string // the turn of its model
}

func newAlone(t *testing.T, name string) *untrainedServer {
	s := &untrainedServer{t: t, server: NewServer()}
	tok := tokenizertest.Golden(t, name)
	a := NewAgentServer(AgentOptions{Name: "model", Main: true, Policy: &model{tok: tok, says: func(string) string { return s.says }}, Tokenizer: tok})
	a.Begin(OpenPhase, Rules{Sampling: policy.Sampling{Temperature: 1}, Free: true})
	t.Cleanup(func() { a.End(OpenPhase) })
	s.server.BeginRound(Round{Open: true, Agents: []string{"model"}}, []*AgentServer{a})
	return s
}

func (s *untrainedServer) post(path string, body jsonObject) *httptest.ResponseRecorder {
	s.t.Helper()
	body["model"] = "model"
	text, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, httptest.NewRequest("POST", "http://localhost/v1/"+path, bytes.NewReader(text)))
	if w.Code != 200 {
		s.t.Fatalf("%s: got status %d: %s", text, w.Code, w.Body)
	}
	return w
}

// get returns the body at a path.
func (s *untrainedServer) get(path string, status int) string {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/v1/"+path, nil))
	if w.Code != status {
		s.t.Errorf("%s: got status %d, want %d", path, w.Code, status)
	}
	return w.Body.String()
}

// TestLeastTopP: 0 asks for the smallest nucleus, and does not turn the limit off.
func TestLeastTopP(t *testing.T) {
	zero := 0.0
	for _, free := range []bool{true, false} {
		s, err := (&options{TopP: &zero}).sampling(Rules{Sampling: policy.Sampling{Temperature: 1, TopP: 1}, Free: free})
		if (err == nil) != free || free && !(s.TopP > 0 && s.TopP < 1e-6) {
			t.Errorf("free %v: %g, %v", free, s.TopP, err)
		}
	}
}

// TestForeignPage: a server without a token refuses what a browser may send for a page of another machine.
func TestForeignPage(t *testing.T) {
	s := newAlone(t, "smollm2")
	for _, c := range []struct{ url, origin string }{{"http://evil.example/v1/models", ""}, {"http://localhost/v1/models", "https://evil.example"}} {
		r, w := httptest.NewRequest("GET", c.url, nil), httptest.NewRecorder()
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if s.server.ServeHTTP(w, r); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "foreign_page") {
			t.Errorf("%+v: status %d, %s", c, w.Code, w.Body)
		}
	}
}

// receivedReply is a reply as a client receives it.
type receivedReply struct {
	Content   string
	Reasoning string `json:"reasoning_content"`
	ToolCalls []struct {
		Function functionCall
	} `json:"tool_calls"`
	Finish string
}

// chat requests a whole reply.
func (s *untrainedServer) chat(body jsonObject) receivedReply {
	body["stream"] = false
	var answer struct {
		Choices []struct {
			Message receivedReply
			Finish  string `json:"finish_reason"`
		}
	}
	if err := json.Unmarshal(s.post("chat/completions", body).Body.Bytes(), &answer); err != nil {
		s.t.Fatal(err)
	}
	out := answer.Choices[0].Message
	out.Finish = answer.Choices[0].Finish
	return out
}

// stream requests a streamed reply, and checks that the thinking comes before the text.
func (s *untrainedServer) stream(body jsonObject) (out receivedReply, pieces int) {
	body["stream"] = true
	for lines := bufio.NewScanner(s.post("chat/completions", body).Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Error   any
			Choices []struct {
				Delta struct {
					receivedReply
					Role string
				}
				Finish string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil || chunk.Error != nil {
			s.t.Fatalf("%v: %s", err, data)
		}
		c := chunk.Choices[0]
		if pieces++; (pieces == 1) != (c.Delta.Role == "assistant") || pieces == 1 && c.Delta.Content != "" {
			s.t.Errorf("got event %d: %s", pieces, data)
		}
		if c.Delta.Reasoning != "" && out.Content != "" {
			s.t.Errorf("got thinking after the text: %s", data)
		}
		out.Content += c.Delta.Content
		out.Reasoning += c.Delta.Reasoning
		out.ToolCalls = append(out.ToolCalls, c.Delta.ToolCalls...)
		out.Finish += c.Finish
	}
	return out, pieces
}

// TestStreamsEqualReplies: each beginning of a reply is the same message with and without stream.
func TestStreamsEqualReplies(t *testing.T) {
	for name, step := range map[string]int{"qwen3": 1, "smollm2": 4} {
		s := newAlone(t, name)
		tok := tokenizertest.Golden(t, name)
		for _, s.says = range corpus {
			for n := 0; n <= len(tok.Encode(s.says)); n += step {
				for _, more := range []jsonObject{{}, {"tools": calculator}, {"stop": []string{"STOP", "\n"}}} {
					more["messages"], more["max_tokens"] = []jsonObject{textMessage("user", "?")}, n+1
					want := s.chat(more)
					if got, _ := s.stream(more); !reflect.DeepEqual(got, want) {
						t.Errorf("%s: %q, %d tokens, %v:\n%+v, want\n%+v", name, s.says, n+1, more, got, want)
					}
				}
			}
		}
	}
}

// TestThinkingInReplies: a reply is divided into thinking and text only if the model thinks.
func TestThinkingInReplies(t *testing.T) {
	for _, c := range []struct{ name, says, reasoning, content string }{
		{"qwen3", "The sum is 3, so\n</think>\n\nThe answer is 3.", "The sum is 3, so", "\n\nThe answer is 3."},
		{"qwen3", "<think>A</think>Use `</think>` to end it.", "A", "Use `</think>` to end it."},
		{"smollm2", "It ends with </think> there.", "", "It ends with </think> there."},
	} {
		s := newAlone(t, c.name)
		s.says = c.says
		got, _ := s.stream(jsonObject{"messages": []jsonObject{textMessage("user", "?")}})
		if got.Reasoning != c.reasoning || got.Content != c.content {
			t.Errorf("%q: got %+v", c.says, got)
		}
	}
}

// TestStreamsFlow: a client receives the first event before the first token is sampled, and then the words as they are sampled.
func TestStreamsFlow(t *testing.T) {
	s := newStage(t, tokenizertest.Golden(t, "smollm2"), func(string) string { return "one two three four" })
	release := make(chan struct{})
	s.models["planner"].hold = release
	resp := s.send("/v1/chat/completions", runSecret.Key(ticketOf("q", 1)), jsonObject{"model": "planner", "stream": true, "messages": []jsonObject{textMessage("user", "?")}})
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"role":"assistant"`) {
		t.Errorf("got first event %s", lines.Text())
	}
	close(release)
	n := 0
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"content":`) {
			n++
		}
	}
	if n != 4 {
		t.Errorf("four words arrived in %d pieces", n)
	}
}

// TestMaxTokensBeyondContext: a request for more tokens than the context has room for is refused by
// name, in each form of request. The largest number of tokens that the refusal names is accepted.
func TestMaxTokensBeyondContext(t *testing.T) {
	s := newAlone(t, "smollm2")
	s.says = "Hello."
	for _, c := range []struct {
		path, param string
		body        jsonObject
	}{
		{"chat/completions", "max_tokens", jsonObject{"messages": []jsonObject{textMessage("user", "Hi")}}},
		{"chat/completions", "max_completion_tokens", jsonObject{"messages": []jsonObject{textMessage("user", "Hi")}}},
		{"chat/completions", "max_tokens", jsonObject{"messages": []jsonObject{textMessage("user", "Hi")}, "stream": true}},
		{"completions", "max_tokens", jsonObject{"prompt": "Hi"}},
		{"responses", "max_output_tokens", jsonObject{"input": "Hi"}},
	} {
		c.body["model"], c.body[c.param] = "model", 100_000
		text, err := json.Marshal(c.body)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		s.server.ServeHTTP(w, httptest.NewRequest("POST", "http://localhost/v1/"+c.path, bytes.NewReader(text)))
		_, rest, found := strings.Cut(w.Body.String(), "ask for at most ")
		var most int
		if _, err := fmt.Sscan(rest, &most); !found || err != nil || !strings.Contains(w.Body.String(), "context_length_exceeded") || w.Code != 400 {
			t.Errorf("%s, %s: got status %d: %s", c.path, c.param, w.Code, w.Body)
			continue
		}
		c.body[c.param] = most
		s.post(c.path, c.body) // fails the test unless the status is 200
	}
}
