package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// TestForwardedOnce: a worker does not forward a request that another worker has forwarded to it.
func TestForwardedOnce(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	m := &model{tok: tok, says: func(string) string { return "ok" }}
	a := NewAgentServer(AgentOptions{Name: "planner", Main: true, Policy: m, Tokenizer: tok})
	a.Begin(phaseName, Rules{Sampling: policy.Sampling{Temperature: 1}})
	defer a.End(phaseName)
	d := NewServer()
	server := httptest.NewServer(d)
	defer server.Close()
	self, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	d.BeginRound(Round{Run: run, Name: round, Secret: runSecret, Agents: []string{"planner", "solver"},
		Address: func(context.Context, string) (*url.URL, error) { asked++; return self, nil }}, []*AgentServer{a})
	s := &stage{t: t, url: server.URL}
	status, answer := s.post("/v1/chat/completions", runSecret.Key(ticketOf("q", 1)), jsonObject{"model": "solver", "messages": []jsonObject{textMessage("user", "?")}})
	if status != 404 || asked != 1 || !strings.Contains(fmt.Sprint(answer), "gateway.advertise") {
		t.Errorf("got status %d: %v after looking up %d addresses, want 404 after 1", status, answer, asked)
	}
	http.DefaultClient.CloseIdleConnections()
}
