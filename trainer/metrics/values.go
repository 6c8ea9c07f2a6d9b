package metrics

import (
	"maps"
	"slices"
	"strings"
)

// Value documents a name of Record.Values or Record.Counts.
type Value struct {
	Name    string
	Unit    string
	Kinds   string // kinds of record that contain it
	Meaning string
}

// Section lists the values that come from one part of the program.
type Section struct {
	Title  string
	Source string // the part of the program that computes the numbers
	Values []Value
}

const (
	inStep    = "step"
	inPhase   = "step, eval"
	inTrained = "cold_start, step"
)

// Sections lists all values. A run has only the values that its settings produce.
var Sections = []Section{
	{"Rollouts", "the conversations of one agent in one phase (`trainer/run/worker/reports.go`)", []Value{
		{Accuracy, "0 to 1", inPhase, "Mean correctness of the main agent's answers over the rollouts that could be verified; an answer in an invalid " +
			"format is worth 0. Main agent only. In evaluations: the held-out accuracy; " +
			"absent if a rollout of `task.eval` has no score, and `unknown` gives the reason."},
		{AccuracyStd, "0 to 1", "eval", "Sample standard deviation, over the eval.samples samples a query, of the accuracy of one sample of every query."},
		{PassAtPrefix + "N", "share", "eval", "Share of queries that at least one of their N = eval.samples samples answered correctly (correctness 1). Main " +
			"agent only."},
		{RewardMean, "0 to 1", inStep, "Mean reward of the trajectories in this agent's groups, before normalisation; each counts once, independent " +
			"of its alignment weight. Negative values need `grpo.credit: removal`."},
		{ExpertMean, "0 to 1", inPhase, "Mean of the expert's score of a sub-agent's answers; an invalid format counts as 0. Sub-agents only. Absent " +
			"from an evaluation in which an answer has no score."},
		{CreditMean, "-1 to 1", inStep, "Mean over the calls of a sub-agent of the main agent's correctness minus its correctness without the " +
			"call, in complete rollouts with an answer. Only with `grpo.credit: removal`, for sub-agents that learn."},
		{RemovalTokens, "tokens", inStep, "Tokens of the main agent's answers without a call, after the parts that they share with their " +
			"conversations. They are not in `tokens`. Only with `grpo.credit: removal`, for the main agent."},
		{FormatValid, "share", inPhase, "Trajectories in a valid format that ended with an answer within the limits."},
		{MalformedMean, "calls", inPhase, "Calls by a trajectory that could not be parsed and were answered with an error."},
		{CallsMean, "calls", inPhase, "d_k, delegations per rollout: of the main agent to all sub-agents; of a sub-agent, the delegations to it."},
		{CallsStd, "calls", inPhase, "Standard deviation of d_k within a query: the root of the mean over queries of the variances of their " +
			"rollouts. Absent if queries have one rollout each."},
		{TurnsMean, "turns", inPhase, "Turns per trajectory, including the prompt and observations, of all its rows."},
		{TokensMean, "tokens", inPhase, "Tokens per trajectory, including the prompt and observations. For a hosted model, its server counts them, " +
			"also for `tokens` and `sampled_tokens`; all three are absent if it does not."},
		{Trajectories, "count", inPhase, "Trajectories of the phase on this agent's worker."},
		{Tokens, "tokens", inPhase, "Tokens of all these trajectories."},
		{SampledTokens, "tokens", inPhase, "Tokens that the policy sampled."},
		{RolloutsFailed, "rollouts", inPhase, "Rollouts without a score because the verifier or the server of a hosted model failed."},
		{LagMean, "versions", inStep, "Training steps between the weights that sampled a trajectory and the weights that it trains; 0 unless " +
			"`grpo.max_lag` is above 0."},
		{LagMax, "versions", inStep, "Largest value behind `lag_mean`."},
		{RowsRewritten, "rows", inPhase, "Rows of conversations that began anew because they were folded (limits.fold), or because a program, or " +
			"the chat template, rewrote the history (docs/programs.md)."},
		{PromptsTooLong, "trajectories", inPhase, "Trajectories without a sampled token because their prompt reached limits.max_tokens or the context."},
		{TrajectoriesStale, "trajectories", inStep, "Trajectories older than `grpo.max_lag`, never trained; their rollouts are among `rollouts_removed`."},
		{QueriesReplaced, "queries", inStep, "Queries that were replaced by others because all rewards of their main group were equal " +
			"(`grpo.resample`). Their rollouts count in the values of this section and are not trained on."},
		{RolloutsRemoved, "rollouts", inStep, "Rollouts removed from training for all agents: the verifier or the server of a hosted model failed, " +
			"or an agent lost one of the rollout's trajectories."},
	}},
	{"Groups", "advantages of one step (`trainer/mgrpo`)", []Value{
		{Groups, "count", inStep, "Groups of this agent, one for each query."},
		{GroupsDegenerate, "count", inStep, "Groups whose rewards are all equal up to rounding: every advantage is 0."},
		{GroupsOnPrefix + "BACKEND", "count", inStep, "All groups, counted under the backend whose kernel normalised them: cpu or cuda, " +
			"which is the agent's device."},
		{AdvantageGPUSeconds, "seconds", inStep, "GPU time of the group_advantage kernel, including copies to and from the GPU, measured with " +
			"CUDA events. GPU only."},
		{GroupsEmpty, "count", inStep, "Groups without a trajectory, such as a query none of whose rollouts called this sub-agent."},
	}},
	{"Objective", "the policy loss over trained tokens weighted by alignment (`kernels/`); in a step with several updates: the mean over the updates, " +
		"the smallest of minima and the largest of maxima", []Value{
		{Loss, "nats", inTrained, "The loss that is minimised. In a cold start: mean negative log-prob of the demonstrations' trained tokens over " +
			"the last 20 updates."},
		{LossPolicy, "nats", inStep, "Clipped policy-gradient term of the loss. The three terms add up to loss."},
		{LossKL, "nats", inStep, "KL term of the loss, scaled by grpo.kl_coef."},
		{LossEntropy, "nats", inStep, "Entropy term of the loss, scaled by grpo.entropy_coef."},
		{EntropyMean, "nats", inStep, "Entropy of the policy at the trained tokens."},
		{ClipFracLow, "share", inStep, "Share of tokens with negative advantage and a ratio below 1 - grpo.eps_low (CISPO: below its bound, any " +
			"advantage)."},
		{ClipFracHigh, "share", inStep, "Share of tokens with positive advantage and a ratio above 1 + grpo.eps_high (CISPO: above its bound, any " +
			"advantage)."},
		{DualClipFrac, "share", inStep, "Share of tokens with negative advantage and a ratio above grpo.dual_clip."},
		{RatioMean, "ratio", inStep, "Mean of new over old probability, of tokens or sequences (grpo.ratio)."},
		{RatioMin, "ratio", inStep, "Smallest ratio."},
		{RatioMax, "ratio", inStep, "Largest ratio."},
		{LogRatioClampedFrac, "share", inStep, "Share of tokens whose log-ratio was clamped to grpo.log_ratio_clamp."},
		{ApproxKLK1, "nats", inStep, "Estimate of KL(old || new): mean of minus the log-ratio. May be negative."},
		{ApproxKLK3, "nats", inStep, "Estimate of KL(old || new) of low variance, never negative: mean of ratio - 1 - log-ratio."},
		{RefKLMean, "nats", inStep, "KL to the reference policy, not scaled. Present with grpo.kl."},
		{GapMean, "nats", inStep, "Mean of |trainer's log-prob - sampler's log-prob| before the step's first update, over trajectories sampled by " +
			"the trained policy version, so that both log-probs belong to the same weights. Absent if grpo.max_lag left no such trajectory. " +
			"grpo.gap_warn and grpo.gap_stop are its limits."},
		{RoutingDiffers, "share", inStep, "Mixture of experts with grpo.routing: replay. Share of tokens, a mean over the layers with experts, for " +
			"which the trainer's router would choose other experts than the recorded ones; before the step's first update, over trajectories sampled " +
			"by the trained version. grpo.routing_warn and grpo.routing_stop are its limits."},
		{RoutingFree, "share", inStep, "Share of the tokens in training whose experts were not recorded, so that the trainer's router chose them; " +
			"1 if a server samples."},
		{ExpertLoadMax, "ratio", inStep, "Mixture of experts: the largest number of tokens of an expert divided by the mean of its layer, in the " +
			"worst layer."},
		{ExpertEntropy, "share", inStep, "Entropy of the experts' shares of tokens divided by the entropy of equal shares; mean over the layers."},
		{ExpertsIdle, "share", inStep, "Share of experts without a token in an update's micro-batches, over all layers."},
		{RouterAuxLoss, "ratio", inStep, "Load-balancing loss without its coefficient (1: balanced); present with grpo.router_aux_coef."},
		{TermLoss, "", inStep, "Loss term of the program (docs/library.md#a-loss-term), which is not part of `loss`; mean over the updates."},
		{TermPrefix + "NAME", "", inStep, "A value that the program's loss term reported."},
		{BehaviourGapMean, "nats", inStep, "Mean of |old - sampler's log-prob|. Present with grpo.old: recomputed."},
		{BehaviourGapMax, "nats", inStep, "Largest of these differences."},
		{TISMean, "ratio", inStep, "Mean truncated importance weight. Present with grpo.tis_cap."},
		{TISMax, "ratio", inStep, "Largest truncated importance weight."},
		{TISTruncatedFrac, "share", inStep, "Tokens whose importance weight was truncated."},
		{LossTokens, "tokens", inStep, "Trained tokens of an update, each trajectory counted once."},
		{LossWeightedTokens, "tokens", inStep, "The same, with each trajectory counted by its alignment weight."},
		{LossTrajectories, "count", inStep, "Trajectories of positive weight with a trained token."},
		{EmptyTrajectories, "count", inStep, "Trajectories of positive weight without a trained token."},
		{LossGroups, "count", inStep, "Groups of an update."},
	}},
	{"Optimizer", "AdamW (`trainer/engine/learner`)", []Value{
		{LR, "", inStep, "Learning rate."},
		{GradNorm, "", inStep, "Norm of the whole gradient before clipping."},
		{Updates, "count", inTrained, "Optimizer updates: epochs x minibatches, skipped ones included."},
		{UpdatesSkipped, "count", inStep, "Updates that were not made because all advantages are 0 and no KL or entropy term is on, nor a " +
			"program's loss term with a gradient for the policy."},
		{UpdatesFailed, "count", inStep, "Updates refused because a number was not finite; the weights did not change."},
		{BatchTokens, "tokens", inStep, "Tokens of the trajectories with a gradient, including prompts and observations; mean over the updates."},
		{TrainedTokens, "tokens", inTrained, "Tokens that went through forward and backward, summed over the updates."},
	}},
	{"Costs", "the clock and the device", []Value{
		{RolloutSeconds, "s", inPhase, "From the start of the phase until all outcomes have arrived, including waits for other agents."},
		{RolloutTokensPerSecond, "tokens/s", inPhase, "sampled_tokens over rollout_seconds."},
		{EvictedTokens, "tokens", inPhase, "Tokens of waiting conversations whose cached keys and values made room for others, since the engine " +
			"started (`engine.cache_tokens`)."},
		{RecomputedTokens, "tokens", inPhase, "Tokens of conversations that continued after that and were computed again, since the engine started."},
		{InFlightMax, "count", inPhase, "Largest number of conversations in flight at once since the engine started; for an agent with several " +
			"devices, the sum over the devices."},
		{AgreeSeconds, "s", inStep, "From the end of the rollouts until the trajectories of all agents are known: a wait for the other agents."},
		{LearnSeconds, "s", inTrained, "Advantages and optimizer updates."},
		{LearnTokensPerSecond, "tokens/s", inTrained, "trained_tokens over learn_seconds."},
		{CheckpointWaitSeconds, "s", inStep, "Time that steps waited for checkpoints since the previous record: for the copy of a checkpoint, and " +
			"for the previous checkpoint to be complete."},
		{CheckpointSeconds, "s", inStep, "Time from the copy of a checkpoint to its completion, in parallel with the steps; for checkpoints " +
			"completed since the previous record."},
		{MemoryBytes, "bytes", inStep, "Memory of live tensors: on a CPU of the whole process, on a GPU of this process on that GPU."},
		{GPUMemoryUsedBytes, "bytes", inStep, "Used memory of the GPU, all processes included, as the driver reports it (gorgonia/cu). GPU only."},
		{UpdateGPUSeconds, "seconds", inStep, "GPU time of an update between two events on the device's stream (gorgonia/cu), mean over the " +
			"step's updates. GPU only."},
		{MemoryPeakBytes, "bytes", inStep, "Peak of `memory_bytes` since the process started."},
	}},
}

// Histograms lists the names of Record.Counts.
var Histograms = Section{"Counts", "histograms: how often each integer occurred", []Value{
	{Calls, "rollouts", inPhase, "Rollouts by their number of delegations d_k. Main agent: to all sub-agents; sub-agent: to it."},
	{RightSamples, "queries", "eval", "Queries by how many of their eval.samples samples were answered correctly (correctness 1). Main agent only."},
	{DecodeBatch, "passes", inPhase, "Forward passes of the engine with rows of the agent since the previous record, by the number of sequences " +
		"that each decoded, including sequences of agents that share the engine; 0: passes of prompts only."},
	{RankTokens, "tokens", inPhase, "Sampled tokens since the previous record by rank, for an agent with several devices (docs/ranks.md)."},
}}

// ByTool lists the names of Record.Counts whose keys are tools; they are not histograms.
var ByTool = Section{"Tools", "the calls of one agent's tools since the previous record, by the tool's name", []Value{
	{ToolCalls, "calls", inPhase, "Calls of the tool."},
	{ToolErrors, "calls", inPhase, "Calls that ended with an error other than a time-out or a refusal; the agent received the error as the result."},
	{ToolFailures, "calls", inPhase, "Errors in `tool_errors` that other arguments would not have prevented: the tool crashed, or its server is gone. " +
		"Calls whose arguments do not fit the tool's schema are not passed to the tool; `malformed_mean` counts them."},
	{ToolTimeouts, "calls", inPhase, "Calls that timed out."},
	{ToolRefused, "calls", inPhase, "Calls refused because the conversation had already made `max_calls` calls."},
	{ToolRetries, "attempts", inPhase, "Further attempts at calls, after time-outs and errors that may pass. A call counts once, by its last attempt."},
	{ToolMilliseconds, "ms", inPhase, "Total time of all calls."},
}}

// Find returns the entry of a name of Record.Values or of ByTool; ok is false if there is none.
func Find(name string) (v Value, ok bool) {
	if rest, cut := strings.CutPrefix(name, PassAtPrefix); cut && rest != "" {
		name = PassAtPrefix + "N"
	}
	if strings.HasPrefix(name, GroupsOnPrefix) {
		name = GroupsOnPrefix + "BACKEND"
	}
	if strings.HasPrefix(name, TermPrefix) && name != TermLoss {
		name = TermPrefix + "NAME"
	}
	for _, s := range append(Sections[:len(Sections):len(Sections)], ByTool) {
		for _, v := range s.Values {
			if v.Name == name {
				return v, true
			}
		}
	}
	return Value{}, false
}

// Clocked reports whether a value depends on the clock, the machine or the batches that happened to form.
func Clocked(name string) bool {
	return strings.HasSuffix(name, "_seconds") || strings.HasSuffix(name, "_per_second") ||
		strings.HasPrefix(name, "memory_") || name == InFlightMax || name == EvictedTokens || name == RecomputedTokens
}

// LearningTime returns the seconds that a step spent on learning: learn_seconds or, if it is absent, trained_tokens divided by
// learn_tokens_per_second.
func LearningTime(values map[string]float64) float64 {
	if s, ok := values[LearnSeconds]; ok {
		return s
	}
	if rate := values[LearnTokensPerSecond]; rate > 0 {
		return values[TrainedTokens] / rate
	}
	return 0
}

// ToolUse counts the calls of a tool by outcome.
type ToolUse struct {
	Tool             string
	Calls            int64
	Errors, Timeouts int64 // calls that ended with an error, and calls that timed out
	Failures         int64 // errors that would have occurred with any arguments
	Refused, Retries int64 // calls beyond max_calls, and further attempts at calls
	Milliseconds     int64 // total of all calls
}

// ToolUses reads the tool counts of Record.Counts, sorted by tool name.
func ToolUses(counts map[string]map[string]int64) []ToolUse {
	var out []ToolUse
	for _, tool := range slices.Sorted(maps.Keys(counts[ToolCalls])) {
		u := ToolUse{Tool: tool, Calls: counts[ToolCalls][tool], Errors: counts[ToolErrors][tool], Timeouts: counts[ToolTimeouts][tool],
			Failures: counts[ToolFailures][tool], Refused: counts[ToolRefused][tool], Retries: counts[ToolRetries][tool],
			Milliseconds: counts[ToolMilliseconds][tool]}
		if u.Calls > 0 {
			out = append(out, u)
		}
	}
	return out
}

// Made returns the number of calls that were made. The others were refused, since their conversation had reached its limit.
func (u ToolUse) Made() int64 { return u.Calls - u.Refused }

// FailedShare returns the share of the calls made that ended with an error or timed out.
func (u ToolUse) FailedShare() float64 {
	return float64(u.Errors+u.Timeouts) / float64(max(u.Made(), 1))
}

// Failing reports whether enough calls failed for a warning: the rewards of rollouts that called the tool are then a poor
// measure of the agent.
func (u ToolUse) Failing() bool {
	const share, fewest = 0.1, 10
	return u.Made() >= fewest && u.FailedShare() > share
}
