package learner

import (
	"cmp"
	"context"

	"gorgonia.org/tensor"

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
		a.Groups, err = NormaliserOn(on)(c, groups)
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

// NormaliserOn returns the group_advantage kernel of a backend. Rewards and weights are float64 host tensors (tensor.Dense).
func NormaliserOn(on kernels.Backend) mgrpo.Normaliser {
	return func(c mgrpo.Convention, groups []mgrpo.RewardGroup) ([]mgrpo.GroupAdvantage, error) {
		var rewards, weights []float64
		offsets := []int64{0}
		for _, g := range groups {
			rewards = append(rewards, g.Rewards...)
			if g.Weights == nil {
				for range g.Rewards {
					weights = append(weights, 1)
				}
			}
			weights = append(weights, g.Weights...)
			offsets = append(offsets, int64(len(rewards)))
		}
		if len(rewards) == 0 { // tensor.Dense cannot be empty
			return emptyGroups(len(groups)), nil
		}
		advantages, stats, err := kernels.GroupAdvantage(on, dense(rewards), dense(weights), offsets, c)
		if err != nil {
			return nil, err
		}
		flat := advantages.Data().([]float64)
		out := make([]mgrpo.GroupAdvantage, len(groups))
		for i, s := range stats {
			out[i] = mgrpo.GroupAdvantage{GroupStats: s, Advantage: flat[offsets[i]:offsets[i+1]]}
		}
		return out, nil
	}
}

func dense(v []float64) *tensor.Dense {
	return tensor.New(tensor.WithShape(len(v)), tensor.WithBacking(v))
}

func emptyGroups(n int) []mgrpo.GroupAdvantage {
	out := make([]mgrpo.GroupAdvantage, n)
	for i := range out {
		out[i].Empty = true
	}
	return out
}
