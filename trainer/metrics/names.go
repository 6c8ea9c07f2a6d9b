package metrics

// Names of Record.Values and Record.Counts, in the order of docs/metrics.md, which explains them. A prefix is the beginning of
// several names.

// Conversations: names of Record.Values.
const (
	Accuracy          = "accuracy"
	AccuracyStd       = "accuracy_std"
	PassAtPrefix      = "pass_at_"
	RewardMean        = "reward_mean"
	ExpertMean        = "expert_mean"
	CreditMean        = "credit_mean"
	RemovalTokens     = "removal_tokens"
	FormatValid       = "format_valid"
	MalformedMean     = "malformed_mean"
	CallsMean         = "calls_mean"
	CallsStd          = "calls_std"
	TurnsMean         = "turns_mean"
	TokensMean        = "tokens_mean"
	Trajectories      = "trajectories"
	Tokens            = "tokens"
	SampledTokens     = "sampled_tokens"
	RolloutsFailed    = "rollouts_failed"
	LagMean           = "lag_mean"
	LagMax            = "lag_max"
	RowsRewritten     = "rows_rewritten"
	PromptsTooLong    = "prompts_too_long"
	TrajectoriesStale = "trajectories_stale"
	QueriesReplaced   = "queries_replaced"
	RolloutsRemoved   = "rollouts_removed"
)

// Advantages: names of Record.Values.
const (
	Groups              = "groups"
	GroupsDegenerate    = "groups_degenerate"
	GroupsOnPrefix      = "groups_on_"
	AdvantageGPUSeconds = "advantage_gpu_seconds"
	GroupsEmpty         = "groups_empty"
)

// The policy loss: names of Record.Values.
const (
	Loss                = "loss"
	LossPolicy          = "loss_policy"
	LossKL              = "loss_kl"
	LossEntropy         = "loss_entropy"
	EntropyMean         = "entropy_mean"
	ClipFracLow         = "clip_frac_low"
	ClipFracHigh        = "clip_frac_high"
	DualClipFrac        = "dual_clip_frac"
	RatioMean           = "ratio_mean"
	RatioMin            = "ratio_min"
	RatioMax            = "ratio_max"
	LogRatioClampedFrac = "log_ratio_clamped_frac"
	ApproxKLK1          = "approx_kl_k1"
	ApproxKLK3          = "approx_kl_k3"
	RefKLMean           = "ref_kl_mean"
	GapMean             = "gap_mean"
	RoutingDiffers      = "routing_differs"
	RoutingFree         = "routing_free"
	ExpertLoadMax       = "expert_load_max"
	ExpertEntropy       = "expert_entropy"
	ExpertsIdle         = "experts_idle"
	RouterAuxLoss       = "router_aux_loss"
	TermLoss            = "term_loss"
	TermPrefix          = "term_"
	BehaviourGapMean    = "behaviour_gap_mean"
	BehaviourGapMax     = "behaviour_gap_max"
	TISMean             = "tis_mean"
	TISMax              = "tis_max"
	TISTruncatedFrac    = "tis_truncated_frac"
	LossTokens          = "loss_tokens"
	LossWeightedTokens  = "loss_weighted_tokens"
	LossTrajectories    = "loss_trajectories"
	EmptyTrajectories   = "empty_trajectories"
	LossGroups          = "loss_groups"
)

// AdamW: names of Record.Values.
const (
	LR             = "lr"
	GradNorm       = "grad_norm"
	Updates        = "updates"
	UpdatesSkipped = "updates_skipped"
	UpdatesFailed  = "updates_failed"
	BatchTokens    = "batch_tokens"
	TrainedTokens  = "trained_tokens"
)

// The clock and the device: names of Record.Values.
const (
	RolloutSeconds         = "rollout_seconds"
	RolloutTokensPerSecond = "rollout_tokens_per_second"
	EvictedTokens          = "evicted_tokens"
	RecomputedTokens       = "recomputed_tokens"
	InFlightMax            = "in_flight_max"
	AgreeSeconds           = "agree_seconds"
	LearnSeconds           = "learn_seconds"
	LearnTokensPerSecond   = "learn_tokens_per_second"
	CheckpointWaitSeconds  = "checkpoint_wait_seconds"
	CheckpointSeconds      = "checkpoint_seconds"
	MemoryBytes            = "memory_bytes"
	GPUMemoryUsedBytes     = "gpu_memory_used_bytes"
	UpdateGPUSeconds       = "update_gpu_seconds"
	MemoryPeakBytes        = "memory_peak_bytes"
)

// Histograms: names of Record.Counts.
const (
	Calls        = "calls"
	RightSamples = "right_samples"
	DecodeBatch  = "decode_batch"
	RankTokens   = "rank_tokens"
)

// Calls of tools: names of Record.Counts whose keys are tools.
const (
	ToolCalls        = "tool_calls"
	ToolErrors       = "tool_errors"
	ToolFailures     = "tool_failures"
	ToolTimeouts     = "tool_timeouts"
	ToolRefused      = "tool_refused"
	ToolRetries      = "tool_retries"
	ToolMilliseconds = "tool_milliseconds"
)
