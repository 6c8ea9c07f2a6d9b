package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// model is a policy whose turns are a function of the prompt's text. It records its requests.
type model struct {
	tok  *tokenizer.Tokenizer
	says func(prompt string) string // returns a turn without the end-of-turn token
	wait func(prompt string)        // called before each answer; may be nil
	hold chan struct{}              // closed before it answers waiting requests; may be nil

	mu    sync.Mutex
	asked []policy.Request
}

func (m *model) ContextLimit() int { return 4096 }

func (m *model) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	m.mu.Lock()
	m.asked = append(m.asked, r)
	m.mu.Unlock()
	prompt := m.tok.Decode(r.Tokens, false)
	if m.wait != nil {
		m.wait(prompt)
	}
	if m.hold != nil {
		select {
		case <-m.hold:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return policy.Completion{Finish: policy.FinishCancelled}, ctx.Err()
	}
	var out policy.Completion
	ending := policy.NewEnding(r.Sampling, len(r.Tokens), m.ContextLimit(), m.tok.TokenBytes)
	random := rand.New(rand.NewPCG(1, uint64(len(prompt))))
	says := append(m.tok.Encode(m.says(prompt)), m.tok.StopIDs()[0])
	for i := 0; i < len(says) || r.Constraint != nil; i++ {
		id := says[min(i, len(says)-1)]
		if r.Constraint != nil {
			var err error
			if id, err = m.under(r.Constraint, id, random); err != nil {
				return out, err
			}
		}
		out.Tokens, out.LogProbs = append(out.Tokens, id), append(out.LogProbs, -float32(id%7)/8-float32(i)/64)
		if r.OnToken != nil {
			r.OnToken(id)
		}
		var ended bool
		if out.Finish, ended = ending.Add(id); ended {
			break
		}
	}
	return out, nil
}

const run, round, phaseName = "team", "round", "step-3"

var runSecret = Secret(bytes.Repeat([]byte{7}, SecretSize))

// stage is a server with two agents; the planner is the main agent.
type stage struct {
	t      *testing.T
	url    string
	agents map[string]*AgentServer
	models map[string]*model
}

func newStage(t *testing.T, tok *tokenizer.Tokenizer, says func(prompt string) string) *stage {
	s := &stage{t: t, agents: map[string]*AgentServer{}, models: map[string]*model{}}
	var agents []*AgentServer
	for _, name := range []string{"planner", "solver"} {
		m := &model{tok: tok, says: says}
		a := NewAgentServer(AgentOptions{Name: name, Main: name == "planner", Seed: 5, Policy: m, Tokenizer: tok})
		a.Begin(phaseName, Rules{Step: 3, Sampling: policy.Sampling{Temperature: 1}})
		s.agents[name], s.models[name] = a, m
		agents = append(agents, a)
	}
	d := NewServer()
	d.BeginRound(Round{Run: run, Name: round, Secret: runSecret, Agents: []string{"planner", "solver"}}, agents)
	server := httptest.NewServer(d)
	s.url = server.URL
	t.Cleanup(func() {
		for _, a := range agents {
			a.End(phaseName)
		}
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

func ticketOf(query string, attempt int) Ticket {
	return Ticket{Run: run, Round: round, Phase: phaseName, Query: query, Attempt: attempt, Deadline: time.Now().Add(time.Hour).Unix()}
}

// post sends a request and returns the answer.
func (s *stage) post(path, key string, body any, headers ...string) (int, map[string]any) {
	s.t.Helper()
	resp := s.send(path, key, body, headers...)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var answer map[string]any
	if err := json.Unmarshal(text, &answer); err != nil {
		s.t.Fatalf("%s: %s %q", path, resp.Status, text)
	}
	return resp.StatusCode, answer
}

func (s *stage) send(path, key string, body any, headers ...string) *http.Response {
	s.t.Helper()
	text, ok := body.(string)
	if !ok {
		data, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		text = string(data)
	}
	r, err := http.NewRequest("POST", s.url+path, strings.NewReader(text))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

func textMessage(role, text string) jsonObject { return jsonObject{"role": role, "content": text} }

// chat sends a request to an agent and returns its message. It ends the test if the status is not 200.
func (s *stage) chat(model string, t Ticket, messages []jsonObject, more jsonObject, headers ...string) jsonObject {
	s.t.Helper()
	body := jsonObject{"model": model, "messages": messages}
	for k, v := range more {
		body[k] = v
	}
	status, answer := s.post("/v1/chat/completions", runSecret.Key(t), body, headers...)
	if status != 200 {
		s.t.Fatalf("got status %d: %v", status, answer)
	}
	return answer["choices"].([]any)[0].(jsonObject)["message"].(jsonObject)
}

// received returns a function that returns the bytes of the requests that an attempt has received.
func (s *stage) received(name string, t Ticket) func() int {
	a := s.agents[name]
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.phases[t.Phase].attempts[t.rollout()]
	return func() int {
		at.mu.Lock()
		defer at.mu.Unlock()
		return at.stored
	}
}

func (s *stage) finish(name string, t Ticket) []Conversation {
	s.t.Helper()
	out, err := s.agents[name].Finish(t)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range out {
		for _, row := range c.Rows {
			if err := row.Check(); err != nil {
				s.t.Error(err)
			}
		}
	}
	return out
}
