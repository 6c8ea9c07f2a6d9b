package metrics

import (
	"slices"
	"strings"
)

// Value documents one name of Record.Values or Record.Counts.
type Value struct {
	Name    string
	Unit    string
	Kinds   string // kinds of record that have it
	Meaning string
}

// Section is the values that come from one part of the program.
type Section struct {
	Title  string
	Source string // where the numbers come from
	Values []Value
}

const (
	inStep    = "step"
	inPhase   = "step, eval"
	inTrained = "cold_start, step"
)

// Sections lists every value there is. A value in here that a run does not have is one that its settings
// do not produce.
var Sections = []Section{
	{"Rollouts", "the conversations of one agent in one phase (`trainer/records.go`)", []Value{
		{"accuracy", "0 to 1", inPhase, "Mean correctness of the main agent's answers over the rollouts that could be verified; an answer in an invalid format is worth 0. Main agent only. In evaluations: the held-out accuracy; absent where a rollout has no score, and `unknown` says why."},
		{"accuracy_std", "0 to 1", "eval", "Sample standard deviation, over the eval.samples samples a query, of the accuracy of one sample of every query."},
		{"pass_at_N", "share", "eval", "Share of queries that at least one of their N = eval.samples samples answered correctly (correctness 1). Main agent only."},
		{"reward_mean", "0 to 1", inStep, "Mean reward of the trajectories in this agent's groups, before normalisation, each counted once whatever its alignment weight."},
		{"expert_mean", "0 to 1", inPhase, "Mean of the expert's score of a sub-agent's answers; an invalid format counts 0. Sub-agents only. Absent from an evaluation in which an answer has no score."},
		{"format_valid", "share", inPhase, "Trajectories in a valid format that ended with an answer within the limits."},
		{"malformed_mean", "calls", inPhase, "Calls a trajectory made that could not be understood and were answered with an error."},
		{"calls_mean", "calls", inPhase, "d_k, delegations a rollout. Main agent: to all sub-agents; sub-agent: to it."},
		{"turns_mean", "turns", inPhase, "Turns a trajectory, the prompt and observed ones included."},
		{"tokens_mean", "tokens", inPhase, "Tokens a trajectory, the prompt and observed ones included."},
		{"trajectories", "count", inPhase, "Trajectories this agent holds of the phase."},
		{"tokens", "tokens", inPhase, "Tokens of all of them."},
		{"sampled_tokens", "tokens", inPhase, "Those of them that the policy sampled."},
		{"rollouts_failed", "rollouts", inPhase, "Rollouts without a score, because the verifier failed."},
		{"lag_mean", "versions", inStep, "Training steps between the weights that sampled a trajectory and those it trains; 0 unless `grpo.max_lag` is above 0."},
		{"lag_max", "versions", inStep, "The largest of them."},
		{"prompts_too_long", "trajectories", inPhase, "Trajectories without a sampled token, because their prompt reached limits.max_tokens or the context."},
		{"trajectories_stale", "trajectories", inStep, "Trajectories older than `grpo.max_lag`, never trained; their rollouts are among `rollouts_removed`."},
		{"rollouts_removed", "rollouts", inStep, "Rollouts left out of training for all agents: failed, or an agent does not hold all its trajectories."},
	}},
	{"Groups", "advantages of one step (`trainer/mgrpo`)", []Value{
		{"groups", "count", inStep, "Groups of this agent, one a query."},
		{"groups_degenerate", "count", inStep, "Groups whose rewards are all equal: every advantage is 0."},
		{"groups_on_BACKEND", "count", inStep, "All groups, counted under the backend whose kernel normalised them: cpu or cuda, which is the agent's device."},
		{"advantage_gpu_seconds", "seconds", inStep, "What the group_advantage kernel took on the GPU, copies to and from it included, measured by CUDA events. Present on GPUs."},
		{"groups_empty", "count", inStep, "Groups without a trajectory, such as a query none of whose rollouts called this sub-agent."},
	}},
	{"Objective", "the policy loss over trained tokens weighted by alignment (`kernels/`); of a step with several updates, the mean over the updates, of minima the smallest and of maxima the largest", []Value{
		{"loss", "nats", inTrained, "What is minimised. In a cold start: mean negative log-prob of the demonstrations' trained tokens over the last 20 updates."},
		{"loss_policy", "nats", inStep, "Its clipped policy-gradient term. The three terms add up to loss."},
		{"loss_kl", "nats", inStep, "Its KL term, scaled by grpo.kl_coef."},
		{"loss_entropy", "nats", inStep, "Its entropy term, scaled by grpo.entropy_coef."},
		{"entropy_mean", "nats", inStep, "Entropy of the policy at the trained tokens."},
		{"clip_frac_low", "share", inStep, "Tokens of negative advantage whose ratio is below 1 - grpo.eps_low (CISPO: below its bound, any advantage)."},
		{"clip_frac_high", "share", inStep, "Tokens of positive advantage whose ratio is above 1 + grpo.eps_high (CISPO: above its bound, any advantage)."},
		{"dual_clip_frac", "share", inStep, "Tokens of negative advantage whose ratio is above grpo.dual_clip."},
		{"ratio_mean", "ratio", inStep, "Mean of new over old probability, token or sequence as grpo.ratio says."},
		{"ratio_min", "ratio", inStep, "Smallest ratio."},
		{"ratio_max", "ratio", inStep, "Largest ratio."},
		{"log_ratio_clamped_frac", "share", inStep, "Tokens whose log-ratio was clamped to grpo.log_ratio_clamp."},
		{"approx_kl_k1", "nats", inStep, "Estimate of KL(old || new): mean of minus the log-ratio. May be negative."},
		{"approx_kl_k3", "nats", inStep, "Estimate of KL(old || new) of low variance, never negative: mean of ratio - 1 - log-ratio."},
		{"ref_kl_mean", "nats", inStep, "KL to the reference policy, not scaled. Present with grpo.kl."},
		{"gap_mean", "nats", inStep, "Mean of |trainer's log-prob - sampler's log-prob| before the step's first update, over trajectories that the trained version itself sampled: both are of the same weights. Absent where grpo.max_lag left no such trajectory. grpo.gap_warn and grpo.gap_stop judge it."},
		{"behaviour_gap_mean", "nats", inStep, "Mean of |old - sampler's log-prob|. Present with grpo.old: recomputed."},
		{"behaviour_gap_max", "nats", inStep, "Largest of it."},
		{"tis_mean", "ratio", inStep, "Mean truncated importance weight. Present with grpo.tis_cap."},
		{"tis_max", "ratio", inStep, "Largest of them."},
		{"tis_truncated_frac", "share", inStep, "Tokens whose importance weight was truncated."},
		{"loss_tokens", "tokens", inStep, "Trained tokens of an update, each trajectory counted once."},
		{"loss_weighted_tokens", "tokens", inStep, "The same, each counted as often as alignment weighs it."},
		{"loss_trajectories", "count", inStep, "Trajectories of positive weight with a trained token."},
		{"empty_trajectories", "count", inStep, "Trajectories of positive weight without one."},
		{"loss_groups", "count", inStep, "Groups of an update."},
	}},
	{"Optimizer", "AdamW (`trainer/learner`)", []Value{
		{"lr", "", inStep, "Learning rate."},
		{"grad_norm", "", inStep, "Norm of the whole gradient before clipping."},
		{"updates", "count", inTrained, "Optimizer updates: epochs x minibatches, skipped ones included."},
		{"updates_skipped", "count", inStep, "Updates not made because no advantage differs from 0 and no KL or entropy term is on."},
		{"updates_failed", "count", inStep, "Updates refused because a number was not finite; the weights stayed as they were."},
		{"batch_tokens", "tokens", inStep, "Tokens of the trajectories with a gradient, prompts and observations included; mean over the updates."},
		{"trained_tokens", "tokens", inTrained, "Tokens that went through forward and backward, summed over the updates."},
	}},
	{"Costs", "the clock and the device", []Value{
		{"rollout_seconds", "s", inPhase, "From the start of the phase until every outcome is there, waiting for other agents included."},
		{"rollout_tokens_per_second", "tokens/s", inPhase, "sampled_tokens over rollout_seconds."},
		{"in_flight_max", "count", inPhase, "Most conversations that the engine has held at once since it was made."},
		{"learn_seconds", "s", inTrained, "Advantages and optimizer updates, waiting for what other agents hold included."},
		{"learn_tokens_per_second", "tokens/s", inTrained, "trained_tokens over the seconds they took."},
		{"checkpoint_wait_seconds", "s", inStep, "That this step and those since the record before waited for checkpoints: for one to be copied, and for the one before it to be complete."},
		{"checkpoint_seconds", "s", inStep, "From a checkpoint's copy to its completion, beside the steps. Of those that were completed since the record before."},
		{"memory_bytes", "bytes", inStep, "In live tensors: on a CPU of the whole process, on a GPU of this process there."},
		{"gpu_memory_used_bytes", "bytes", inStep, "Of the GPU's memory, all processes counted, as its driver says (gorgonia/cu). GPU only."},
		{"update_gpu_seconds", "seconds", inStep, "GPU time of an update between two events on the device's stream (gorgonia/cu), mean over the step's updates. GPU only."},
		{"memory_peak_bytes", "bytes", inStep, "The most of it since the process started."},
	}},
}

// Histograms lists the names of Record.Counts.
var Histograms = Section{"Counts", "histograms: how often each integer occurred", []Value{
	{"calls", "rollouts", inPhase, "Rollouts by their number of delegations d_k. Main agent: to all sub-agents; sub-agent: to it."},
	{"right_samples", "queries", "eval", "Queries by how many of their eval.samples samples were answered correctly (correctness 1). Main agent only."},
	{"decode_batch", "passes", inPhase, "Forward passes of the engine since the record before, by the number of sequences that decoded together in them; 0: prompts alone."},
}}

// Names of Record.Counts whose keys are tools.
const (
	ToolCalls        = "tool_calls"
	ToolErrors       = "tool_errors"
	ToolFailures     = "tool_failures"
	ToolTimeouts     = "tool_timeouts"
	ToolMilliseconds = "tool_milliseconds"
)

// ByTool lists the names of Record.Counts that have a number for each tool instead of a histogram.
var ByTool = Section{"Tools", "the calls of one agent's tools since the record before, by the tool's name", []Value{
	{ToolCalls, "calls", inPhase, "Calls of the tool."},
	{ToolErrors, "calls", inPhase, "Those of them that failed in another way than by taking too long: the agent was answered with an error."},
	{ToolFailures, "calls", inPhase, "Those of `tool_errors` that no other arguments would have prevented: the tool crashed, or its server is gone. Arguments that do not fit the tool's schema are in `malformed_mean` and reach no tool."},
	{ToolTimeouts, "calls", inPhase, "Those of them that took too long."},
	{ToolMilliseconds, "ms", inPhase, "What all of them took together."},
}}

func (s Section) has(name string) bool {
	return slices.ContainsFunc(s.Values, func(v Value) bool { return v.Name == name })
}

// Find is the entry of a name of Record.Values or of ByTool; ok is false if it has none.
func Find(name string) (v Value, ok bool) {
	if rest, cut := strings.CutPrefix(name, "pass_at_"); cut && rest != "" {
		name = "pass_at_N"
	}
	if strings.HasPrefix(name, "groups_on_") {
		name = "groups_on_BACKEND"
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

// LearnSeconds is how long a step learned: learn_seconds or, where it is absent, what the tokens and
// their rate make.
func LearnSeconds(values map[string]float64) float64 {
	if s, ok := values["learn_seconds"]; ok {
		return s
	}
	if rate := values["learn_tokens_per_second"]; rate > 0 {
		return values["trained_tokens"] / rate
	}
	return 0
}
