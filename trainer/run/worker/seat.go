package worker

import (
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// seat is one agent's place in a run, which every part of its worker needs.
type seat struct {
	cfg           *config.Config
	agent         *config.Agent
	name          string
	main          bool
	observer      metrics.Observer
	member        *store.Member
	learner       *launch.Learner // nil for an agent that does not learn, and for an agent that learns in its cold start only
	contextTokens int             // largest number of tokens in a conversation; 0: its model is hosted
}

// trains reports whether this agent's weights change.
func (s *seat) trains() bool { return s.learner != nil }

// trained reports whether a step has changed the agent's weights since the run began. A cold start does not count.
func (s *seat) trained() bool { return s.trains() && s.learner.Steps() > 0 }

// WaitsFor publishes the agents that take longer than this one.
func (s *seat) WaitsFor(agents []string) {
	s.observer.Progress(metrics.Progress{Agent: s.name, Activity: metrics.Waiting, For: agents})
}
