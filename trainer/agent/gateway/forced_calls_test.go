package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway/constrained"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// withTemplate returns a tokenizer of bytes with a chat template of the corpus. special, if set, replaces one of its
// special tokens.
func withTemplate(t *testing.T, file, special string) *tokenizer.Tokenizer {
	t.Helper()
	folder := golden.ByteTokenizer(t)
	template, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	folder["chat_template.jinja"] = template
	if special != "" {
		for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
			folder[name] = bytes.ReplaceAll(folder[name], []byte("<repo_name>"), []byte(special))
		}
	}
	tok, err := tokenizer.Parse(folder)
	if err != nil && os.Getenv("TEMPLATES") != "" {
		t.Skip(err) // a template in another dialect of Jinja
	}
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestForcedCallsOfTheCorpus: with each template, a forced call has the form that the template
// prints and is read as a call, or it is refused.
func TestForcedCallsOfTheCorpus(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "callformat", "testdata", "templates", "*.jinja"))
	if more := os.Getenv("TEMPLATES"); more != "" {
		found, _ := filepath.Glob(filepath.Join(more, "*", "*.jinja"))
		files = append(files, found...)
	}
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			forceCall(t, withTemplate(t, file, ""), strings.Contains(file, "testdata") && slices.Contains(notForced, strings.TrimSuffix(filepath.Base(file), ".jinja")))
		})
	}
}

// notForced lists the templates of testdata whose notation of arguments cannot be enforced.
var notForced = []string{"trl_gemma4_v5", "trl_lfm2_2_5", "trl_lfm2_v2"}

// closeThinking returns a turn that ends the thinking that the prompt has opened, without a call.
func closeThinking(prompt string) string {
	if strings.HasSuffix(strings.TrimSpace(prompt), "<think>") {
		return "hm\n</think>\n\nNo."
	}
	return "No."
}

func forceCall(t *testing.T, tok *tokenizer.Tokenizer, refused bool) {
	s := &untrainedServer{t: t, server: NewServer()}
	a := NewAgentServer(AgentOptions{Name: "model", Main: true, Policy: &model{tok: tok, says: closeThinking}, Tokenizer: tok})
	a.Begin(OpenPhase, Rules{Sampling: policy.Sampling{Temperature: 1}, Free: true})
	t.Cleanup(func() { a.End(OpenPhase) })
	s.server.BeginRound(Round{Open: true, Agents: []string{"model"}}, []*AgentServer{a})
	parameters := `{"type":"object","properties":{"answer":{"type":"integer","description":"n","minimum":0,"maximum":99},"unit":{"type":"boolean","description":"u"},"word":{"type":"string","description":"w","maxLength":4}},"required":["answer","unit","word"],"additionalProperties":false}`
	body, err := json.Marshal(jsonObject{"model": "model", "messages": []jsonObject{textMessage("user", "?")}, "max_tokens": 400,
		"tools":       []jsonObject{{"type": "function", "function": jsonObject{"name": "add", "description": "adds", "parameters": json.RawMessage(parameters)}}},
		"tool_choice": jsonObject{"type": "function", "function": jsonObject{"name": "add"}}})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://localhost/v1/chat/completions", bytes.NewReader(body)))
	if strings.Contains(w.Body.String(), "context_length_exceeded") {
		t.Skip("the template's prompt is longer than the context of the test's model")
	}
	if w.Code == 400 && strings.Contains(w.Body.String(), "constrain a reply to that notation") || w.Code == 400 && os.Getenv("TEMPLATES") != "" {
		if !refused && os.Getenv("TEMPLATES") == "" {
			t.Errorf("%s", w.Body)
		}
		t.Log(w.Body)
		return
	}
	var answer struct {
		Choices []struct {
			Message receivedReply
			Finish  string `json:"finish_reason"`
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || len(answer.Choices) != 1 || refused {
		t.Fatalf("got status %d, body %s, error %v; refused: %v", w.Code, w.Body, err, refused)
	}
	got := answer.Choices[0]
	if got.Finish == "length" {
		t.Skip("the reply did not end within its limit")
	}
	if len(got.Message.ToolCalls) != 1 || got.Message.ToolCalls[0].Function.Name != "add" || constrained.Validate(json.RawMessage(parameters), got.Message.ToolCalls[0].Function.Arguments) != nil {
		t.Errorf("got body %+q", w.Body.String())
	}
}

// TestForcedCallsHaveSpecialTokens: a call can be forced if its mark is a special token of the model.
func TestForcedCallsHaveSpecialTokens(t *testing.T) {
	tok := withTemplate(t, filepath.Join("..", "callformat", "testdata", "templates", "axolotl_mistral_v3_tekken.jinja"), "[TOOL_CALLS]")
	if ids := tok.Encode("[TOOL_CALLS]"); len(ids) != 1 || !tok.Special(ids[0]) {
		t.Fatalf("%v", ids)
	}
	forceCall(t, tok, false)
}
