package config

import "time"

// Agent is one member of the team.
type Agent struct {
	Name string `yaml:"-"`

	// main plans, delegates and answers; sub works on sub-tasks.
	Role string `yaml:"role" common:"true" required:"true" enum:"main|sub"`

	// Initial weights: a Hugging Face folder, a GGUF file, a model of the Hub by its name, or a
	// shape for random weights. The name is ORG/NAME or ORG/NAME@REVISION (a branch, a tag or a
	// commit). The model must be in the local cache (hf download ORG/NAME --revision REVISION).
	// Or a module of another architecture: {torchscript: FILE}. Or a model on another party's
	// server: {kind: openai, url: https://host/v1, name: MODEL, key_env: VARIABLE}.
	Model Model `yaml:"model" common:"true" required:"true"`

	// cpu, cuda or cuda:N.
	Device string `yaml:"device" common:"true" default:"cpu" change:"worker" derived:"true"`

	// Several devices in place of device, such as [cpu, cpu]. Each has its own process. They share the conversations,
	// the work of an update and AdamW's moments (docs/ranks.md).
	Devices []string `yaml:"devices" change:"worker"`

	// Several machines that provide devices for this agent (docs/ranks.md).
	Machines Machines `yaml:"machines" change:"worker"`

	// Precision of the weights in forward passes. auto: fp32 on CPU, bf16 on GPU. bf16 has an fp32 master copy if
	// training changes the weights. quantised: matrices stay in the blocks of the model's GGUF file and are
	// dequantised within the products. They are never trained, so this needs lora, or train: false without a cold start. It
	// does not work with servers that sample, or with engine.dtype.
	DType string `yaml:"dtype" default:"auto" enum:"auto|fp32|bf16|quantised"`

	// Low-rank adapters: the model's weights are frozen, and small matrices added to its linear layers are trained
	// (docs/adapters.md). Agents in one process with the same model and adapters share its weights in memory.
	LoRA LoRA `yaml:"lora"`

	// false: the agent takes part with frozen weights. A hosted model is always frozen.
	Train bool `yaml:"train" default:"true" off:"false" derived:"true"`

	// main: the sub-agents that it may call. Absent: all sub-agents.
	Delegates []string `yaml:"delegates" common:"true" derived:"true"`

	// Tools that it may call. The research task brings its own.
	Tools []string `yaml:"tools" common:"true"`

	// File with its system prompt.
	Prompt Path `yaml:"prompt"`

	// Its system prompt. Without prompt and prompt_text, the system prompt only describes the tools.
	PromptText string `yaml:"prompt_text" common:"true"`

	// main: its system prompt in the arm single, where it has the sub-agents' tools but no sub-agents. Absent: prompt
	// or prompt_text.
	PromptSingle string `yaml:"prompt_single"`

	// Variables of the model's chat template in addition to the standard ones, such as {enable_thinking: false}.
	// Requests of programs cannot change them in training.
	Template Variables `yaml:"template"`

	// sub: its description for the main agent. Absent: a line made from its name and tools.
	Describe string `yaml:"describe"`

	// Limits of a conversation. A conversation that reaches a limit counts as having an invalid format.
	Limits Limits `yaml:"limits"`

	// Alignment of this sub-agent's groups.
	Align AgentAlign `yaml:"align" inherits:"grpo.align"`

	// Weights of the KL reference, named as in model. Absent: see grpo.reference.
	Reference Path `yaml:"reference" hub:"true" applies:"grpo.kl!=none"`

	// AdamW of the training.
	Optimizer Optimizer `yaml:"optimizer" applies:"train" change:"resume"`

	// Where AdamW's moments are stored: 8 bytes per trained parameter, plus 4 bytes for the fp32 weights if the agent
	// computes in bf16. host: in the memory of the GPU's machine; during an update the GPU holds one piece at a time.
	OptimizerState string `yaml:"optimizer_state" default:"device" enum:"device|host" change:"worker"`

	// State that several devices divide among themselves. optimizer: AdamW's moments and, if the agent computes in
	// bf16, the fp32 weights and gradient. full: also the weights that passes read. The devices gather these one layer
	// at a time, except experts: rows are sent to the experts' devices instead (docs/ranks.md). full needs servers
	// that sample (engine.kind) and engine.checkpoint_activations.
	Shard string `yaml:"shard" default:"optimizer" enum:"optimizer|full" change:"worker"`

	// Cold start of this agent.
	ColdStart Supervised `yaml:"cold_start" inherits:"cold_start" applies:"cold_start.demonstrations!=none"`

	// The engine that samples the agent's turns; memory and batching.
	Engine Engine `yaml:"engine" change:"worker"`
}

// Machines configures the machines whose devices an agent uses. The agent's worker runs on the first machine.
type Machines struct {
	// Number of machines. Each provides the devices that device or devices names.
	Count int `yaml:"count" default:"1" min:"1" max:"64"`

	// HOST:PORT of the first machine. The agent's worker listens there, and the other machines connect to it.
	Address string `yaml:"address"`

	// Environment variable with a key of at least 16 random bytes, the same on all these machines. Anyone with the key
	// can read the agent's data and run computations on these machines.
	KeyEnv string `yaml:"key_env"`

	// File with the key; a newline at its end is ignored.
	KeyFile Path `yaml:"key_file"`
}

// LoRA configures the low-rank adapters that an agent trains in place of its model's weights.
type LoRA struct {
	// Rank of the adapters. 0: no adapters; all weights are trained.
	R int `yaml:"r" common:"true" default:"0" min:"0" max:"2048"`

	// The output of an adapter is multiplied by alpha/r. 0: by 1.
	Alpha float64 `yaml:"alpha" default:"0" min:"0"`

	// Modules with an adapter. They are given by the ends of their names in the checkpoint,
	// such as [q_proj, v_proj], or by one regular expression (RE2) for whole names. all-linear:
	// every linear map of the layers. Absent: all-linear.
	Targets []string `yaml:"targets" single:"true"`

	// true: the output is multiplied by alpha/sqrt(r).
	RSLoRA bool `yaml:"rslora" default:"false"`

	// Initial values. One of the two matrices is 0, so they do not change the model's output. uniform: the other
	// matrix as in PEFT, uniform between -1/sqrt(inputs) and 1/sqrt(inputs). gaussian: normal with standard deviation
	// 1/r. Otherwise a folder with an adapter in PEFT's format, to continue training; it has its own r, alpha, targets
	// and rslora.
	Init Path `yaml:"init" default:"uniform" words:"uniform|gaussian"`
}

// Limits bound a conversation.
type Limits struct {
	// Sampled turns of a conversation.
	MaxTurns int `yaml:"max_turns" common:"true" default:"8" min:"1" max:"10000"`

	// Calls in one turn.
	MaxCallsPerTurn int `yaml:"max_calls_per_turn" default:"4" min:"1" max:"1000"`

	// Sampled tokens of a turn.
	MaxNewTokens int `yaml:"max_new_tokens" default:"512" min:"1" max:"1e9"`

	// Tokens of a conversation, including prompt and observations, since it was last folded; the model's limit may be
	// lower. For a hosted model: as its server counts them, if it does.
	MaxTokens int `yaml:"max_tokens" common:"true" default:"4096" min:"1" max:"1e9"`

	// Time of a conversation, including waits for sub-agents and tools.
	WallTime time.Duration `yaml:"wall_time" default:"10m" above:"0s"`

	// Conversations that outgrow their context continue from a summary (docs/algorithm.md, section 5).
	Fold Fold `yaml:"fold"`
}

// Fold configures when a conversation is folded, and what follows the summary.
type Fold struct {
	// Once a conversation, with the results of its newest turn, has this number of tokens, the agent writes a summary
	// and continues from its prompt, the question and the summary. The summary is trained. It has at most
	// max_new_tokens and does not count towards max_turns. 0: never.
	At int `yaml:"at" default:"0" min:"0" max:"1e9"`

	// Number of last turns that follow the summary with their results, token by token, as far as they fit below at.
	Keep int `yaml:"keep" default:"0" min:"0" max:"10000"`
}

// AgentAlign is the part of Align that an agent can set.
type AgentAlign struct {
	// Aligned invocations of a rollout.
	D int `yaml:"d" min:"1" max:"65536"`
}

// Engine configures the engine that samples an agent's turns, and the sizes of its inference and training batches.
type Engine struct {
	// The engine. local: this program, on the agent's device. vllm, sglang: servers that you start (docs/engines.md);
	// the run is then not deterministic.
	Kind string `yaml:"kind" default:"local" enum:"local|vllm|sglang"`

	// vllm, sglang: base addresses of one or more servers for the agent's model, such as ["http://127.0.0.1:8000"]. No
	// other program may use them during the run.
	URL []string `yaml:"url" applies:"kind=vllm|sglang"`

	// vllm, sglang: environment variable with the servers' API key.
	KeyEnv string `yaml:"key_env" applies:"kind=vllm|sglang"`

	// vllm, sglang: how the servers get the agent's weights.
	Weights EngineWeights `yaml:"weights" applies:"kind=vllm|sglang"`

	// Sequences that sample at once on each device; for a hosted model, conversations at once. 0: as many as a step
	// can use, at most 128.
	Slots int `yaml:"slots" default:"0" min:"0" max:"65536"`

	// Conversations at once on each device, including those that wait for a tool, another agent or a slot. 0: as many
	// as slots.
	Conversations int `yaml:"conversations" default:"0" min:"0" max:"65536"`

	// Tokens of all conversations whose keys and values are cached on each device; at least one conversation must fit.
	// Waiting conversations make room for sampling ones and are computed again later. 0: slots × the longest
	// conversation.
	CacheTokens int `yaml:"cache_tokens" default:"0" min:"0" max:"1e9" applies:"kind=local"`

	// On a GPU, decode passes are captured once and replayed, as CUDA graphs. If that fails, they run without graphs,
	// and a message reports it. false: never use graphs.
	CUDAGraphs bool `yaml:"cuda_graphs" default:"true" applies:"kind=local"`

	// Tokens packed into one forward and backward pass; a common prefix of sequences counts once.
	MicroBatchTokens int `yaml:"micro_batch_tokens" default:"4096" min:"1" max:"1e9"`

	// Recompute activations in the backward pass: less memory, about a third more time.
	CheckpointActivations bool `yaml:"checkpoint_activations" default:"false"`

	// Weights for sampling. auto: the weights of training. bf16: on the CPU, a bf16 copy that is refreshed after each
	// update (the only copy if nothing trains the weights); log-probs then differ from the trainer's (grpo.gap_warn).
	DType string `yaml:"dtype" default:"auto" enum:"auto|bf16" applies:"kind=local"`

	// Keys and values of sampled sequences. auto: bf16 with dtype: bf16, or on a GPU that computes in bf16; else fp32.
	// bf16: on the CPU, half the memory, and faster turns in long conversations; log-probs then differ from the
	// trainer's, as with dtype.
	CacheDType string `yaml:"cache_dtype" default:"auto" enum:"auto|bf16" applies:"kind=local"`
}

// EngineWeights configures how servers get an agent's weights, and how exactly they must compute with them.
type EngineWeights struct {
	// Folder that this worker and the servers share under the same absolute path. Each version of the weights is a
	// Hugging Face folder in it. It is removed when all servers have the next version.
	Path Path `yaml:"path"`

	// Type of the weights in these folders.
	DType string `yaml:"dtype" default:"bf16" enum:"bf16|fp32"`

	// After each update the servers sample some tokens. If their log-probs differ from the trainer's by more than this
	// on average (nats), the run ends. 0: 0.05, with dtype fp32 0.001.
	Tolerance float64 `yaml:"tolerance" default:"0" min:"0" derived:"true"`
}
