package openai

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

const testKey = "sk-very-secret"

// ask starts a server with the given handler, and returns a client of it and the list of the client's pauses, which take no time.
func ask(t *testing.T, s Options, handler http.HandlerFunc) (*Client, *[]time.Duration) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Setenv("MGRPO_TEST_KEY", testKey)
	s.URL, s.KeyEnv = server.URL+"/v1", "MGRPO_TEST_KEY"
	c, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	var asked []time.Duration
	c.wait = func(ctx context.Context, d time.Duration) error {
		asked = append(asked, d)
		return ctx.Err()
	}
	return c, &asked
}

func say(w http.ResponseWriter, content string) {
	json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]any{"role": "assistant", "content": content}}}})
}

func TestSettings(t *testing.T) {
	for _, url := range []string{"", "host/v1", "ftp://host/v1", "https://", "https://me:secret@host/v1", "https://me@host/v1"} {
		if _, err := New(Options{URL: url}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := New(Options{URL: "https://host/v1", KeyEnv: "MGRPO_TEST_NOT_SET"}); err == nil || !strings.Contains(err.Error(), "MGRPO_TEST_NOT_SET") {
		t.Errorf("a key that is not set: %v", err)
	}
}

// TestCompletion compares requests and replies with the API's format.
func TestCompletion(t *testing.T) {
	c, _ := ask(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		want := map[string]any{"model": "m", "temperature": 0.0, "max_tokens": 7.0, "tools": []any{map[string]any{"type": "function"}},
			"messages": []any{map[string]any{"role": "assistant", "content": "", "tool_calls": []any{map[string]any{"id": "1", "type": "function",
				"function": map[string]any{"name": "f", "arguments": "{}"}}}}, map[string]any{"role": "tool", "content": "3", "tool_call_id": "1"}}}
		if got, want := fmt.Sprint(body), fmt.Sprint(want); got != want {
			t.Errorf("sent\n%s, want\n%s", got, want)
		}
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+testKey {
			t.Errorf("path %s, authorization %s", r.URL.Path, r.Header.Get("Authorization"))
		}
		io.WriteString(w, `{"choices": [{"finish_reason": "tool_calls", "message": {"role": "assistant", "content": null,
			"tool_calls": [{"id": "2", "type": "function", "function": {"name": "g", "arguments": "{\"x\": 1}"}}]}}], "usage": {"prompt_tokens": 5.0, "completion_tokens": 3, "cost": "0.1"}, "error": []}`)
	})
	call := ToolCall{ID: "1", Type: "function", Function: Function{"f", "{}"}}
	r, err := c.Complete(t.Context(), Request{Model: "m", MaxTokens: 7, Tools: []json.RawMessage{[]byte(`{"type": "function"}`)},
		Messages: []Message{{Role: "assistant", ToolCalls: []ToolCall{call}}, {Role: "tool", Content: "3", ToolCallID: "1"}}})
	if err != nil || r.Finish != "tool_calls" || r.Usage == nil || *r.Usage != (Usage{5, 3}) || len(r.Message.ToolCalls) != 1 ||
		!reflect.DeepEqual(r.Message.ToolCalls[0], ToolCall{ID: "2", Type: "function", Function: Function{"g", `{"x": 1}`}}) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestInvalidUsageIsIgnored(t *testing.T) {
	for _, usage := range []string{`null`, `[]`, `"none"`, `{"prompt_tokens": "5"}`, `{"prompt_tokens": -1, "completion_tokens": 3}`,
		`{"prompt_tokens": 0.5, "completion_tokens": 3}`, `{"prompt_tokens": 1, "completion_tokens": 9999999999}`} {
		c, _ := ask(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"choices": [{"message": {"content": "hm"}}], "usage": `+usage+`}`)
		})
		if r, err := c.Complete(t.Context(), Request{}); err != nil || r.Usage != nil || r.Message.Content != "hm" {
			t.Errorf("%s: %+v, %v", usage, r, err)
		}
	}
}

// TestNameOfTheBound: OpenAI's newer models refuse max_tokens. The client then uses the other name, also in later requests.
func TestNameOfTheBound(t *testing.T) {
	var keys []string
	c, _ := ask(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		json.NewDecoder(r.Body).Decode(&body)
		if body["max_tokens"] != nil {
			keys = append(keys, "old")
			http.Error(w, `{"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}`, http.StatusBadRequest)
			return
		}
		keys = append(keys, fmt.Sprint("new ", body["max_completion_tokens"]))
		say(w, "ok")
	})
	for range 2 {
		if _, err := c.Complete(t.Context(), Request{MaxTokens: 9}); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"old", "new 9", "new 9"}; !slices.Equal(keys, want) {
		t.Errorf("got requests with %v, want %v", keys, want)
	}
}

// TestRefusedTemperature: a server that accepts only its default temperature gets none from then on.
func TestRefusedTemperature(t *testing.T) {
	var sent []any
	c, _ := ask(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		json.NewDecoder(r.Body).Decode(&body)
		sent = append(sent, body["temperature"])
		if body["max_tokens"] != nil {
			http.Error(w, `{"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}`, http.StatusBadRequest)
			return
		}
		if body["temperature"] != nil {
			http.Error(w, `{"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."}}`,
				http.StatusBadRequest)
			return
		}
		say(w, "ok")
	})
	for range 2 {
		if _, err := c.Complete(t.Context(), Request{MaxTokens: 9}); err != nil {
			t.Error(err)
		}
	}
	if want := []any{0.0, 0.0, nil, nil}; !slices.Equal(sent, want) {
		t.Errorf("got requests with the temperatures %v, want %v", sent, want)
	}
}

// TestRetries: a request that failed for a temporary reason is repeated, up to Retries times and after longer and longer pauses.
func TestRetries(t *testing.T) {
	breakOff := func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
	}
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if len(header) > 0 {
				w.Header().Set("Retry-After", header[0])
			}
			http.Error(w, "not now", code)
		}
	}
	const retries = 4
	for name, c := range map[string]struct {
		failing http.HandlerFunc
		fails   int
		calls   int
		right   bool
	}{
		"408 once":                         {status(408), 1, 2, true},
		"425 once":                         {status(425), 1, 2, true},
		"429 as often as it may":           {status(429), retries, retries + 1, true},
		"429 once too often":               {status(429), retries + 1, retries + 1, false},
		"500, 502, 503":                    {status(503), 3, 4, true},
		"a broken connection":              {breakOff, 2, 3, true},
		"a wait of a few seconds":          {status(429, "7"), 1, 2, true},
		"a wait longer than is patient":    {status(429, "86400"), 1, 1, false},
		"a header that is neither":         {status(503, "soon"), 1, 2, true},
		"a wrong key is wrong a next time": {status(401), 1, 1, false},
	} {
		var calls atomic.Int32
		client, asked := ask(t, Options{Retries: retries}, func(w http.ResponseWriter, r *http.Request) {
			if int(calls.Add(1)) <= c.fails {
				c.failing(w, r)
				return
			}
			say(w, "yes")
		})
		got, err := client.Complete(t.Context(), Request{})
		if (err == nil && got.Message.Content == "yes") != c.right || int(calls.Load()) != c.calls {
			t.Errorf("%s: got %v, error %v after %d calls; want success %v after %d", name, got, err, calls.Load(), c.right, c.calls)
		}
		for i, d := range *asked {
			if most := retry.FirstWait << i; d < most/2 || d > max(most, 7*time.Second) {
				t.Errorf("%s: pause %d took %s, want %s to %s", name, i, d, most/2, max(most, 7*time.Second))
			}
		}
		if name == "a wait of a few seconds" && !slices.Equal(*asked, []time.Duration{7 * time.Second}) {
			t.Errorf("%s: got pauses %v, want the 7 s that the server asked for", name, *asked)
		}
	}
}

// TestRetriesAfterATimeOut: an attempt that takes too long is cancelled and repeated. A request whose caller gives up is not repeated.
func TestRetriesAfterATimeOut(t *testing.T) {
	var calls atomic.Int32
	c, _ := ask(t, Options{Retries: 50, Timeout: 200 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			io.Copy(io.Discard, r.Body) // a server notices that its client left only after the body
			<-r.Context().Done()
			return
		}
		say(w, "yes")
	})
	if got, err := c.Complete(t.Context(), Request{}); err != nil || got.Message.Content != "yes" {
		t.Errorf("a slow attempt: got %v, error %v after %d calls", got, err, calls.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls.Store(0)
	c, _ = ask(t, Options{Retries: 9}, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		cancel()
		http.Error(w, "busy", http.StatusServiceUnavailable)
	})
	if _, err := c.Complete(ctx, Request{}); !errors.Is(err, context.Canceled) || calls.Load() != 1 {
		t.Errorf("a caller that gave up: got error %v after %d calls", err, calls.Load())
	}
}

// TestFailures: a wrong answer of the server is an error without another attempt. The error names the address and not the key.
func TestFailures(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "bad key "+testKey, http.StatusUnauthorized)
		},
		"not JSON":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>"+testKey) },
		"no choice": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"choices":[]}`) },
		"content of another type": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"choices":[{"message":{"content":7}}]}`)
		},
		"too long": func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, maxReply+2)) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/elsewhere", http.StatusTemporaryRedirect)
		},
	} {
		var calls atomic.Int32
		c, _ := ask(t, Options{Retries: 3}, func(w http.ResponseWriter, r *http.Request) { calls.Add(1); handler(w, r) })
		got, err := c.Complete(t.Context(), Request{})
		if err == nil {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		if strings.Contains(err.Error(), testKey) || !strings.Contains(err.Error(), "/v1/chat/completions: ") {
			t.Errorf("%s: %v", name, err)
		}
		if calls.Load() != 1 {
			t.Errorf("%s: got %d requests, want 1", name, calls.Load())
		}
	}
}

// TestErrorNamesAbsentServerOnce: if no server listens, the error names the address once.
func TestErrorNamesAbsentServerOnce(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	c, err := New(Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Complete(t.Context(), Request{}); err == nil || !strings.HasPrefix(err.Error(), server.URL+"/chat/completions: ") || strings.Contains(err.Error(), "Post ") {
		t.Errorf("%v", err)
	}
}

func TestContextExceeded(t *testing.T) {
	for body, want := range map[string]bool{
		`{"error": {"code": "context_length_exceeded"}}`:                                                                                                                 true,
		`{"message": "This model's maximum context length is 4096 tokens."}`:                                                                                             true,
		`{"message": "The input (9000 tokens) is longer than the model's context length (4096 tokens)."}`:                                                                true,
		`{"error": {"type": "exceed_context_size_error", "message": "the request exceeds the available context"}}`:                                                       true,
		`{"error": {"type": "invalid_request_error", "message": "prompt is too long: 208310 tokens > 200000 maximum"}}`:                                                  true,
		"{\"error\": {\"message\": \"input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000\"}}":                                                    true,
		`[{"error": {"code": 400, "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).", "status": "INVALID_ARGUMENT"}}]`: true,
		`{"error": {"code": 400, "message": "the request exceeds the available context size. try increasing the context size", "type": "invalid_request_error"}}`:        true,
		`{"error": "This model's maximum prompt length is 131072 but the request contains 140000 tokens."}`:                                                              true,
		"{\"error\": \"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000\"}":                                                       true,
		"{\"error\": \"Input validation error: `max_new_tokens` must be <= 512. Given: 1024\"}":                                                                          false,
		`{"message": "Input is too long for requested model."}`:                                                                                                          true,
		`{"error": {"message": "Unknown parameter: 'min_p'."}}`:                                                                                                          false,
	} {
		c, _ := ask(t, Options{}, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, http.StatusBadRequest) })
		if _, err := c.Complete(t.Context(), Request{}); err == nil || ContextExceeded(err) != want {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestForms reads the forms in which servers write the same reply.
func TestForms(t *testing.T) {
	call := `"tool_calls": [{"id": "2", "function": {"name": "g", "arguments": %s}}]`
	for message, want := range map[string]string{
		`{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}`:                                      "ab",
		`{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]}`: "a",
		`{"content": {"type": "text", "text": "a"}}`:                                                                       "a",
		`{"content": ["a", "b"]}`:                             "ab",
		`{"content": [{"type": "refusal", "refusal": "no"}]}`: "no",
		`{"content": []}`:                                     "",
		`{"content": null}`:                                   "",
		`{}`:                                                  "",
		`{"content": "", ` + fmt.Sprintf(call, `{"x": 1}`) + `}`:     `g({"x": 1})`,
		`{"content": "", ` + fmt.Sprintf(call, `"{\"x\": 1}"`) + `}`: `g({"x": 1})`,
		`{"content": "", ` + fmt.Sprintf(call, `null`) + `}`:         "g()",
		`{"content": 8}`: "error",
		`{"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}`: "error",
	} {
		c, _ := ask(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"choices": [{"message": `+message+`}]}`)
		})
		r, err := c.Complete(t.Context(), Request{})
		got := r.Message.Content
		for _, call := range r.Message.ToolCalls {
			got += fmt.Sprintf("%s(%s)", call.Function.Name, call.Function.Arguments)
		}
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s is read as %q (%v), want %q", message, got, err, want)
		}
	}
	for server, want := range map[string]string{"max_tokens": "length", "model_length": "length", "SAFETY": "content_filter", "content_filter: OTHER": "content_filter", "stop": "stop", "eos": "eos"} {
		c, _ := ask(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"choices": [{"message": {"content": "a"}, "finish_reason": "`+server+`"}]}`)
		})
		if r, err := c.Complete(t.Context(), Request{}); err != nil || r.Finish != want {
			t.Errorf("%s: got finish %q, want %q; error %v", server, r.Finish, want, err)
		}
	}
}

// TestErrorsInside: errors that a server reports with status 200 are errors. Only requests with temporary errors are repeated.
func TestErrorsInside(t *testing.T) {
	const again = 2
	for body, c := range map[string]struct {
		calls int
		check func(error) bool
	}{
		`{"error": {"message": "Provider returned error", "code": 429}}`:                                                         {again, nil},
		`{"error": {"message": "busy", "code": "503"}}`:                                                                          {again, nil},
		`{"error": {"message": "Overloaded", "type": "overloaded_error"}}`:                                                       {again, nil},
		`{"error": "try later"}`:                                                                                                 {again, nil},
		`{"object": "error", "message": "engine died", "code": 500}`:                                                             {again, nil},
		`{"choices": [{"message": {"content": ""}, "error": {"code": 502, "message": "bad gateway"}}]}`:                          {again, nil},
		`{"choices": [{"message": {"content": "half an ans"}, "finish_reason": "error"}]}`:                                       {again, nil},
		`{"error": {"code": 504}, "choices": [{"message": {"content": "half an ans"}}]}`:                                         {again, nil},
		`{"choices": [{"text": "yes", "finish_reason": "stop"}]}`:                                                                {again, nil},
		`{"error": {"message": "bad", "code": 400}}`:                                                                             {1, nil},
		`{"error": {"message": "no such model", "type": "invalid_request_error", "code": null}}`:                                 {1, nil},
		`{"error": {"message": "no key", "code": "invalid_api_key"}}`:                                                            {1, Unauthorised},
		`{"error": {"message": "no key", "code": 401}}`:                                                                          {1, Unauthorised},
		`{"error": {"message": "too long", "code": "context_length_exceeded", "type": "invalid_request_error"}}`:                 {1, ContextExceeded},
		`{"error": {"message": "This model's maximum context length is 10 tokens", "type": "BadRequestError", "code": 400}}`:     {1, ContextExceeded},
		`{"object": "error", "message": "context_length_exceeded", "type": "invalid_request_error", "code": 400, "choices": []}`: {1, ContextExceeded},
	} {
		var calls atomic.Int32
		client, _ := ask(t, Options{Retries: again - 1}, func(w http.ResponseWriter, _ *http.Request) { calls.Add(1); io.WriteString(w, body) })
		r, err := client.Complete(t.Context(), Request{})
		if err == nil || int(calls.Load()) != c.calls || c.check != nil && !c.check(err) {
			t.Errorf("%s: got %+v, error %v after %d requests, want an error after %d", body, r, err, calls.Load(), c.calls)
		}
	}
}
