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
func (c *common) trains() bool { return c.learner != nil && c.cfg.Learns(c.agent) }

// trained reports whether a step has changed the agent's weights since the run began. A cold start does not count.
func (c *common) trained() bool { return c.trains() && c.learner.Rank0.State.Updates() > 0 }

// ReportWaiting reports that this agent waits at a barrier for other agents.
func (c *common) ReportWaiting(agents []string) {
	c.observer.Progress(metrics.Progress{Agent: c.name, Activity: metrics.Waiting, For: agents})
}

// report reports a record if the place still belongs to this worker. If a record's step is earlier than the previous record's, readers
// conclude that the run went back.
func (c *common) report(ctx context.Context, r metrics.Record) error {
	if err := c.member.ConfirmPlace(ctx); err != nil {
		return err
	}
	c.observer.Report(r)
	return nil
}
