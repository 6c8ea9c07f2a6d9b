package learner

import (
	"cmp"
	"context"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// Advantages are the normalised groups and the backend whose kernel computed them: "cpu" or "cuda".
type Advantages struct {
	Groups     []mgrpo.GroupAdvantage
	Backend    string
	GPUSeconds *float64 // from the first copy to the GPU to the last one back; nil on a CPU
}

// Normalise turns groups of rewards into advantages on an agent's device. One launch of the group_advantage kernel
// computes all groups, whatever their sizes.
func Normalise(ctx context.Context, device *torch.Device, c mgrpo.Convention, groups []mgrpo.RewardGroup) (a Advantages, err error) {
	clock, err := startGPUTime(ctx, device)
	defer clock.close()
	if err != nil {
		return a, err
	}
	doErr := device.Do(ctx, func(s *torch.Scope) error {
		on := model.Backend(s)
		a.Backend = on.String()
		a.Groups, err = kernels.NormaliserOn(on)(c, groups)
		return nil
	})
	if err = cmp.Or(doErr, err); err != nil {
		return a, err
	}
	elapsed, known, err := clock.stop(ctx, device)
	if known {
		a.GPUSeconds = new(elapsed.Seconds())
	}
	return a, err
}
