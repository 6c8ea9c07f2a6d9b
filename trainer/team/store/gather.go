package store

import (
	"context"
	"strings"
)

// phaseValue is a value that every agent's worker publishes once in a phase and that all workers gather. The values are in
// the hash kind:PHASE, by agent.
type phaseValue struct {
	kind string
	what string // in messages, before the phase's name
}

var (
	trajectoriesValue = phaseValue{"trajectories", "the list of its trajectories of"}
	partValue         = phaseValue{"part", "its part of"}
	manifestValue     = phaseValue{"manifest", "its manifest of"}
)

// publish writes the member's value of a phase.
func publish(ctx context.Context, at *place, v phaseValue, p Phase, content checker) error {
	return at.writeOnce(ctx, p, v.kind, at.agent, content, at.agent+"'s "+v.kind)
}

// gatherPhase waits until every agent has published its value of a phase, and reads the values.
func gatherPhase[T any](ctx context.Context, s *Store, v phaseValue, p Phase, read func(key, text string) (T, error)) (map[string]T, error) {
	return gather(ctx, s, v.what+" "+p.String(), read, func([]string) {}, v.kind, p.String())
}

// gather waits until a hash has a value of every agent, and reads the values. hash holds the parts of the names of the hash
// and of its topic. After a read, late is called with the agents whose values are missing.
func gather[T any](ctx context.Context, s *Store, what string, read func(key, text string) (T, error), late func(agents []string),
	hash ...string) (map[string]T, error) {
	out := map[string]T{}
	key := s.key(hash...)
	err := s.wait(ctx, func(ctx context.Context) (bool, error) {
		texts, err := s.rdb.HGetAll(ctx, key).Result()
		if err != nil {
			return false, err
		}
		for _, agent := range s.agents.all() {
			text, ok := texts[agent]
			if !ok {
				continue
			}
			if out[agent], err = read(key+" "+agent, text); err != nil {
				return false, err
			}
		}
		missing := missingFrom(s.agents.all(), out)
		if len(missing) > 0 {
			late(missing)
		}
		return len(missing) == 0, nil
	}, func() ([]string, string) { return missingFrom(s.agents.all(), out), what }, strings.Join(hash, "/"))
	return out, err
}

// missingFrom lists the agents that are not among the keys of a map.
func missingFrom[T any](agents []string, present map[string]T) []string {
	var out []string
	for _, a := range agents {
		if _, ok := present[a]; !ok {
			out = append(out, a)
		}
	}
	return out
}
