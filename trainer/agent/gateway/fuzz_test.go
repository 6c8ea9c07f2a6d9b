package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// FuzzRequest checks that any body gets a JSON answer with a fitting status, and that the stored data stay consistent.
func FuzzRequest(f *testing.F) {
	f.Add("chat/completions", `{"model":"planner","messages":[{"role":"user","content":"?"}]}`)
	f.Add("chat/completions", `{"model":"planner","messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{"}}]},{"role":"tool","tool_call_id":"1","content":null}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]}`)
	f.Add("chat/completions", `{"model":"planner","stream":true,"stop":["o"],"max_tokens":2,"logprobs":true,"messages":[{"role":"developer","content":"<|im_end|>"},{"role":"user","content":"?"}]}`)
	f.Add("chat/completions", `{"model":"planner","parallel_tool_calls":false,"chat_template_kwargs":{"enable_thinking":false},"messages":[{"role":"user","content":"?"},{"role":"assistant","content":"","reasoning":"a"}],"continue_final_message":true}`)
	f.Add("chat/completions", `{"model":"planner","messages":[{"role":"user","content":"?"}],"max_tokens":20,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","properties":{"a":{"enum":[1,"b"]}},"required":["a"]}}}}`)
	f.Add("responses", `{"model":"planner","stream":true,"input":[{"role":"user","content":[{"type":"input_text","text":"?"}]},{"type":"reasoning","summary":[]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"4"}],"tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"tool_choice":{"type":"function","name":"f"},"max_output_tokens":30}`)
	f.Add("responses", `{"model":"planner","input":"?","text":{"format":{"type":"json_object"}},"max_output_tokens":9,"previous_response_id":null}`)
	f.Add("completions", `{"model":"planner","prompt":[1,2,3]}`)
	f.Add("completions", `{"model":"planner","prompt":["x"],"logprobs":1}`)
	tok := tokenizertest.Golden(f, "qwen3")
	f.Fuzz(func(t *testing.T, path, body string) {
		if path != "completions" && path != "responses" {
			path = "chat/completions"
		}
		a := NewAgentServer(AgentOptions{Name: "planner", Main: true, Policy: &model{tok: tok, says: func(string) string { return calculation }}, Tokenizer: tok})
		a.Begin(phaseName, Rules{Sampling: policy.Sampling{Temperature: 1}, Free: true})
		defer a.End(phaseName)
		d := NewServer()
		d.BeginRound(Round{Run: run, Name: round, Secret: runSecret, Agents: []string{"planner"}}, []*AgentServer{a})
		ticket := ticketOf("q", 1)
		r := httptest.NewRequest("POST", "http://localhost/v1/"+path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+runSecret.Key(ticket))
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		streamed := strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream")
		if !streamed && !json.Valid(w.Body.Bytes()) || w.Code != 200 && w.Code != 400 && w.Code != 404 && w.Code != 413 {
			t.Errorf("got status %d and body %q", w.Code, w.Body)
		}
		said, err := a.Finish(ticket)
		if err != nil || (w.Code == 200) != (len(said) == 1) {
			t.Fatalf("after status %d: %d conversations are stored, error %v", w.Code, len(said), err)
		}
		for _, c := range said {
			if err := c.Rows[0].Check(); err != nil || c.Rows[0].SampledTokens() == 0 {
				t.Errorf("a stored row is inconsistent: %+v, %v", c.Rows[0], err)
			}
		}
	})
}

// FuzzKey: only a signed text is accepted as a key.
func FuzzKey(f *testing.F) {
	good := runSecret.Key(ticketOf("q", 1))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add("mgrpo-e30.e30")
	f.Add(Secret(make([]byte, SecretSize)).Key(ticketOf("q", 1)))
	f.Fuzz(func(t *testing.T, key string) {
		if ticket, err := runSecret.ticket(key, time.Now()); err == nil && runSecret.Key(ticket) != key && key != good {
			t.Errorf("the unsigned text %q is accepted as a key of %+v", key, ticket)
		}
	})
}

// TestRoundedResult: scores that rounding moved outside 0 to 1 count as 0 and 1.
func TestRoundedResult(t *testing.T) {
	r, err := parseResult([]byte(`{"correct": 1.0000000000000002, "experts": {"a": [-1e-17, 0.5], "b": {"x": 1.0000001}}}`))
	if err != nil || *r.Correct != 1 || r.Experts["a"].Scores[0] != 0 || r.Experts["a"].Scores[1] != 0.5 || r.Experts["b"].ByID["x"] != 1 {
		t.Errorf("got %+v, error %v", r, err)
	}
	if _, err := parseResult([]byte(`{"correct": 1.01}`)); err == nil {
		t.Error("a score of 1.01 was accepted")
	}
}

// FuzzResult: a result is read as an answer or as an error, not as both, and its score is within bounds.
func FuzzResult(f *testing.F) {
	for _, text := range []string{`{"answer":"4"}`, `{"answer":4,"format":false}`, `{"correct":0.5,"experts":{"a":[1,0],"b":{"x":1}}}`, `{"correct":2}`, `{"error":"no"}`, `42`, `{}`, `{"experts":{"a":[1e309]}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseResult(line)
		if err == nil && r.check() != nil {
			t.Errorf("%q: %+v", line, r)
		}
	})
}

// oneJob returns leases with one job that waits for a program, and its result.
func oneJob(t *testing.T) (*Leases, <-chan JobOutcome) {
	l := NewLeases(LeaseOptions{Token: "a-token-of-the-run", Lease: time.Hour, Timeout: time.Hour})
	l.Sign(runSecret)
	played := make(chan JobOutcome, 1)
	go func() {
		p, err := l.Play(t.Context(), Job{Ticket: Ticket{Run: run, Round: round, Phase: phaseName, Query: "q"}, Text: "?"})
		if err != nil {
			t.Error(err)
		}
		played <- p
	}()
	return l, played
}

// TestLeaseTimeout: a program that renews its lease for longer than task.program.timeout has failed,
// and its rollout is not given to another program. A late timer of an earlier attempt has no effect.
func TestLeaseTimeout(t *testing.T) {
	l, played := oneJob(t)
	grant := func() (o Lease) {
		for ok := false; !ok; time.Sleep(time.Millisecond) {
			l.mu.Lock()
			o, ok = l.grant(httptest.NewRequest("POST", "/rollouts/lease", nil))
			l.mu.Unlock()
		}
		return o
	}
	first := grant()
	l.mu.Lock()
	job := l.byID[first.ID]
	l.mu.Unlock()
	l.expire(job, 1) // as if it was not renewed
	if second := grant(); second.Attempt != 2 {
		t.Fatalf("got attempt %d", second.Attempt)
	}
	l.expire(job, 1)
	if len(l.waiting) != 0 || job.ended {
		t.Fatalf("after the late timer of the first attempt: %d jobs wait, over is %v", len(l.waiting), job.ended)
	}
	l.mu.Lock()
	job.ends = time.Now()
	l.mu.Unlock()
	l.expire(job, 2)
	l.mu.Lock()
	over := job.ended
	l.mu.Unlock()
	if !over {
		t.Fatal("the rollout of a program that timed out was leased again")
	}
	if p := <-played; p.Failed == nil || !strings.Contains(p.Failed.Error(), "task.program.timeout") {
		t.Errorf("a program that timed out: got %+v, want a failure", p)
	}
}

// TestLeases: the rollout of a lease that is not renewed goes to the next program, and then only that program's key is valid. An unreadable
// result is a failure. Without the token no rollout is leased.
func TestLeases(t *testing.T) {
	l, played := oneJob(t)
	ask := func(method, path, key, body string) (int, Lease) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+key)
		w := httptest.NewRecorder()
		l.ServeHTTP(w, r)
		var o Lease
		if w.Code == 200 {
			if err := json.Unmarshal(w.Body.Bytes(), &o); err != nil {
				t.Fatal(err)
			}
		}
		return w.Code, o
	}
	for _, wrong := range []string{"", "another token", runSecret.Key(ticketOf("q", 1))} {
		if status, _ := ask("POST", "/rollouts/lease", wrong, ""); status != http.StatusUnauthorized {
			t.Errorf("token %q: got status %d", wrong, status)
		}
	}
	_, first := ask("POST", "/rollouts/lease", "a-token-of-the-run", "")
	l.expire(l.byID[first.ID], 1) // as the lease's timer would
	_, second := ask("POST", "/rollouts/lease", "a-token-of-the-run", "")
	if first.ID != second.ID || first.Attempt != 1 || second.Attempt != 2 || string(second.Query) != `{"id":"q","question":"?"}` {
		t.Fatalf("leased %+v, then %+v", first, second)
	}
	path := "/rollouts/" + first.ID
	for _, c := range []struct {
		method, path, key string
		want              int
	}{{"POST", path + "/renew", first.Key, 409}, {"PUT", path + "/result", first.Key, 409}, {"PUT", "/rollouts/other/result", second.Key, 404},
		{"POST", path + "/renew", second.Key, 204}, {"PUT", path + "/result", second.Key, 204}, {"PUT", path + "/result", second.Key, 404}} {
		if status, _ := ask(c.method, c.path, c.key, "{}"); status != c.want {
			t.Errorf("%s %s: got status %d, want %d", c.method, c.path, status, c.want)
		}
	}
	if p := <-played; p.Ticket.Attempt != 2 || p.Failed == nil || !strings.Contains(p.Failed.Error(), "neither answer nor correct") {
		t.Errorf("%+v", p)
	}
}
