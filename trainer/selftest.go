package trainer

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/selftest"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// selfTest checks the kernels of an agent's device before anything is computed there. It leaves out an instruction set
// that fails, with a note, and returns an error if none is left.
func selfTest(ctx context.Context, a *config.Agent, observer metrics.Observer) error {
	if a.Model.Endpoint != nil {
		return nil // a hosted model
	}
	left, err := selftest.Settle(ctx, a.Device)
	if err != nil {
		return fmt.Errorf("agents.%s.device: %w", a.Name, err)
	}
	for _, r := range left {
		observer.Note(metrics.Warnf(a.Name, metrics.TopicSettings, "%s", r.LeftOut()))
	}
	return nil
}
