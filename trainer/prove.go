package trainer

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/proof"
)

// prove tries the kernels of an agent's device before anything is computed there. An instruction set that fails is named and
// left out; a device on which nothing is left is an error.
func prove(ctx context.Context, a *config.Agent, observer metrics.Observer) error {
	if a.Model.Endpoint != nil {
		return nil // the model is hosted
	}
	left, err := proof.Settle(ctx, a.Device)
	if err != nil {
		return fmt.Errorf("agents.%s.device: %w", a.Name, err)
	}
	for _, r := range left {
		observer.Note(metrics.Warnf(a.Name, metrics.TopicSettings, "%s", r.LeftOut()))
	}
	return nil
}
