package trainer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/memory"
)

// memoryFull adds to an agent's error for want of memory what can be done about it.
func memoryFull(cfg *config.Config, name string, err error) error {
	var op *torch.Error
	var kernel *kernels.Error
	if !(errors.As(err, &op) && op.OutOfMemory()) && !(errors.As(err, &kernel) && kernel.Status == kernels.OutOfMemory) {
		return err
	}
	needs, uncounted := assemble.MemoryNeeds(cfg, []string{name})
	if uncounted != nil {
		return errors.Join(err, uncounted)
	}
	var keys []string
	for _, l := range memory.Levers(needs) {
		keys = append(keys, fmt.Sprintf("%s (%d)", l.Key, l.Value))
	}
	return fmt.Errorf("%w: there is not enough memory for %s on %s: lower %s; --resume goes on", err, name, needs[0].Device, strings.Join(keys, " or "))
}
