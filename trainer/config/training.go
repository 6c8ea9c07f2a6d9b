package config

import "github.com/mgrpo/mgrpo/trainer/mgrpo"

// BatchGroup is the value of GRPO.SubGroup with which all invocations of a step are compared with each other.
const BatchGroup = "batch"

// GRPO holds the settings of the algorithm: groups, alignment, advantages and loss.
type GRPO struct {
	// Rollouts of each query (K). They are compared with each other, so a single rollout would have no advantage.
	Rollouts int `yaml:"rollouts" common:"true" default:"8" min:"2" max:"4096" change:"resume"`

	// Alignment: how rollouts with different numbers of sub-agent calls get equal weight.
	Align Align `yaml:"align"`

	// Which of a sub-agent's invocations are compared with each other: the invocations of a query, as in the paper, or
	// all invocations of a step.
	SubGroup string `yaml:"sub_group" default:"query" enum:"query|batch"`

	// How advantages are normalised: the standard deviation that divides them, or the baseline. See docs/algorithm.md,
	// section 4.
	Convention string `yaml:"convention" default:"population" enum:"population|sample|none|leave_one_out|leave_one_out_std"`

	// Added to the standard deviation (population, sample).
	StdEps float64 `yaml:"std_eps" default:"0" min:"0" applies:"convention=population|sample"`

	// A population group with a standard deviation below this is degenerate: its advantages are 0. Under every
	// convention, a group whose rewards are equal up to rounding is degenerate, too.
	SigmaMin        float64 `yaml:"sigma_min" default:"1e-6" min:"0" applies:"convention=population"`
	mgrpo.Objective `yaml:",inline"`

	// KL reference of agents without their own reference. start: the weights at the start of the run. cold_start: the
	// weights after the cold start, which the run stores in run.dir. auto: cold_start for an agent with a cold start,
	// otherwise start.
	Reference string `yaml:"reference" default:"auto" enum:"auto|start|cold_start" applies:"kl!=none"`

	// Old log-probs. behaviour: the sampler's. recomputed: from another forward pass of the trainer. If this key and
	// tis_cap are absent and an agent's engine is vllm or sglang: recomputed.
	Old string `yaml:"old" default:"behaviour" enum:"behaviour|recomputed" derived:"true"`

	// Passes over a step's trajectories.
	Epochs int `yaml:"epochs" default:"1" min:"1" max:"1000" change:"resume"`

	// Optimizer updates of one pass; each uses whole queries.
	Minibatches int `yaml:"minibatches" default:"1" min:"1" max:"65536" change:"resume"`

	// Sampling temperature of rollouts; all log-probs are of softmax(logits / temperature).
	Temperature float64 `yaml:"temperature" default:"1" min:"1e-6"`

	// Largest age of a trajectory, in policy versions, relative to the weights that it trains. This number of steps is
	// rolled out ahead. A value above 0 needs old: recomputed and tis_cap, and the run is then deterministic only with
	// exact_lag.
	MaxLag int64 `yaml:"max_lag" default:"0" min:"0" max:"65536"`

	// Train only when max_lag steps, or all steps before the next evaluation, are rolled out ahead. A trajectory's age
	// then depends only on its step, and an uninterrupted run is deterministic. A resumed run begins with young
	// trajectories again. Meant for comparisons, because rollouts and training take turns.
	ExactLag bool `yaml:"exact_lag" default:"false"`

	// Largest share of a step's rollouts that may be removed because they failed or an answer could not be scored. If 3
	// steps in a row exceed it, the run ends with the reason, because the remaining rollouts are no longer a fair sample.
	// 1: the run never ends for this reason.
	MaxRemoved float64 `yaml:"max_removed" default:"0.25" min:"0" max:"1"`

	// Largest number of replacement queries of a step. A query whose main group is degenerate, so that the main agent
	// cannot learn from it, is replaced by another (dynamic sampling).
	Resample int `yaml:"resample" default:"0" min:"0" max:"65536"`

	// Warn when the mean |trainer - sampler| log-prob gap exceeds this (nats).
	GapWarn float64 `yaml:"gap_warn" default:"0.05" min:"0"`

	// Stop when the gap exceeds this (nats).
	GapStop float64 `yaml:"gap_stop" default:"0.2" above:"0"`

	// Mixtures of experts. replay: training sends each token through the experts that the sampler recorded for it,
	// with the trainer's own weights. free: the trainer's router chooses. See docs/algorithm.md, section 9.
	Routing string `yaml:"routing" default:"replay" enum:"replay|free"`

	// Warn when the trainer's router would choose other experts than the recorded ones for a larger share of tokens
	// (routing_differs).
	RoutingWarn float64 `yaml:"routing_warn" default:"0.1" min:"0" max:"1"`

	// Stop when the share exceeds this.
	RoutingStop float64 `yaml:"routing_stop" default:"0.5" above:"0" max:"1"`

	// Coefficient of the load-balancing loss of mixtures of experts; 0: off. Family lfm2_moe has no such loss. See
	// docs/algorithm.md, section 9.
	RouterAuxCoef float64 `yaml:"router_aux_coef" default:"0" min:"0"`

	mgrpo.RewardSettings `yaml:",inline"`
}

// Slack returns the number of steps by which an agent may be ahead of the others. If it is above 0, agents sample while
// they train.
func (g *GRPO) Slack() int64 {
	if g.ExactLag {
		return 0
	}
	return g.MaxLag
}

// Align configures how the invocations of a sub-agent are aligned to d per rollout.
type Align struct {
	// Aligned invocations per rollout, ideally about the 99th percentile of the number of calls. An agent can set its
	// own value.
	D int `yaml:"d" default:"8" min:"1" max:"65536"`

	// draw: duplicate and drop at random, as in the paper. balanced: weight d/d_k. none: weight 1.
	Mode string `yaml:"mode" default:"draw" enum:"draw|balanced|none"`
}

// Eval configures held-out evaluation during training. Only evaluation may use truncated sampling.
type Eval struct {
	// Steps between evaluations. The last step is always followed by an evaluation. 0: only the last step.
	Every int64 `yaml:"every" common:"true" default:"20" min:"0" max:"1e9"`

	// Number of held-out queries, or all queries if the task has fewer.
	Queries int `yaml:"queries" common:"true" default:"200" min:"1" max:"1e6"`

	// Rollouts of each query.
	Samples int `yaml:"samples" default:"4" min:"1" max:"4096"`

	// Sampling temperature; 0 is greedy.
	Temperature float64 `yaml:"temperature" default:"1" min:"0"`

	// Sample from the k most likely tokens; 0: all.
	TopK int `yaml:"top_k" default:"0" min:"0" max:"1e9"`

	// Sample from the smallest set of tokens with this probability.
	TopP float64 `yaml:"top_p" default:"1" above:"0" max:"1"`

	// Leave out tokens less likely than this times the most likely.
	MinP float64 `yaml:"min_p" default:"0" min:"0" max:"1"`

	// Also evaluate before the first step.
	Before bool `yaml:"before" default:"true"`
}

// ColdStart configures supervised training before the first step. Its steps, batch and optimizer are the defaults of
// each agent's cold_start.
type ColdStart struct {
	// none: no cold start. task: the task's own demonstrations. Otherwise the path of a file of chats: JSON lines, a JSON array, or
	// Parquet.
	Demonstrations Path `yaml:"demonstrations" common:"true" default:"none" words:"none|task|parts" off:"none"`

	// Number of queries with demonstrations. From a file of chats, each agent uses its first `queries` chats.
	Queries int `yaml:"queries" default:"3072" min:"1" max:"1e6"`

	Supervised Supervised `yaml:",inline"`
}

// Supervised sets the steps, batch and optimizer of an agent's cold start.
type Supervised struct {
	// Optimizer updates. 0: the agent has no cold start.
	Steps int64 `yaml:"steps" common:"true" default:"0" min:"0" max:"1e9"`

	// Trajectories of one update.
	Batch int `yaml:"batch" default:"32" min:"1" max:"65536"`

	// AdamW of the cold start, separate from training's AdamW.
	Optimizer Optimizer `yaml:"optimizer"`
}

// ConstantSchedule is the value of Optimizer.Schedule with which the rate stays at lr.
const ConstantSchedule = "constant"

// Optimizer configures AdamW with warm-up, schedule and clipping.
type Optimizer struct {
	// Learning rate.
	LR float64 `yaml:"lr" common:"true" default:"1e-6" above:"0"`

	// Decay rates of the two moments.
	Betas [2]float64 `yaml:"betas" default:"[0.9, 0.98]" min:"0" below:"1"`

	// Added to the square root of the second moment.
	Eps float64 `yaml:"eps" default:"1e-8" above:"0"`

	// Decoupled weight decay.
	WeightDecay float64 `yaml:"weight_decay" default:"0.01" min:"0"`

	// Largest global gradient norm; 0: no clipping.
	Clip float64 `yaml:"clip" default:"1" min:"0"`

	// Steps over which the rate rises linearly to lr.
	Warmup int64 `yaml:"warmup" default:"0" min:"0" max:"1e9"`

	// How the rate falls after the plateau (hold).
	Schedule string `yaml:"schedule" default:"constant" enum:"constant|linear|cosine" off:"constant"`

	// Fraction of lr at the end of linear and cosine.
	Floor float64 `yaml:"floor" default:"0.1" min:"0" max:"1" applies:"schedule=linear|cosine"`

	// Fraction of decay_steps during which the rate stays at lr.
	Hold float64 `yaml:"hold" default:"0" min:"0" max:"1" applies:"schedule=linear|cosine"`

	// Step at which the rate reaches the floor, where it then stays. 0: the last step; in a cold start, its own last
	// step. If --resume adds training steps, the schedule keeps its end unless this key is given.
	DecaySteps int64 `yaml:"decay_steps" default:"0" min:"0" max:"1e9" applies:"schedule=linear|cosine" derived:"true"`

	EndsWithRun bool `yaml:"-"` // decay_steps was not given
}
