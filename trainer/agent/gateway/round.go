package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/localhost"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
)

// OpenPhase is the phase of the requests in an open round. The agents begin it.
const OpenPhase = "open"

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

// admit checks the key of a request and returns its ticket. Without a token it refuses requests that a browser may send for a foreign page.
func (s *Server) admit(in clientRequest) (Ticket, Round, map[string]*AgentServer, error) {
	s.mu.Lock()
	round, agents := s.round, s.agents
	s.mu.Unlock()
	if len(agents) == 0 {
		return Ticket{}, round, nil, tryAgainLater("the run has not begun here yet")
	}
	if round.Open {
		switch {
		case round.Token != "" && !secret.Equal(in.key, round.Token):
			return Ticket{}, round, nil, refuse(401, "invalid_api_key", "the API key is not the server's token")
		case round.Token == "" && localhost.Foreign(in.r):
			return Ticket{}, round, nil, refuse(403, "foreign_page", "without a token the server is for programs and pages of this machine, under the name "+
				"localhost or its address; set --token-env")
		}
		return Ticket{Phase: OpenPhase, Query: rand.Text(), Attempt: 1}, round, agents, nil
	}
	t, err := round.Secret.ticket(in.key, time.Now())
	if err != nil || t.Run != round.Run {
		return t, round, nil, refuse(401, "invalid_api_key", "%v: use the key in the program's environment variable OPENAI_API_KEY", cmp.Or(err, errKey))
	}
	if t.Round != round.Name {
		return t, round, nil, errRolloutEnded
	}
	return t, round, agents, nil
}

// serveModels describes the agent that the path names, or lists all agents.
func (s *Server) serveModels(in clientRequest) error {
	_, round, _, err := s.admit(in)
	if err != nil {
		return err
	}
	model := func(name string) jsonObject {
		return jsonObject{"id": name, "object": "model", "created": 0, "owned_by": "mgrpo"}
	}
	if strings.HasSuffix(in.r.Pattern, "{model...}") {
		name := in.r.PathValue("model")
		if !slices.Contains(round.Agents, name) {
			return round.unknownAgent(name)
		}
		return writeJSON(in.w, model(name))
	}
	list := make([]jsonObject, len(round.Agents))
	for i, name := range round.Agents {
		list[i] = model(name)
	}
	return writeJSON(in.w, jsonObject{"object": "list", "data": list})
}

// unknownAgent returns the refusal of a name that is not an agent's.
func (r *Round) unknownAgent(name string) error {
	return refuse(404, "model_not_found", "there is no agent %q. Agents: %s", name, strings.Join(r.Agents, ", "))
}
