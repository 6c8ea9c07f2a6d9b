package mgrpo

import (
	"reflect"
	"strings"
)

// LossStats describes an optimizer batch. Means are over trained tokens, weighted by the trajectory's weight, so that a
// weight of 2 counts like two copies. A nil pointer means that the input of the statistic is absent. The tag metric is
// the name in docs/metrics.md if it differs from the name in the golden vectors (json).
type LossStats struct {
	Loss        float64 `json:"loss"`
	LossPolicy  float64 `json:"loss_policy"` // LossPolicy, LossKL and LossEntropy are signed and scaled; their sum is Loss
	LossKL      float64 `json:"loss_kl"`
	LossEntropy float64 `json:"loss_entropy"`

	Tokens              int64    `json:"tokens" metric:"loss_tokens"`
	WeightedTokens      float64  `json:"weighted_tokens" metric:"loss_weighted_tokens"`
	Trajectories        int64    `json:"trajectories" metric:"loss_trajectories"` // positive weight and a trained token
	EmptyTrajectories   int64    `json:"empty_trajectories"`                      // positive weight, no trained token
	Groups              int64    `json:"groups" metric:"loss_groups"`
	ClipFracLow         float64  `json:"clip_frac_low"`
	ClipFracHigh        float64  `json:"clip_frac_high"`
	DualClipFrac        float64  `json:"dual_clip_frac"`
	RatioMean           float64  `json:"ratio_mean"`
	RatioMin            float64  `json:"ratio_min"`
	RatioMax            float64  `json:"ratio_max"`
	ApproxKLK1          float64  `json:"approx_kl_k1"` // estimates KL(old || new)
	ApproxKLK3          float64  `json:"approx_kl_k3"`
	LogRatioClampedFrac float64  `json:"log_ratio_clamped_frac"`
	EntropyMean         *float64 `json:"entropy_mean,omitempty"`
	RefKLMean           *float64 `json:"ref_kl_mean,omitempty"`
	TISMean             *float64 `json:"tis_mean,omitempty"`
	TISMax              *float64 `json:"tis_max,omitempty"`
	TISTruncatedFrac    *float64 `json:"tis_truncated_frac,omitempty"`
	BehaviourGapMean    *float64 `json:"behaviour_gap_mean,omitempty"` // the weight-sync alarm
	BehaviourGapMax     *float64 `json:"behaviour_gap_max,omitempty"`
}

// Values returns the non-nil statistics under their names in docs/metrics.md.
func (s LossStats) Values() map[string]float64 {
	out := map[string]float64{}
	for field, value := range reflect.ValueOf(s).Fields() {
		name, renamed := field.Tag.Lookup("metric")
		if !renamed {
			name, _, _ = strings.Cut(field.Tag.Get("json"), ",")
		}
		switch x := value.Interface().(type) {
		case int64:
			out[name] = float64(x)
		case float64:
			out[name] = x
		case *float64:
			if x != nil {
				out[name] = *x
			}
		}
	}
	return out
}
