package search

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

// retriever returns a retriever of a service with the given handler.
func retriever(t testing.TB, cfg RetrieverOptions, answer http.HandlerFunc) *Retriever {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	cfg.URL = server.URL + cfg.URL
	cfg.Results = max(cfg.Results, 1)
	r, err := NewRetriever(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestRetriever: without templates, requests and answers have the format of Search-R1's retriever.
func TestRetriever(t *testing.T) {
	t.Setenv("MGRPO_TEST_TOKEN", "sesame")
	r := retriever(t, RetrieverOptions{URL: "/retrieve", Results: 2, TokenEnv: "MGRPO_TEST_TOKEN"}, func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Queries []string `json:"queries"`
			TopK    int      `json:"topk"`
			Scores  bool     `json:"return_scores"`
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		if got := fmt.Sprint(r.Method, r.URL.Path, asked, r.Header.Get("Authorization"), r.Header.Get("Content-Type")); got != "POST/retrieve{[Who said \"no\"?] 2 true}Bearer sesameapplication/json" {
			t.Errorf("asked %s", got)
		}
		io.WriteString(w, `{"result": [[{"document": {"id": "7", "contents": "\"Ada\"\nShe wrote."}, "score": 0.9}, {"document": {"title": "Babbage", "text": "He built."}, "score": 0.5}]]}`)
	})
	want := "[1] \"Ada\"\nShe wrote.\n\n[2] Babbage\nHe built."
	if got := tooltest.CallText(t, r, "query", `Who said "no"?`); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRetrieverTemplates: two templates describe a service with another format.
func TestRetrieverTemplates(t *testing.T) {
	r := retriever(t, RetrieverOptions{URL: "/api?key=1", Results: 5, Request: "?q={{urlquery .Query}}&n={{.Results}}", Response: "{{range .hits}}{{.n}}: {{.t}}\n{{end}}"},
		func(w http.ResponseWriter, r *http.Request) {
			if got := r.Method + r.URL.String(); got != "GET/api?key=1&q=a%26b&n=5" {
				t.Errorf("asked %s", got)
			}
			io.WriteString(w, `{"hits": [{"n": 10000000, "t": "x"}]}`)
		})
	if got := tooltest.CallText(t, r, "query", "a&b"); got != "10000000: x" {
		t.Errorf("%q", got)
	}
	for name, c := range map[string]struct{ request, response, want string }{
		"no template":         {request: "{{", want: "request"},
		"no function":         {response: "{{nothing .}}", want: "nothing"},
		"an unknown field":    {request: `{"q": "{{.Question}}"}`, want: "Question"},
		"a query as it is":    {request: `{"q": "{{.Query}}"}`, want: "{{json .Query}}"},
		"a token that is not": {want: "MGRPO_TEST_NOT_SET"},
	} {
		cfg := RetrieverOptions{URL: "http://localhost", Request: c.request, Response: c.response}
		if c.request+c.response == "" {
			cfg.TokenEnv = c.want
		}
		if _, err := NewRetriever(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRetrieverReadsOnce: a long reply is only copied if it may have numbers of Python.
func TestRetrieverReadsOnce(t *testing.T) {
	for reply, copied := range map[string]bool{`{"a": "b", "c": 1.5}`: false, `{"a": NaN}`: true, `[-Infinity]`: true, `["Infinity"]`: true} {
		plain := []byte(reply)
		if got := quotePythonNumbers(plain); copied == (&got[0] == &plain[0]) {
			t.Errorf("%s was copied: %v", reply, !copied)
		}
	}
}

// TestRetrieverGarbage: a wrong answer of the service is a failure of the tool. The error of a busy service is temporary.
func TestRetrieverGarbage(t *testing.T) {
	for name, c := range map[string]struct {
		status    int
		body      string
		want      string
		transient bool
	}{
		"not JSON":         {200, "<html>", "is not JSON", false},
		"cut":              {200, `{"result": [[`, "is not JSON", false},
		"another shape":    {200, `{"results": []}`, "does not fit", false},
		"no list":          {200, `{"result": 7}`, "does not fit", false},
		"text for a list":  {200, `{"result": "abc"}`, "does not fit", false},
		"no document":      {200, `{"result": [[{"score": 1}]]}`, "does not fit", false},
		"an empty one":     {200, `{"result": [[{"document": null}]]}`, "does not fit", false},
		"a number of text": {200, `{"result": [[{"document": {"contents": 7}}]]}`, "is not a text", false},
		"too much":         {200, strings.Repeat(" ", maxRetrieved+1), "more than", false},
		"not found":        {404, "where?", `HTTP 404 Not Found: "where?"`, false},
		"busy":             {503, "", "HTTP 503", true},
		"a redirect":       {302, "", `it redirects to "http://127.0.0.1:1/"`, false},
		"two lines":        {200, "{\"result\": [[]]}\n{\"result\": [[]]}", "text follows", false},
		"no number":        {200, `{"result": NaNa}`, "is not JSON", false},
	} {
		r := retriever(t, RetrieverOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(c.status)
			io.WriteString(w, c.body)
		})
		out, err := r.Call(t.Context(), tooltest.Arg(t, "query", "x"))
		var transient *retry.Transient
		if err == nil || !errors.Is(err, tool.ErrFailed) || !strings.Contains(err.Error(), c.want) || errors.As(err, &transient) != c.transient {
			t.Errorf("%s: got %q, error %v; want %q", name, out, err, c.want)
		}
	}
	r := retriever(t, RetrieverOptions{Response: "{{.a}}"}, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"b": 1}`) })
	if got := tooltest.CallText(t, r, "query", "x"); !strings.Contains(got, "does not fit") {
		t.Errorf("a missing key: got %q", got)
	}
	r = retriever(t, RetrieverOptions{}, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"result": [[]]}`) })
	if got := tooltest.CallText(t, r, "query", "x"); got != "nothing found" {
		t.Errorf("%q", got)
	}
	r = retriever(t, RetrieverOptions{Response: "{{.a}} {{.b}} {{.c}} {{.d}}"}, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "\ufeff"+`{"a": NaN, "b": -Infinity, "c": "\"NaN", "d": 1.50}`) // as programs in Python do
	})
	if got, want := tooltest.CallText(t, r, "query", "x"), `NaN -Infinity "NaN 1.50`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := tooltest.CallText(t, r, "query", " "); got != "error: the query is empty" {
		t.Errorf("%q", got)
	}
}

func FuzzRetriever(f *testing.F) {
	f.Add(`{"result": [[{"document": {"contents": "a"}, "score": 1}, {"document": {"title": "b", "text": "c"}}]]}`)
	f.Add(`{"result": {"0": 1e99}}`)
	r, err := NewRetriever(RetrieverOptions{URL: "http://localhost", Results: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body string) {
		text, err := r.read([]byte(body))
		if err != nil && !errors.Is(err, tool.ErrFailed) || err == nil && (text == "" || !utf8.ValidString(text)) {
			t.Errorf("%q, %v", text, err)
		}
	})
}
