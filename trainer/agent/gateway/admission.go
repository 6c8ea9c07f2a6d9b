package gateway

import (
	"crypto/rand"
	"time"
)

// OpenPhase is the phase of the requests in an open round. The agents begin it.
const OpenPhase = "open"

// admit checks the key of a request and returns its ticket.
func (s *Server) admit(key string) (Ticket, Round, map[string]*AgentServer, error) {
	round, agents := s.now()
	if len(agents) == 0 {
		return Ticket{}, round, nil, busy("the run has not begun here yet")
	}
	if round.Open {
		if round.Token != "" && !sameText(key, round.Token) {
			return Ticket{}, round, nil, refuse(401, "invalid_api_key", "the API key is not the server's token")
		}
		return Ticket{Phase: OpenPhase, Query: rand.Text(), Attempt: 1}, round, agents, nil
	}
	t, err := round.Secret.ticket(key, time.Now())
	if err != nil || t.Run != round.Run {
		return t, round, nil, refuse(401, "invalid_api_key", "%v: use the key in the program's environment variable OPENAI_API_KEY", orForeign(err))
	}
	if t.Round != round.Name {
		return t, round, nil, errOver
	}
	return t, round, agents, nil
}

func orForeign(err error) error {
	if err == nil {
		return errKey
	}
	return err
}
