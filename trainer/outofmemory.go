package trainer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
)

// memoryFull adds a remedy to an agent's error if memory ran out.
func memoryFull(cfg *config.Config, name string, err error) error {
	if !outOfMemory(err) {
		return err
	}
	needs, uncounted := assemble.MemoryNeeds(cfg, []string{name})
	if uncounted != nil {
		return errors.Join(err, uncounted)
	}
	var keys []string
	for _, l := range memory.Levers(needs[:1]) { // needs of followers are among them
		keys = append(keys, fmt.Sprintf("%s (%d)", l.Key, l.Value))
	}
	return fmt.Errorf("%w: there is not enough memory for %s on %s: lower %s; continue with --resume", err, name, needs[0].Device, strings.Join(keys, " or "))
}

// outOfMemory reports whether an allocation failed, here or at a follower.
func outOfMemory(err error) bool {
	var op *torch.Error
	var kernel *kernels.Error
	var follower *launch.FailedError
	return errors.As(err, &op) && op.OutOfMemory() || errors.As(err, &kernel) && kernel.Status == kernels.OutOfMemory ||
		errors.As(err, &follower) && follower.Memory
}
