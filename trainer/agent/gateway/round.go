package gateway

import (
	"context"
	"net/http"
	"net/url"
)

// Round holds the facts about a run's round that its processes share.
type Round struct {
	Run, Name string // Name is random
	Open      bool   // any client may send requests, and none are stored; Token is the key, "" means no key
	Token     string
	Secret    Secret
	Agents    []string                                                  // all agents of the team, the main agent first
	Address   func(ctx context.Context, agent string) (*url.URL, error) // the address of an agent's worker; nil: all agents work here
	Transport http.RoundTripper                                         // for requests to other workers; nil: http.DefaultTransport
	Hosted    map[string]Upstream                                       // agents whose models are behind other APIs; only in an open round
}

// BeginRound joins a round with the agents that work here. It replaces the previous round, whose tickets become invalid.
func (s *Server) BeginRound(r Round, agents []*AgentServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round, s.agents = r, map[string]*AgentServer{}
	for _, a := range agents {
		s.agents[a.Name] = a
	}
}

// now returns the round and the agents that work here.
func (s *Server) now() (Round, map[string]*AgentServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.round, s.agents
}
