package worker

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// common holds the settings, the place, the observer and the learner of an agent. The types for the parts of a worker's work embed it.
type common struct {
	cfg           *config.Config
	agent         *config.Agent
	name          string
	main          bool
	observer      metrics.Observer
	member        *store.Member
	learner       *launch.RankedLearner // nil if the agent is not trained; closed when a cold start is its only training
	contextTokens int                   // largest number of tokens in a conversation; 0: its model is hosted
}

// trains reports whether the steps change this agent's weights.
func (s *common) trains() bool { return s.learner != nil && s.cfg.Learns(s.agent) }

// trained reports whether a step has changed the agent's weights since the run began. A cold start does not count.
func (s *common) trained() bool { return s.trains() && s.learner.Rank0.State.Updates() > 0 }

// ReportWaiting reports that this agent waits at a barrier for other agents.
func (s *common) ReportWaiting(agents []string) {
	s.observer.Progress(metrics.Progress{Agent: s.name, Activity: metrics.Waiting, For: agents})
}

// report reports a record if the place still belongs to this worker. If a record's step is earlier than the previous record's, readers
// conclude that the run went back.
func (s *common) report(ctx context.Context, r metrics.Record) error {
	if err := s.member.ConfirmPlace(ctx); err != nil {
		return err
	}
	s.observer.Report(r)
	return nil
}
