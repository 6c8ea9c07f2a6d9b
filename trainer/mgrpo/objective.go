package mgrpo

// Ratio is the importance ratio of the policy term.
type Ratio string

// TokenLevel reports whether each token has its own ratio. Otherwise all tokens of a sequence share one ratio.
func (r Ratio) TokenLevel() bool { return r == RatioToken || r == RatioCISPO }

// Aggregation is the way to average token losses into the loss.
type Aggregation string

// KL is the estimator of the penalty towards a reference policy.
type KL string

const (
	RatioToken             Ratio = "token"              // PPO
	RatioSequenceProduct   Ratio = "sequence_product"   // the M-GRPO paper as printed (equations 14 to 17)
	RatioSequenceGeometric Ratio = "sequence_geometric" // GSPO
	RatioCISPO             Ratio = "cispo"              // MiniMax-M1

	TrajectoryMean Aggregation = "trajectory_mean" // mean over groups of the mean over trajectories of the token mean
	TokenMean      Aggregation = "token_mean"      // DAPO
	ConstantLength Aggregation = "constant"        // Dr. GRPO: divide by max_length

	KLNone KL = "none" // no term
	KL1    KL = "k1"   // x; as a loss its expected gradient is 0
	KL2    KL = "k2"   // x^2/2
	KL3    KL = "k3"   // exp(-x) - 1 + x
)

// Objective holds the options of the policy loss. The fields are keys of the configuration's section grpo: package config reads names,
// defaults and bounds from their tags, and docs/config.md has the comments above them. A nil pointer means "none": the option is off.
type Objective struct {
	// Importance ratio.
	Ratio Ratio `json:"ratio" yaml:"ratio" default:"token" enum:"token|sequence_product|sequence_geometric|cispo"`

	// Lower clip: ratio at least 1 - eps_low.
	EpsLow float64 `json:"eps_low" yaml:"eps_low" default:"0.2" min:"0" max:"1" applies:"ratio!=cispo"`

	// Upper clip: ratio at most 1 + eps_high.
	EpsHigh float64 `json:"eps_high" yaml:"eps_high" default:"0.28" min:"0" applies:"ratio!=cispo"`

	// Second clip of negative advantages (3 is usual).
	DualClip *float64 `json:"dual_clip" yaml:"dual_clip" default:"none" above:"1" applies:"ratio!=cispo"`

	// Lower clip of cispo; none: lower bound 0.
	CISPOLow *float64 `json:"cispo_low" yaml:"cispo_low" default:"none" min:"0" max:"1" applies:"ratio=cispo"`

	// Upper clip of cispo: ratio at most 1 + cispo_high.
	CISPOHigh float64 `json:"cispo_high" yaml:"cispo_high" default:"4" min:"0" applies:"ratio=cispo"`

	// Bound on the exponent of the ratio, and on the difference of log-probs in the KL term.
	LogRatioClamp *float64 `json:"log_ratio_clamp" yaml:"log_ratio_clamp" default:"20" above:"0" max:"88"`

	// How token losses become one loss.
	Aggregation Aggregation `json:"aggregation" yaml:"aggregation" default:"trajectory_mean" enum:"trajectory_mean|token_mean|constant"`

	// Divisor of aggregation constant, which needs it.
	MaxLength int64 `json:"max_length" yaml:"max_length" default:"0" min:"0" max:"1e9" applies:"aggregation=constant"`

	// KL estimator against the reference weights.
	KL KL `json:"kl" yaml:"kl" default:"none" enum:"none|k1|k2|k3"`

	// Weight of the KL term.
	KLCoef float64 `json:"kl_coef" yaml:"kl_coef" default:"0" min:"0" applies:"kl!=none"`

	// Weight of the entropy bonus.
	EntropyCoef float64 `json:"entropy_coef" yaml:"entropy_coef" default:"0" min:"0"`

	// Truncated importance weight against the sampler's log-probs (2 is usual); needs old: recomputed. Its default is 2 if an
	// agent samples on vllm or sglang and old is recomputed, otherwise none.
	TISCap *float64 `json:"tis_cap" yaml:"tis_cap" default:"none" above:"0" derived:"true"`
}

// DefaultObjective returns the token-level clipped loss with asymmetric bounds 0.2 and 0.28.
func DefaultObjective() Objective {
	return Objective{
		Ratio: RatioToken, EpsLow: 0.2, EpsHigh: 0.28, CISPOHigh: 4, LogRatioClamp: new(20.0),
		Aggregation: TrajectoryMean, KL: KLNone,
	}
}
