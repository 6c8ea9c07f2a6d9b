package assemble

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/selftest"
)

// SelfTest checks the device and the kernels of an agent before anything is computed there. It leaves out an instruction set
// that fails, with a note, and returns an error if none is left.
func SelfTest(ctx context.Context, cfg *config.Config, a *config.Agent, note func(text string)) error {
	if a.Model.Endpoint != nil {
		return nil // a hosted model
	}
	d, err := torch.Open(a.Device, 1)
	if err == nil {
		err = d.Close()
	}
	if err != nil {
		return cfg.Fault("agents."+a.Name+".device", err)
	}
	leftOut, err := selftest.CheckDevice(ctx, a.Device)
	if err != nil {
		return fmt.Errorf("agents.%s.device: %w", a.Name, err)
	}
	for _, r := range leftOut {
		note(r.LeftOut())
	}
	return nil
}
