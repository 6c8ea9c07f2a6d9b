package gateway

import (
	"slices"
	"strings"
)

// serveModels lists the agents.
func (s *Server) serveModels(in incoming) error {
	_, round, _, err := s.admit(in.key)
	if err != nil {
		return err
	}
	list := make([]map[string]any, len(round.Agents))
	for i, name := range round.Agents {
		list[i] = modelObject(name)
	}
	return writeJSON(in.w, map[string]any{"object": "list", "data": list})
}

// serveModel describes one agent.
func (s *Server) serveModel(in incoming) error {
	_, round, _, err := s.admit(in.key)
	if err != nil {
		return err
	}
	name := in.r.PathValue("model")
	if !slices.Contains(round.Agents, name) {
		return round.noAgent(name)
	}
	return writeJSON(in.w, modelObject(name))
}

func modelObject(name string) map[string]any {
	return map[string]any{"id": name, "object": "model", "created": 0, "owned_by": "mgrpo"}
}

// noAgent returns the refusal of a name that is not an agent's.
func (r *Round) noAgent(name string) error {
	return refuse(404, "model_not_found", "there is no agent %q. Agents: %s", name, strings.Join(r.Agents, ", "))
}
