// Package config is the YAML schema of mgrpo: the run, the store, the task, the algorithm, the agents and their tools.
//
// The structs of this file are the schema. The rest of the package reads their tags:
//
//	yaml       the key
//	doc        the meaning, printed in docs/config.md
//	default    the value of an absent key, written as in YAML
//	required   "true": the key must be present
//	common     "true": most runs set it; docs/config.md begins with these keys
//	enum       the allowed values, separated by |
//	family     "true": the allowed values are the families of trainer/model/arch
//	min, max   the smallest and the largest allowed value
//	above      the value must be greater than this bound
//	below      the value must be less than this bound
//	change     "resume": the key, or the section, may change between a checkpoint and its --resume;
//	           "worker": it may also differ between the workers of a team
//	keyed      "true": the field is an ordered mapping from Name to the slice's element
//	words      for a path: values that are words instead of paths, separated by |
//	hub        "true": for a path: it may be a model's name on the Hugging Face Hub, like an agent's model
//	single     "true": for a list: one text may stand for a list with one element
//	inherits   the section whose keys with the same name are the defaults
//
// Load reads a file, reports all unknown keys and bad values with file, line and column, and fills in the defaults.
// This package opens no model, data set or socket; Config.Find checks whether a model exists.
package config

import (
	"time"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Config is a configuration file with all defaults filled in.
type Config struct {
	Run       Run       `yaml:"run" required:"true" doc:"The run: its name, its folder and its length."`
	Store     Store     `yaml:"store" doc:"The Redis store through which the agents communicate. Absent: an embedded store, with all agents in one process." change:"worker"`
	Task      Task      `yaml:"task" doc:"The source of queries and the scoring of answers."`
	GRPO      GRPO      `yaml:"grpo" doc:"The algorithm: groups, alignment, objective. Names and defaults follow docs/algorithm.md."`
	Eval      Eval      `yaml:"eval" doc:"Held-out evaluation during training." change:"resume"`
	ColdStart ColdStart `yaml:"cold_start" doc:"Supervised training on demonstrations before the first step of M-GRPO."`
	Agents    []Agent   `yaml:"agents" keyed:"true" required:"true" doc:"The team, in this order: exactly one main agent and any number of sub-agents."`
	Tools     []Tool    `yaml:"tools" keyed:"true" doc:"Tools that agents name in their tools list. calculator and code need no entry."`
	Cache     Cache     `yaml:"cache" doc:"Answers of outside services, stored on disk: web pages, retrievers, judges, MCP servers (docs/tools.md)." change:"worker"`
	Gateway   Gateway   `yaml:"gateway" doc:"The team behind an OpenAI-compatible endpoint, so that your own program can hold its conversations (docs/programs.md)." change:"worker"`
	Tracking  Tracking  `yaml:"tracking" doc:"Experiment trackers that receive the run's records during the run (docs/tracking.md)." change:"worker"`
	Health    Health    `yaml:"health" doc:"The HTTP endpoint of a process: GET /healthz (the process runs), /readyz (it takes part in the run), /metrics (Prometheus) and /live (a live page of the run)." change:"worker"`

	dir string              // folder of the file; relative paths start from it
	at  map[string]position // position of each given key
}

// Run holds the name, the folder and the length of a run.
type Run struct {
	Name            string `yaml:"name" common:"true" required:"true" doc:"Name of the run: a letter, then letters, digits, dashes and underscores. Also names its keys in the store."`
	Dir             Path   `yaml:"dir" common:"true" doc:"Folder for checkpoints, ledgers, metrics and trajectories. All workers may share it, or each server may have its own. Absent: runs/NAME." change:"worker"`
	Seed            uint64 `yaml:"seed" default:"0" doc:"Seed of everything random: query order, sampling, alignment draws, initial weights."`
	Steps           int64  `yaml:"steps" common:"true" default:"100" min:"0" doc:"Number of training steps, including the steps before a resume." change:"resume"`
	CheckpointEvery int64  `yaml:"checkpoint_every" common:"true" default:"20" min:"0" doc:"Steps between checkpoints. The last step, and every step with the best evaluation so far, also write one. 0: only these steps do." change:"resume"`
	Keep            int    `yaml:"keep" default:"2" min:"2" doc:"Number of newest checkpoints to keep. The best checkpoint, and the checkpoint of step 0, which contains the cold start, are kept in addition." change:"resume"`
	SaveDType       string `yaml:"save_dtype" default:"auto" enum:"auto|fp32|bf16" doc:"Type of the weights in a checkpoint's Hugging Face folders. auto: each tensor has the type of the initial weights if they are bf16, or fp16, with or without some in fp32; else fp32. Training always resumes from fp32: if a folder has 16-bit weights, the optimizer's file contains the fp32 weights." change:"resume"`
	Save            string `yaml:"save" default:"whole" enum:"whole|text" doc:"Contents of a checkpoint of a model that is more than a language model, such as one that reads images. whole: the folder as it was loaded, with copies of the parts that are not trained. text: only the language model, as a separate model; adapters still belong to the whole model." change:"resume"`
	SaveMoments     bool   `yaml:"save_moments" default:"true" doc:"Checkpoints contain AdamW's moments, two fp32 values for each trained parameter. false: a checkpoint takes a third of the space (less than half if weights are saved in 16 bits), and a resume begins with moments of 0 and reports this. The weights are then exact, but the run differs from an uninterrupted one." change:"resume"`
	Deterministic   *bool  `yaml:"deterministic" doc:"true: refuse to run if equal seeds and CPU features do not guarantee bit-equal results. Absent: runs on the CPU are deterministic, other runs may not be."`
	GPUDeterminism  bool   `yaml:"gpu_deterministic" default:"false" doc:"true: training on a GPU uses algorithms that give the same bits for the same batch. The backward pass of attention then takes 10 to 20 % longer. false: attention adds up the gradients of queries in a varying order, so two trainings on a GPU differ by rounding. In either case, sampling on a GPU depends on which sequences share a pass." change:"worker"`
	Arm             string `yaml:"arm" default:"team" enum:"team|main_only|single" doc:"team: all agents learn. main_only: sub-agents take part with frozen weights. single: only the main agent, with the tools of the whole team."`
	Date            string `yaml:"date" doc:"Date, as YYYY-MM-DD, that chat templates print as today. Absent: the day on which the main agent's worker begins the run, which --resume keeps." change:"worker"`
	Matmul          string `yaml:"matmul" default:"fp32" enum:"fp32|bf16" doc:"Matrix products in training on a CPU. bf16: if the processor has instructions for it (AMX or avx512_bf16), factors are rounded to bf16 and products summed in fp32, in about half the time; on other processors the same as fp32. Weights, activations and gradients stay fp32. Products with quantised weights are not rounded, nor, without AMX, products of adapters. With avx512_bf16 and without AMX, engines with dtype: bf16 also round their activations in products."`
	Threads         int    `yaml:"threads" default:"0" min:"0" max:"4096" doc:"CPU threads, divided among the agents of this process; generation also uses the threads of idle agents. 0: one for each core that the process may use according to its affinity and its control groups' quota, rounded down, at least 1." change:"worker"`
}

// Store is the Redis store through which the agents communicate. The password comes from an environment variable or a
// file and is never in the configuration.
type Store struct {
	URL           string        `yaml:"url" doc:"redis://HOST:PORT/DB, rediss:// for TLS, unix:///SOCKET. Sentinel: rediss://HOST:PORT/DB?master_name=NAME&addr=HOST:PORT. Cluster: rediss://HOST:PORT?addr=HOST:PORT. It must not contain a password. Absent: embedded."`
	Username      string        `yaml:"username" doc:"ACL user; url may contain it instead."`
	PasswordEnv   string        `yaml:"password_env" doc:"Environment variable with the password."`
	PasswordFile  Path          `yaml:"password_file" doc:"File with the password; a newline at its end is ignored."`
	TLS           TLS           `yaml:"tls" doc:"Certificates for rediss://. Absent: the system's authorities."`
	AllowInsecure string        `yaml:"allow_insecure" enum:"|anyone may read and write" doc:"Must be the words 'anyone may read and write' to use a store on another machine with neither TLS nor password."`
	AllowVolatile string        `yaml:"allow_volatile" enum:"|data may be lost" doc:"Must be the words 'data may be lost' to use a Redis without appendonly yes and maxmemory-policy noeviction."`
	Timeout       time.Duration `yaml:"timeout" default:"30m" above:"0s" doc:"Longest wait for another agent. After that the run stops and names the missing agent. The same limit applies to the ranks of an agent with several devices; a rank that exceeds it counts as lost."`
	Lease         time.Duration `yaml:"lease" default:"15s" min:"1s" max:"10m" doc:"A worker without a sign of life for this long is considered dead, and its work is given to another worker."`
	MaxDeliveries int           `yaml:"max_deliveries" default:"5" min:"1" doc:"An invocation fails after this number of its agent's workers crashed while working on it, because it may be the cause of the crashes."`
}

// TLS names the certificates for a rediss:// store.
type TLS struct {
	CA         Path   `yaml:"ca" doc:"PEM file of the authorities that may sign the server's certificate."`
	Cert       Path   `yaml:"cert" doc:"PEM file of the client's certificate."`
	Key        Path   `yaml:"key" doc:"PEM file of the client's key."`
	ServerName string `yaml:"server_name" doc:"Name that the server's certificate must carry. Absent: the host of url."`
}

// Task is the source of queries and the scoring of answers.
type Task struct {
	Kind           string    `yaml:"kind" common:"true" default:"research" enum:"research|jsonl|gsm8k|go" doc:"research: built in, generated. jsonl: your own questions and answers. gsm8k: the GSM8K files as published. go: a Go program that uses the trainer as a library brings its task (docs/library.md)."`
	Train          Path      `yaml:"train" common:"true" doc:"File of training queries: JSON lines, a JSON array, Parquet, .csv or .tsv (jsonl, gsm8k)."`
	Eval           Path      `yaml:"eval" common:"true" doc:"File of held-out queries, in the same formats (jsonl, gsm8k)." change:"resume"`
	EvalSets       []EvalSet `yaml:"eval_sets" keyed:"true" doc:"jsonl: further sets of held-out queries, by name. Evaluations report each set; only eval decides which version is best." change:"resume"`
	Curriculum     []Stage   `yaml:"curriculum" keyed:"true" doc:"jsonl: stages of the training, by name, one after another from step 1 on. Each stage trains on some of the rows for its steps; after the last stage, training uses all rows."`
	Layout         string    `yaml:"layout" default:"rows" enum:"rows|hotpotqa|2wiki|musique|frames|fanoutqa|webwalkerqa|gaia|browsecomp|verl|sharegpt" doc:"jsonl: names of the fields in the files. rows: as set in fields. Others: the published form of that benchmark, or the form of that framework's rows (docs/verifiers.md)."`
	Fields         Fields    `yaml:"fields" doc:"Names of the fields of a row, with layout rows. Dots select within objects and lists, as in reward_model.ground_truth or answers.0.text; a column with exactly this name takes precedence. The verifier receives all fields."`
	QueriesPerStep int       `yaml:"queries_per_step" common:"true" default:"16" min:"1" max:"65536" doc:"Queries of one step (Q)." change:"resume"`
	Verifier       Verifier  `yaml:"verifier" doc:"How the main agent's answer is scored (jsonl, gsm8k)."`
	Expert         Verifier  `yaml:"expert" doc:"How a sub-agent's answer is scored: its expert score (jsonl, gsm8k). Absent: as verifier."`
	Judge          Judge     `yaml:"judge" doc:"The model that scores answers if a verifier's kind is judge."`
	Program        Program   `yaml:"program" doc:"The program that plays the rollouts, in place of the main agent's own conversation. It calls the agents through the gateway (docs/programs.md)."`
	Research       Research  `yaml:"research" doc:"The generated task: its knowledge bases and the mistakes in its demonstrations."`
}

// Tracking names the experiment trackers that receive a run's records. The environment variables of the trackers' own
// clients hold the credentials.
type Tracking struct {
	WandB  string `yaml:"wandb" doc:"Project of Weights & Biases."`
	MLflow string `yaml:"mlflow" doc:"URI/EXPERIMENT: an experiment on an MLflow server, such as http://127.0.0.1:5000/agents. Only EXPERIMENT: on the server in MLFLOW_TRACKING_URI."`
	Python string `yaml:"python" default:"python3" doc:"Python that has the package wandb or mlflow."`
}

// EvalSet is a further set of held-out queries.
type EvalSet struct {
	Name   string `yaml:"-"`
	Path   Path   `yaml:"path" required:"true" doc:"File of its queries, in the same formats as eval."`
	Layout string `yaml:"layout" default:"rows" enum:"rows|hotpotqa|2wiki|musique|frames|fanoutqa|webwalkerqa|gaia|browsecomp|verl|sharegpt" doc:"Names of the fields in the file, as for task.layout."`
}

// Stage is a part of the training that uses some of the training rows.
type Stage struct {
	Name     string   `yaml:"-"`
	Steps    int64    `yaml:"steps" required:"true" min:"1" doc:"Training steps of the stage."`
	Kinds    []string `yaml:"kinds" doc:"Rows of these kinds (task.fields.kind). Absent: of any kind."`
	Levels   []string `yaml:"levels" doc:"Rows of these levels (task.fields.level). Absent: of any level."`
	MinParts int      `yaml:"min_parts" default:"0" min:"0" doc:"Rows with at least this number of parts."`
	MaxParts int      `yaml:"max_parts" default:"0" min:"0" doc:"Rows with at most this number of parts. 0: any number."`
	Balance  bool     `yaml:"balance" default:"false" doc:"Kinds take turns, so that all kinds appear equally often, and a row of a rare kind appears more often than others."`
}

// Fields are the names of the fields that the task reads from a row.
type Fields struct {
	ID       string `yaml:"id" default:"id" doc:"Row id. A row without this field uses its row number."`
	Question string `yaml:"question" default:"question" doc:"Text of the query, or messages: one user message, optionally after a system message, whose text is put in front of it."`
	Answer   string `yaml:"answer" default:"answer" doc:"Reference answer, or a list of accepted answers."`
	Choices  string `yaml:"choices" default:"choices" doc:"List of choices, for the verifier of that kind."`
	Kind     string `yaml:"kind" default:"kind" doc:"Kind of question; evaluations report each kind."`
	Level    string `yaml:"level" default:"level" doc:"Difficulty; evaluations report each level."`
	Parts    string `yaml:"parts" default:"parts" doc:"List of sub-questions, {question, answer}, for the expert of that kind and for demonstrations."`
}

// Verifier configures how one answer is converted into a score in [0, 1].
type Verifier struct {
	Kind      string        `yaml:"kind" common:"true" default:"auto" enum:"auto|exact|normalized|exact_match|f1|quantity|numeric|choice|regex|parts|judge|program|torchscript" doc:"auto: gsm8k numeric, jsonl normalized. parts, only for expert: as task.verifier, but compared with the part of the question that the sub-task asks for. numeric reads \\boxed, ####, or the last number. program: a program in any language. torchscript: a module that scores. See docs/verifiers.md."`
	Pattern   string        `yaml:"pattern" doc:"regex: RE2 pattern; its first group, or the whole match, is compared with the reference answer."`
	Tolerance float64       `yaml:"tolerance" default:"0" min:"0" doc:"numeric, quantity: greatest absolute difference that still counts as equal."`
	Relative  float64       `yaml:"relative" default:"0" min:"0" doc:"numeric, quantity: the same limit as a fraction of the reference answer. The larger of the two limits applies."`
	Overlap   float64       `yaml:"overlap" default:"1" above:"0" max:"1" doc:"parts, only for expert: smallest fraction of a part's words that a sub-task must contain to ask for it. See docs/verifiers.md."`
	Command   []string      `yaml:"command" doc:"program: program and arguments, without a shell. It reads a JSON line for each answer and writes a JSON line with its score."`
	Dir       Path          `yaml:"dir" default:"." doc:"program: working folder. Absent: the folder of this file." change:"worker"`
	Timeout   time.Duration `yaml:"timeout" default:"60s" above:"0s" doc:"program: longest wait for one score." change:"worker"`
	Path      Path          `yaml:"path" doc:"torchscript: the module, as torch.jit.save writes it. Loading it runs its code, so use only files from people you trust."`
	Tokenizer Path          `yaml:"tokenizer" doc:"torchscript: folder with the tokenizer.json that the module was trained with, and its chat template if it has one."`
	MaxTokens int           `yaml:"max_tokens" default:"4096" min:"1" doc:"torchscript: largest number of tokens of a question with its answer; a longer one gets no score."`
}

// Program plays rollouts through the gateway.
type Program struct {
	Command   []string      `yaml:"command" doc:"Program and arguments, without a shell, started once for each rollout by the main agent's worker. Absent, and elsewhere false: the main agent plays the rollouts itself." change:"worker"`
	Elsewhere bool          `yaml:"elsewhere" default:"false" doc:"true: programs on any machine request rollouts (mgrpo rollout), in place of command."`
	Dir       Path          `yaml:"dir" default:"." doc:"Working folder of the command. Absent: the folder of this file." change:"worker"`
	Parallel  int           `yaml:"parallel" default:"8" min:"1" max:"4096" doc:"Commands that run at once." change:"worker"`
	Timeout   time.Duration `yaml:"timeout" default:"10m" above:"0s" doc:"Time limit of a program. If a program takes longer, its rollout has failed." change:"worker"`
	Lease     time.Duration `yaml:"lease" default:"1m" min:"1s" doc:"Programs elsewhere: if a program does not renew its rollout for this long, another program gets it as the next attempt." change:"worker"`
}

// Judge is an OpenAI-compatible model that scores answers.
type Judge struct {
	URL     string        `yaml:"url" doc:"Base URL of an OpenAI-compatible API, such as https://host/v1."`
	Model   string        `yaml:"model" doc:"Model name sent to it."`
	KeyEnv  string        `yaml:"key_env" doc:"Environment variable with the API key." change:"worker"`
	Prompt  Path          `yaml:"prompt" doc:"File with the judge's instructions; {question}, {reference}, {answer}, {scale} and {row} (the row as JSON) are replaced. Absent: the built-in prompt."`
	Scale   float64       `yaml:"scale" default:"1" above:"0" doc:"Best score that the judge can give; scores are divided by it."`
	Timeout time.Duration `yaml:"timeout" default:"60s" above:"0s" doc:"Longest wait for one reply." change:"worker"`
	Retries int           `yaml:"retries" default:"5" min:"0" max:"20" doc:"Number of times that a request is repeated after a time-out, a broken connection, or the status 408, 425, 429 or 5xx. Pauses double from half a second, or follow Retry-After." change:"worker"`
}

// Research sets the knowledge bases of the built-in task and the scripted experts of its cold start.
type Research struct {
	Hops     int     `yaml:"hops" default:"3" min:"1" max:"3" doc:"Largest number of hops of a question; each number from 1 is equally likely."`
	Parts    int     `yaml:"parts" default:"0" min:"0" max:"6" doc:"Largest number of parts of a fan-out question, in place of hops. Each number from 1 is equally likely. Each part asks for its own name, and the answer is all the names; its score is the fraction that is right. The planner may call twelve times. 0: chains of hops."`
	Alias    float64 `yaml:"alias" default:"0.25" min:"0" max:"1" doc:"Probability that a hop's subject is stored under an alias."`
	Outdated float64 `yaml:"outdated" default:"0.5" min:"0" max:"1" doc:"Probability that a hop's fact has an outdated twin."`
	Failures float64 `yaml:"failures" default:"0" min:"0" max:"1" doc:"Probability that a search finds nothing, also in demonstrations. Whether it does depends only on the seed and the position of the call."`
	Keyword  float64 `yaml:"keyword" default:"0.06" min:"0" max:"1" doc:"Demonstrations: the researcher searches for one word instead of two."`
	Random   float64 `yaml:"random" default:"0.03" min:"0" max:"1" doc:"Demonstrations: the researcher quotes a random sentence."`
	Was      float64 `yaml:"was" default:"0.55" min:"0" max:"1" doc:"Demonstrations: the researcher quotes the outdated twin."`
	GiveUp   float64 `yaml:"give_up" default:"0.55" min:"0" max:"1" doc:"Demonstrations: the researcher sees an alias and does not follow it."`
	Early    float64 `yaml:"early" default:"0.08" min:"0" max:"1" doc:"Demonstrations: the planner answers before the last hop."`
	WrongRel float64 `yaml:"wrong_relation" default:"0.05" min:"0" max:"1" doc:"Demonstrations: the planner asks for a random relation."`
	Reask    float64 `yaml:"reask" default:"0.6" min:"0" max:"1" doc:"Demonstrations: the planner asks again after the answer unknown."`
}

// GRPO holds the settings of the algorithm: groups, alignment, advantages and loss.
type GRPO struct {
	Rollouts        int     `yaml:"rollouts" common:"true" default:"8" min:"2" max:"4096" doc:"Rollouts of each query (K). They are compared with each other, so a single rollout would have no advantage." change:"resume"`
	Align           Align   `yaml:"align" doc:"Alignment: how rollouts with different numbers of sub-agent calls get equal weight."`
	SubGroup        string  `yaml:"sub_group" default:"query" enum:"query|batch" doc:"Which of a sub-agent's invocations are compared with each other: the invocations of a query, as in the paper, or all invocations of a step."`
	Convention      string  `yaml:"convention" default:"population" enum:"population|sample|none|leave_one_out|leave_one_out_std" doc:"How advantages are normalised: the standard deviation that divides them, or the baseline. See docs/algorithm.md, section 4."`
	StdEps          float64 `yaml:"std_eps" default:"0" min:"0" doc:"Added to the standard deviation (population, sample)."`
	SigmaMin        float64 `yaml:"sigma_min" default:"1e-6" min:"0" doc:"A population group with a standard deviation below this is degenerate: its advantages are 0. Under every convention, a group whose rewards are equal up to rounding is degenerate, too."`
	mgrpo.Objective `yaml:",inline"`
	Reference       string              `yaml:"reference" default:"auto" enum:"auto|start|cold_start" doc:"KL reference of agents without their own reference. start: the weights at the start of the run. cold_start: the weights after the cold start, which the run stores in run.dir. auto: cold_start for an agent with a cold start, otherwise start."`
	Old             string              `yaml:"old" default:"behaviour" enum:"behaviour|recomputed" doc:"Old log-probs. behaviour: the sampler's. recomputed: from another forward pass of the trainer. If this key and tis_cap are absent and an agent's engine is vllm or sglang: recomputed."`
	Epochs          int                 `yaml:"epochs" default:"1" min:"1" max:"1000" doc:"Passes over a step's trajectories." change:"resume"`
	Minibatches     int                 `yaml:"minibatches" default:"1" min:"1" max:"65536" doc:"Optimizer updates of one pass; each uses whole queries." change:"resume"`
	Temperature     float64             `yaml:"temperature" default:"1" min:"1e-6" doc:"Sampling temperature of rollouts; all log-probs are of softmax(logits / temperature)."`
	MaxLag          int64               `yaml:"max_lag" default:"0" min:"0" doc:"Largest age of a trajectory, in policy versions, relative to the weights that it trains. This number of steps is rolled out ahead. A value above 0 needs old: recomputed and tis_cap, and the run is then deterministic only with exact_lag."`
	ExactLag        bool                `yaml:"exact_lag" default:"false" doc:"Train only when max_lag steps, or all steps before the next evaluation, are rolled out ahead. A trajectory's age then depends only on its step, and an uninterrupted run is deterministic. A resumed run begins with young trajectories again. Meant for comparisons, because rollouts and training take turns."`
	MaxRemoved      float64             `yaml:"max_removed" default:"0.25" min:"0" max:"1" doc:"Largest share of a step's rollouts that may be removed, because an answer could not be scored or a trajectory was lost. If 3 steps in a row exceed it, the run ends with the reason, because the remaining rollouts are no longer a fair sample. 1: the run never ends for this reason."`
	Resample        int                 `yaml:"resample" default:"0" min:"0" doc:"Largest number of replacement queries of a step. A query whose main group is degenerate, so that the main agent cannot learn from it, is replaced by another (dynamic sampling)."`
	GapWarn         float64             `yaml:"gap_warn" default:"0.05" min:"0" doc:"Warn when the mean |trainer - sampler| log-prob gap exceeds this (nats)."`
	GapStop         float64             `yaml:"gap_stop" default:"0.2" above:"0" doc:"Stop when the gap exceeds this (nats)."`
	Routing         string              `yaml:"routing" default:"replay" enum:"replay|free" doc:"Mixtures of experts. replay: training sends each token through the experts that the sampler recorded for it, with the trainer's own weights. free: the trainer's router chooses. See docs/algorithm.md, section 9."`
	RoutingWarn     float64             `yaml:"routing_warn" default:"0.1" min:"0" max:"1" doc:"Warn when the trainer's router would choose other experts than the recorded ones for a larger share of tokens (routing_differs)."`
	RoutingStop     float64             `yaml:"routing_stop" default:"0.5" above:"0" max:"1" doc:"Stop when the share exceeds this."`
	RouterAuxCoef   float64             `yaml:"router_aux_coef" default:"0" min:"0" doc:"Coefficient of the load-balancing loss of mixtures of experts; 0: off. Family lfm2_moe has no such loss. See docs/algorithm.md, section 9."`
	Reward          mgrpo.RewardWeights `yaml:"reward" doc:"Weights of the parts of a reward. A trajectory with an invalid format has reward 0."`
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
	D    int    `yaml:"d" default:"8" min:"1" max:"65536" doc:"Aligned invocations per rollout, ideally about the 99th percentile of the number of calls. An agent can set its own value."`
	Mode string `yaml:"mode" default:"draw" enum:"draw|balanced|none" doc:"draw: duplicate and drop at random, as in the paper. balanced: weight d/d_k. none: weight 1."`
}

// Eval configures held-out evaluation during training. Only evaluation may use truncated sampling.
type Eval struct {
	Every       int64   `yaml:"every" common:"true" default:"20" min:"0" doc:"Steps between evaluations. The last step is always followed by an evaluation. 0: only the last step."`
	Queries     int     `yaml:"queries" common:"true" default:"200" min:"1" doc:"Number of held-out queries, or all queries if the task has fewer."`
	Samples     int     `yaml:"samples" default:"4" min:"1" max:"4096" doc:"Rollouts of each query."`
	Temperature float64 `yaml:"temperature" default:"1" min:"0" doc:"Sampling temperature; 0 is greedy."`
	TopK        int     `yaml:"top_k" default:"0" min:"0" doc:"Sample from the k most likely tokens; 0: all."`
	TopP        float64 `yaml:"top_p" default:"1" above:"0" max:"1" doc:"Sample from the smallest set of tokens with this probability."`
	MinP        float64 `yaml:"min_p" default:"0" min:"0" max:"1" doc:"Leave out tokens less likely than this times the most likely."`
	Before      bool    `yaml:"before" default:"true" doc:"Also evaluate before the first step."`
}

// ColdStart configures supervised training before the first step. Its steps, batch and optimizer are the defaults of
// each agent's cold_start.
type ColdStart struct {
	Demonstrations Path       `yaml:"demonstrations" common:"true" default:"none" words:"none|task|parts" doc:"none: no cold start. task: the task's own demonstrations. parts: made from the parts of the training queries. Otherwise the path of a file of chats: JSON lines, a JSON array, or Parquet."`
	Queries        int        `yaml:"queries" default:"3072" min:"1" doc:"Number of queries with demonstrations."`
	Sloppiness     Sloppiness `yaml:"sloppiness" doc:"Demonstrations made from parts: probabilities of mistakes that training should unlearn."`
	Supervised     Supervised `yaml:",inline"`
}

// Sloppiness holds the probabilities of mistakes in demonstrations made from parts.
type Sloppiness struct {
	Skip    float64 `yaml:"skip" default:"0.1" min:"0" max:"1" doc:"The main agent skips a part of a question with several parts."`
	Again   float64 `yaml:"again" default:"0.2" min:"0" max:"1" doc:"The main agent asks again for a part that was answered."`
	GiveUp  float64 `yaml:"give_up" default:"0.3" min:"0" max:"1" doc:"An agent that found nothing does not try again."`
	Narrow  float64 `yaml:"narrow" default:"0.3" min:"0" max:"1" doc:"A search uses only one half of the question's words."`
	Misread float64 `yaml:"misread" default:"0.2" min:"0" max:"1" doc:"An agent quotes another value of the passage."`
}

// Supervised sets the steps, batch and optimizer of an agent's cold start.
type Supervised struct {
	Steps     int64     `yaml:"steps" common:"true" default:"0" min:"0" doc:"Optimizer updates. 0: the agent has no cold start."`
	Batch     int       `yaml:"batch" default:"32" min:"1" doc:"Trajectories of one update."`
	Optimizer Optimizer `yaml:"optimizer" doc:"AdamW of the cold start, separate from training's AdamW."`
}

// Optimizer configures AdamW with warm-up, schedule and clipping.
type Optimizer struct {
	LR          float64    `yaml:"lr" common:"true" default:"1e-6" above:"0" doc:"Learning rate."`
	Betas       [2]float64 `yaml:"betas" default:"[0.9, 0.98]" min:"0" below:"1" doc:"Decay rates of the two moments."`
	Eps         float64    `yaml:"eps" default:"1e-8" above:"0" doc:"Added to the square root of the second moment."`
	WeightDecay float64    `yaml:"weight_decay" default:"0.01" min:"0" doc:"Decoupled weight decay."`
	Clip        float64    `yaml:"clip" default:"1" min:"0" doc:"Largest global gradient norm; 0: no clipping."`
	Warmup      int64      `yaml:"warmup" default:"0" min:"0" doc:"Steps over which the rate rises linearly to lr."`
	Schedule    string     `yaml:"schedule" default:"constant" enum:"constant|linear|cosine" doc:"How the rate falls after the plateau (hold)."`
	Floor       float64    `yaml:"floor" default:"0.1" min:"0" max:"1" doc:"Fraction of lr at the end of linear and cosine."`
	Hold        float64    `yaml:"hold" default:"0" min:"0" max:"1" doc:"Fraction of decay_steps during which the rate stays at lr."`
	DecaySteps  int64      `yaml:"decay_steps" default:"0" min:"0" doc:"Step at which the rate reaches the floor, where it then stays. 0: run.steps at the start of the run; if --resume adds steps, the schedule keeps its end unless this key is given."`

	EndsWithRun bool `yaml:"-"` // decay_steps was not given
}

// Agent is one member of the team.
type Agent struct {
	Name         string     `yaml:"-"`
	Role         string     `yaml:"role" common:"true" required:"true" enum:"main|sub" doc:"main plans, delegates and answers; sub works on sub-tasks."`
	Model        Model      `yaml:"model" common:"true" required:"true" doc:"Initial weights: a Hugging Face folder, a GGUF file, the name of a model on the Hub, ORG/NAME or ORG/NAME@REVISION (a branch, a tag or a commit), that is in the local cache (hf download ORG/NAME --revision REVISION), or a shape for random weights. Or a module of another architecture: {torchscript: FILE}. Or a model on another party's server: {kind: openai, url: https://host/v1, name: MODEL, key_env: VARIABLE}."`
	Device       string     `yaml:"device" common:"true" default:"cpu" doc:"cpu, cuda or cuda:N." change:"worker"`
	Devices      []string   `yaml:"devices" doc:"Several devices in place of device, such as [cpu, cpu]. Each has its own process. They share the conversations, the work of an update and AdamW's moments (docs/ranks.md)." change:"worker"`
	Machines     Machines   `yaml:"machines" doc:"Several machines that provide devices for this agent (docs/ranks.md)." change:"worker"`
	DType        string     `yaml:"dtype" default:"auto" enum:"auto|fp32|bf16|quantised" doc:"Precision of the weights in forward passes. auto: fp32 on CPU, bf16 on GPU. bf16 has an fp32 master copy if training changes the weights. quantised: matrices stay in the blocks of the model's GGUF file and are dequantised within the products. They are never trained, so this needs lora or train: false."`
	LoRA         LoRA       `yaml:"lora" doc:"Low-rank adapters: the model's weights are frozen, and small matrices added to its linear layers are trained (docs/adapters.md). Agents in one process with the same model and adapters share its weights in memory."`
	Train        bool       `yaml:"train" default:"true" doc:"false: the agent takes part with frozen weights. A hosted model is always frozen."`
	Delegates    []string   `yaml:"delegates" common:"true" doc:"main: the sub-agents that it may call. Absent: all sub-agents."`
	Tools        []string   `yaml:"tools" common:"true" doc:"Tools that it may call. The research task brings its own."`
	Prompt       Path       `yaml:"prompt" doc:"File with its system prompt."`
	PromptText   string     `yaml:"prompt_text" common:"true" doc:"Its system prompt. Without prompt and prompt_text, the system prompt only describes the tools."`
	PromptSingle string     `yaml:"prompt_single" doc:"main: its system prompt in the arm single, where it has the sub-agents' tools but no sub-agents. Absent: prompt or prompt_text."`
	Template     Variables  `yaml:"template" doc:"Variables of the model's chat template in addition to the standard ones, such as {enable_thinking: false}. Requests of programs cannot change them in training."`
	Describe     string     `yaml:"describe" doc:"sub: its description for the main agent. Absent: a line made from its name and tools."`
	Limits       Limits     `yaml:"limits" doc:"Limits of a conversation. A conversation that reaches a limit counts as having an invalid format."`
	Align        AgentAlign `yaml:"align" inherits:"grpo.align" doc:"Alignment of this sub-agent's groups."`
	Reference    Path       `yaml:"reference" hub:"true" doc:"Weights of the KL reference, named as in model. Absent: see grpo.reference."`
	Optimizer    Optimizer  `yaml:"optimizer" doc:"AdamW of the training." change:"resume"`
	State        string     `yaml:"optimizer_state" default:"device" enum:"device|host" doc:"Where AdamW's moments are stored: 8 bytes per trained parameter, plus 4 bytes for the fp32 weights if the agent computes in bf16. host: in the memory of the GPU's machine; during an update the GPU holds one piece at a time." change:"worker"`
	Shard        string     `yaml:"shard" default:"optimizer" enum:"optimizer|full" doc:"State that several devices divide among themselves. optimizer: AdamW's moments and, if the agent computes in bf16, the fp32 weights and gradient. full: also the weights that passes read. The devices gather these one layer at a time, except experts: rows are sent to the experts' devices instead (docs/ranks.md). full needs servers that sample (engine.kind) and engine.checkpoint_activations." change:"worker"`
	ColdStart    Supervised `yaml:"cold_start" inherits:"cold_start" doc:"Cold start of this agent."`
	Engine       Engine     `yaml:"engine" doc:"The engine that samples the agent's turns; memory and batching." change:"worker"`
}

// Machines configures the machines whose devices an agent uses. The agent's worker runs on the first machine.
type Machines struct {
	Count   int    `yaml:"count" default:"1" min:"1" max:"64" doc:"Number of machines. Each provides the devices that device or devices names."`
	Address string `yaml:"address" doc:"HOST:PORT of the first machine. The agent's worker listens there, and the other machines connect to it."`
	KeyEnv  string `yaml:"key_env" doc:"Environment variable with a key of at least 16 random bytes, the same on all these machines. Anyone with the key can read the agent's data and run computations on these machines."`
	KeyFile Path   `yaml:"key_file" doc:"File with the key; a newline at its end is ignored."`
}

// LoRA configures the low-rank adapters that an agent trains in place of its model's weights.
type LoRA struct {
	R       int      `yaml:"r" common:"true" default:"0" min:"0" max:"2048" doc:"Rank of the adapters. 0: no adapters; all weights are trained."`
	Alpha   float64  `yaml:"alpha" default:"0" min:"0" doc:"The output of an adapter is multiplied by alpha/r. 0: by 1."`
	Targets []string `yaml:"targets" single:"true" doc:"Modules with an adapter: the ends of their names in the checkpoint, such as [q_proj, v_proj], or one regular expression (RE2) for whole names, or all-linear: every linear map of the layers. Absent: all-linear."`
	RSLoRA  bool     `yaml:"rslora" default:"false" doc:"true: the output is multiplied by alpha/sqrt(r)."`
	Init    Path     `yaml:"init" default:"uniform" words:"uniform|gaussian" doc:"Initial values. One of the two matrices is 0, so they do not change the model's output. uniform: the other matrix as in PEFT, uniform between -1/sqrt(inputs) and 1/sqrt(inputs). gaussian: normal with standard deviation 1/r. Otherwise a folder with an adapter in PEFT's format, to continue training; it has its own r, alpha, targets and rslora."`
}

// Limits bound a conversation.
type Limits struct {
	MaxTurns        int           `yaml:"max_turns" common:"true" default:"8" min:"1" max:"10000" doc:"Sampled turns of a conversation."`
	MaxCallsPerTurn int           `yaml:"max_calls_per_turn" default:"4" min:"1" max:"1000" doc:"Calls in one turn."`
	MaxNewTokens    int           `yaml:"max_new_tokens" default:"512" min:"1" doc:"Sampled tokens of a turn."`
	MaxTokens       int           `yaml:"max_tokens" common:"true" default:"4096" min:"1" doc:"Tokens of a conversation, including prompt and observations, since it was last folded; the model's limit may be lower. For a hosted model: as its server counts them, if it does."`
	WallTime        time.Duration `yaml:"wall_time" default:"10m" above:"0s" doc:"Time of a conversation, including waits for sub-agents and tools."`
	Fold            Fold          `yaml:"fold" doc:"Conversations that outgrow their context continue from a summary (docs/algorithm.md, section 5)."`
}

// Fold configures when a conversation is folded, and what follows the summary.
type Fold struct {
	At   int `yaml:"at" default:"0" min:"0" doc:"Once a conversation, with the results of its newest turn, has this number of tokens, the agent writes a summary and continues from its prompt, the question and the summary. The summary is trained. It has at most max_new_tokens and does not count towards max_turns. 0: never."`
	Keep int `yaml:"keep" default:"0" min:"0" max:"10000" doc:"Number of last turns that follow the summary with their results, token by token, as far as they fit below at."`
}

// AgentAlign is the part of Align that an agent can set.
type AgentAlign struct {
	D int `yaml:"d" min:"1" max:"65536" doc:"Aligned invocations of a rollout."`
}

// Engine configures the engine that samples an agent's turns, and the sizes of its inference and training batches.
type Engine struct {
	Kind                  string        `yaml:"kind" default:"local" enum:"local|vllm|sglang" doc:"The engine. local: this program, on the agent's device. vllm, sglang: servers that you start (docs/engines.md); the run is then not deterministic."`
	URL                   []string      `yaml:"url" doc:"vllm, sglang: base addresses of one or more servers for the agent's model, such as [\"http://127.0.0.1:8000\"]. No other program may use them during the run."`
	KeyEnv                string        `yaml:"key_env" doc:"vllm, sglang: environment variable with the servers' API key."`
	Weights               EngineWeights `yaml:"weights" doc:"vllm, sglang: how the servers get the agent's weights."`
	Slots                 int           `yaml:"slots" default:"0" min:"0" max:"65536" doc:"Sequences that sample at once on each device; for a hosted model, conversations at once. 0: as many as a step can use, at most 128."`
	Conversations         int           `yaml:"conversations" default:"0" min:"0" max:"65536" doc:"Conversations at once on each device, including those that wait for a tool, another agent or a slot. 0: as many as slots."`
	CacheTokens           int           `yaml:"cache_tokens" default:"0" min:"0" doc:"Tokens of all conversations whose keys and values are cached on each device; at least one conversation must fit. Waiting conversations make room for sampling ones and are computed again later. 0: slots × the longest conversation."`
	Context               int           `yaml:"context" default:"0" min:"0" doc:"Largest number of tokens of a conversation. 0: the lower of limits.max_tokens and the model's limit."`
	CUDAGraphs            bool          `yaml:"cuda_graphs" default:"true" doc:"On a GPU, decode passes are recorded once and replayed, as CUDA graphs. If that fails, they run without graphs, and a message reports it. false: never use graphs."`
	MicroBatchTokens      int           `yaml:"micro_batch_tokens" default:"4096" min:"1" doc:"Tokens packed into one forward and backward pass; a common prefix of sequences counts once."`
	CheckpointActivations bool          `yaml:"checkpoint_activations" default:"false" doc:"Recompute activations in the backward pass: less memory, about a third more time."`
	DType                 string        `yaml:"dtype" default:"auto" enum:"auto|bf16" doc:"Weights for sampling. auto: the weights of training. bf16: on the CPU, a bf16 copy that is refreshed after each update (with train: false it is the only copy); log-probs then differ from the trainer's (grpo.gap_warn)."`
}

// EngineWeights configures how servers get an agent's weights, and how exactly they must compute with them.
type EngineWeights struct {
	Path      Path    `yaml:"path" doc:"Folder that this worker and the servers share under the same absolute path. Each version of the weights is a Hugging Face folder in it. It is removed when all servers have the next version."`
	DType     string  `yaml:"dtype" default:"bf16" enum:"bf16|fp32" doc:"Type of the weights in these folders."`
	Tolerance float64 `yaml:"tolerance" default:"0" min:"0" doc:"After each update the servers sample some tokens. If their log-probs differ from the trainer's by more than this on average (nats), the run ends. 0: 0.05, with dtype fp32 0.001."`
}

// Tool is one tool that agents can call.
type Tool struct {
	Name       string   `yaml:"-"`
	Kind       string   `yaml:"kind" required:"true" enum:"search|visit|retriever|calculator|code|python|mcp" doc:"search: a local corpus. visit: the text of a web page. retriever: any HTTP service that answers a query with documents. calculator, code: Starlark without files or network. python: Python in a sandbox of the system (Linux). mcp: any MCP server (docs/tools.md)."`
	Corpus     Path     `yaml:"corpus" doc:"search: a JSONL file or a folder of Markdown."`
	Index      Path     `yaml:"index" doc:"search: folder for the index of the corpus. The first process that needs the index builds it, and all share it. Absent: each agent builds one in memory." change:"worker"`
	Command    []string `yaml:"command" doc:"mcp: program and arguments of a server on stdio."`
	Dir        Path     `yaml:"dir" default:"." doc:"mcp: working folder of command. Absent: the folder of this file." change:"worker"`
	Env        []string `yaml:"env" doc:"mcp: names of environment variables passed on to command. Values of 8 bytes or more are treated as secrets and replaced in the server's output."`
	Prefix     string   `yaml:"prefix" doc:"mcp: prefix of the names of the server's tools, such as github_, in case two servers have a tool with the same name."`
	Only       []string `yaml:"only" doc:"mcp: the server's tools to offer, by the server's names. Absent: all."`
	URL        string   `yaml:"url" doc:"mcp: address of a server over HTTP. retriever: address of the service."`
	TokenEnv   string   `yaml:"token_env" doc:"mcp, retriever: environment variable whose value is sent to url as a bearer token." change:"worker"`
	Results    int      `yaml:"results" default:"3" min:"1" max:"100" doc:"search, retriever: results of one call."`
	Request    string   `yaml:"request" doc:"retriever: Go template that makes the request from .Query and .Results: JSON, or a query string that begins with ?. Absent: the form of Search-R1's retriever (docs/tools.md)."`
	Response   string   `yaml:"response" doc:"retriever: Go template that makes the text for the model from the JSON of the reply. Absent: for replies of Search-R1's retriever."`
	MaxSteps   int64    `yaml:"max_steps" default:"1000000" min:"1" doc:"code: Starlark steps of one call."`
	Visit      `yaml:",inline"`
	Python     `yaml:",inline"`
	ToolLimits `yaml:",inline"`
}

// Python sets the interpreter of a tool of the kind python and the limits of its programs.
type Python struct {
	Interpreter string `yaml:"interpreter" default:"python3" doc:"python: the interpreter, a name in PATH or a path. If it belongs to a virtual environment, programs may import that environment's packages." change:"worker"`
	MaxMemory   int64  `yaml:"max_memory" default:"536870912" min:"67108864" doc:"python: bytes of address space of a program."`
	MaxFiles    int64  `yaml:"max_files" default:"16777216" min:"4096" doc:"python: bytes that a program may store in /tmp, its only writable folder. /tmp is removed when the program ends."`
}

// Visit configures which pages a tool of the kind visit may fetch.
type Visit struct {
	Hosts     []string `yaml:"hosts" doc:"visit: hosts that may be visited: example.org, *.example.org (all hosts below it), * (any); with :PORT if it is not the scheme's default."`
	Schemes   []string `yaml:"schemes" default:"[https]" doc:"visit: http, https or both."`
	Networks  []string `yaml:"networks" doc:"visit: private, loopback or link-local networks, such as 10.1.0.0/16, to which connections are allowed. Absent: only public addresses."`
	MaxPage   int64    `yaml:"max_page" default:"2097152" min:"1" max:"67108864" doc:"visit: largest number of bytes of a page; longer pages are errors."`
	UserAgent string   `yaml:"user_agent" default:"mgrpo" doc:"visit: User-Agent of requests. The part before / or a space is the name that robots.txt refers to. Many sites require a contact address in it."`
	Links     bool     `yaml:"links" default:"false" doc:"visit: true: links in the text are Markdown links with their addresses, so that the model can follow them."`
}

// ToolLimits limit the calls of a tool. Each agent's calls count separately.
type ToolLimits struct {
	Timeout   time.Duration `yaml:"timeout" default:"10s" above:"0s" doc:"Time limit of one attempt at a call."`
	Retries   int           `yaml:"retries" default:"0" min:"0" max:"100" doc:"Further attempts at a call after a time-out or a temporary error, such as a busy server, with growing pauses. Absent: 2 for visit and retriever, otherwise 0."`
	MaxOutput int           `yaml:"max_output" default:"4096" min:"1" doc:"Bytes of output shown to the model; the rest is cut off."`
	MaxCalls  int           `yaml:"max_calls" default:"0" min:"0" doc:"Calls in one conversation: a rollout of the main agent, an invocation of a sub-agent. Further calls are refused. 0: any number."`
	Parallel  int           `yaml:"parallel" default:"0" min:"0" max:"65536" doc:"Concurrent attempts of one agent. 0: any number." change:"worker"`
	Rate      float64       `yaml:"rate" default:"0" min:"0" doc:"Attempts begun per second by one agent. 0: any number." change:"worker"`
	Cached    bool          `yaml:"cached" default:"true" doc:"false: never cached and always called, even in a replay. Use it for a server on this machine, and for a server whose answers depend on more than the arguments, such as earlier calls."`
}

// Cache configures the folder that stores answers of outside services.
type Cache struct {
	Dir  Path   `yaml:"dir" doc:"Folder that any number of workers may use at once. Absent: nothing is stored."`
	Mode string `yaml:"mode" default:"record" enum:"record|replay" doc:"record: questions that are not in the cache are sent to their service, and the answers are stored. replay: no service is asked, and a question that is not in the cache ends the run."`
}

// Health is the address of a process's health endpoint and its access token.
type Health struct {
	Address  string `yaml:"address" doc:"HOST:PORT to listen at, such as 127.0.0.1:9464; port 0 means a free port. Absent: mgrpo worker listens at a free port of 127.0.0.1 and prints it, mgrpo train does not listen. mgrpo train --listen sets it."`
	TokenEnv string `yaml:"token_env" doc:"Environment variable with a token of at least 16 bytes that every request must carry as Authorization: Bearer TOKEN; a browser opens /live?token=TOKEN. Required if address is not 127.0.0.1, ::1 or localhost."`
}

// Gateway is the OpenAI-compatible endpoint of a process.
type Gateway struct {
	Listen        string `yaml:"listen" doc:"HOST:PORT to listen at, with /healthz, /readyz and /metrics on the same port. Absent: a free port of 127.0.0.1 if a program plays the rollouts, otherwise no gateway."`
	Advertise     string `yaml:"advertise" doc:"URL at which programs and other workers reach this process, such as https://node3:8443. Absent: http://HOST:PORT of listen."`
	TokenEnv      string `yaml:"token_env" doc:"Environment variable with the token, of at least 16 bytes, that programs elsewhere need to request rollouts."`
	Cert          Path   `yaml:"cert" doc:"PEM file of this server's certificate. Absent: HTTP without TLS. Without allow_insecure, listen must then be an address that only this machine can reach."`
	Key           Path   `yaml:"key" doc:"PEM file of its key."`
	CA            Path   `yaml:"ca" doc:"PEM file of the authorities that sign other workers' certificates. Absent: the system's."`
	AllowInsecure string `yaml:"allow_insecure" enum:"|anyone may read and write" doc:"Must be the words 'anyone may read and write' to listen without TLS on an address that other machines can reach."`
}
