// Package config is the YAML schema of mgrpo: the run, the store, the task, the algorithm, the agents and their tools.
//
// The structs of this file are the schema. The rest of the package reads their tags:
//
//	yaml       the key
//	doc        the meaning, printed in docs/config.md
//	default    the value of an absent key, written as in YAML
//	required   "true": the key must be there
//	enum       the values allowed, separated by |
//	family     "true": the values allowed are the families of trainer/model/arch
//	min, max   the least and the greatest value allowed
//	above      a bound the value must exceed
//	below      a bound the value must stay under
//	change     "resume": the key, or the section, may change between a checkpoint and its --resume;
//	           "worker": it may also differ from one worker of the team to the next
//	keyed      "true": the field is an ordered mapping from Name to the slice's element
//	words      of a path: values that are words and not paths, separated by |
//	hub        "true": of a path: it may be a model's name on the Hugging Face Hub, as an agent's model may
//	single     "true": of a list: one text may stand for a list of one
//	inherits   the section whose keys of the same name are the defaults
//
// Load reads a file, reports all unknown keys and bad values with file, line and column, and fills in the defaults. This
// package opens no model, data set or socket; Config.Find checks whether a model exists.
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
	Cache     Cache     `yaml:"cache" doc:"What outside services answer, kept on disk: pages, retrievers, judges, MCP servers (docs/tools.md)." change:"worker"`
	Gateway   Gateway   `yaml:"gateway" doc:"The team behind an OpenAI-compatible endpoint, so that somebody else's program holds its conversations (docs/programs.md)." change:"worker"`
	Tracking  Tracking  `yaml:"tracking" doc:"Experiment trackers that get the run's records while it goes on (docs/tracking.md)." change:"worker"`
	Health    Health    `yaml:"health" doc:"The HTTP endpoint of a process: GET /healthz (the process runs), /readyz (it takes part in the run), /metrics (Prometheus) and /live (a page of the run as it goes on)." change:"worker"`

	dir string              // folder of the file, from which relative paths start
	at  map[string]position // position of each given key
}

// Run is the name, the folder and the length of a run.
type Run struct {
	Name            string `yaml:"name" required:"true" doc:"Name of the run: a letter, then letters, digits, dashes and underscores. Also names its keys in the store."`
	Dir             Path   `yaml:"dir" doc:"Folder for checkpoints, ledgers, metrics and trajectories: a folder that all workers share, or a folder on each server. Absent: runs/NAME." change:"worker"`
	Seed            uint64 `yaml:"seed" default:"0" doc:"Seed of everything random: query order, sampling, alignment draws, initial weights."`
	Steps           int64  `yaml:"steps" default:"100" min:"0" doc:"Number of training steps, including the steps before a resume." change:"resume"`
	CheckpointEvery int64  `yaml:"checkpoint_every" default:"20" min:"0" doc:"Steps between checkpoints. The last step, and every step whose evaluation is the best so far, get one, too. 0: only these." change:"resume"`
	Keep            int    `yaml:"keep" default:"2" min:"2" doc:"Number of newest checkpoints that are kept, besides the best and that of step 0, which has the cold start." change:"resume"`
	SaveDType       string `yaml:"save_dtype" default:"auto" enum:"auto|fp32|bf16" doc:"Type of the weights in a checkpoint's Hugging Face folders. auto: the type of the initial weights if all are bf16 or all fp16, else fp32. Training always resumes from fp32: beside a folder in 16 bits the optimizer's file contains the fp32 weights." change:"resume"`
	Save            string `yaml:"save" default:"whole" enum:"whole|text" doc:"What a checkpoint has of a model that is more than a language model, such as one that sees images. whole: the folder as it was loaded, parts that are not trained copied. text: the language model alone, as a model of its own; adapters stay those of the whole model." change:"resume"`
	SaveMoments     bool   `yaml:"save_moments" default:"true" doc:"Checkpoints have AdamW's moments, two fp32 values for each trained parameter. false: a checkpoint takes a third of the space (less than half where weights are saved in 16 bits), and a resume begins with moments of 0, which it reports: the weights go on exactly, the run does not repeat an uninterrupted one." change:"resume"`
	Deterministic   *bool  `yaml:"deterministic" doc:"true: refuse to run if equal seeds and CPU features do not guarantee bit-equal results. Absent: runs on the CPU are deterministic, other runs may not be."`
	GPUDeterminism  bool   `yaml:"gpu_deterministic" default:"false" doc:"Training on a GPU takes algorithms that give the same bits for the same batch. Without this, attention adds up the gradients of queries in an order that changes, and two trainings on a GPU differ by rounding; with it, the backward pass of attention takes 10 to 20 % longer. Sampling on a GPU depends on which sequences share a pass in either case." change:"worker"`
	Arm             string `yaml:"arm" default:"team" enum:"team|main_only|single" doc:"team: all agents learn. main_only: sub-agents take part with frozen weights. single: the main agent alone, with the tools of the whole team."`
	Date            string `yaml:"date" doc:"YYYY-MM-DD that chat templates print as today's. Absent: the day on which the main agent's worker begins the run, which --resume keeps." change:"worker"`
	Matmul          string `yaml:"matmul" default:"fp32" enum:"fp32|bf16" doc:"Products of matrices in training on a CPU. bf16: their factors are rounded to bf16 and summed in fp32 where the processor has instructions for that (AMX or avx512_bf16), which takes about half the time; elsewhere as fp32. Weights, activations and gradients stay fp32; products with quantised weights, and without AMX those of adapters, are not rounded. With avx512_bf16 and no AMX, engines with dtype: bf16 round their activations in products, too."`
	Threads         int    `yaml:"threads" default:"0" min:"0" max:"4096" doc:"CPU threads, divided among the agents of this process; generation takes those of idle agents, too. 0: one for each core that the process may use: those of its affinity and of its control groups' quota, whole ones, at least 1." change:"worker"`
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
	Timeout       time.Duration `yaml:"timeout" default:"30m" above:"0s" doc:"Longest wait for another agent. Then the run stops and names the missing agent. As long may a rank of an agent with several devices wait for another; then it is lost."`
	Lease         time.Duration `yaml:"lease" default:"15s" min:"1s" max:"10m" doc:"A worker without a sign of life for this long is considered dead, and its work is given to another worker."`
	MaxDeliveries int           `yaml:"max_deliveries" default:"5" min:"1" doc:"An invocation fails after this many workers of its agent crashed while working on it, because it may be the cause of the crashes."`
}

// TLS names the certificates of a rediss:// store.
type TLS struct {
	CA         Path   `yaml:"ca" doc:"PEM file of the authorities that may sign the server's certificate."`
	Cert       Path   `yaml:"cert" doc:"PEM file of the client's certificate."`
	Key        Path   `yaml:"key" doc:"PEM file of the client's key."`
	ServerName string `yaml:"server_name" doc:"Name the server's certificate must carry. Absent: the host of url."`
}

// Task is the source of queries and the scoring of answers.
type Task struct {
	Kind           string    `yaml:"kind" default:"research" enum:"research|jsonl|gsm8k|go" doc:"research: built in, generated. jsonl: questions and answers of your own. gsm8k: the GSM8K files as published. go: a Go program that uses the trainer as a library brings its task (docs/library.md)."`
	Train          Path      `yaml:"train" doc:"File of training queries: JSON lines, a JSON array, Parquet, .csv or .tsv (jsonl, gsm8k)."`
	Eval           Path      `yaml:"eval" doc:"File of held-out queries, in the same formats (jsonl, gsm8k)." change:"resume"`
	EvalSets       []EvalSet `yaml:"eval_sets" keyed:"true" doc:"jsonl: further sets of held-out queries, by name. Evaluations report each; versions are compared by eval alone." change:"resume"`
	Curriculum     []Stage   `yaml:"curriculum" keyed:"true" doc:"jsonl: stages of the training, by name, one after another from step 1 on. Each trains on some of the rows for its steps; after the last come all rows."`
	Layout         string    `yaml:"layout" default:"rows" enum:"rows|hotpotqa|2wiki|musique|frames|fanoutqa|webwalkerqa|gaia|browsecomp|verl|sharegpt" doc:"jsonl: how the files name things. rows: as fields says. Else: as that benchmark is published, or that framework writes its rows (docs/verifiers.md)."`
	Fields         Fields    `yaml:"fields" doc:"Names of the fields of a row, with layout rows. Dots lead into objects and lists, as in reward_model.ground_truth or answers.0.text; a column that has this very name comes first. The verifier gets all fields."`
	QueriesPerStep int       `yaml:"queries_per_step" default:"16" min:"1" max:"65536" doc:"Queries of one step (Q)." change:"resume"`
	Verifier       Verifier  `yaml:"verifier" doc:"How the main agent's answer is scored (jsonl, gsm8k)."`
	Expert         Verifier  `yaml:"expert" doc:"How a sub-agent's answer is scored: its expert score (jsonl, gsm8k). Absent: as verifier."`
	Judge          Judge     `yaml:"judge" doc:"The model that scores where a verifier's kind is judge."`
	Program        Program   `yaml:"program" doc:"The program that plays the rollouts, in place of the main agent's own conversation. Its calls of the agents are requests to the gateway (docs/programs.md)."`
	Research       Research  `yaml:"research" doc:"The generated task: its knowledge bases and the mistakes in its demonstrations."`
}

// Tracking names the experiment trackers that get a run's records. Credentials are in the environment variables of the trackers' own clients.
type Tracking struct {
	WandB  string `yaml:"wandb" doc:"Project of Weights & Biases."`
	MLflow string `yaml:"mlflow" doc:"URI/EXPERIMENT: an experiment on an MLflow server, such as http://127.0.0.1:5000/agents. EXPERIMENT alone: on the server of MLFLOW_TRACKING_URI."`
	Python string `yaml:"python" default:"python3" doc:"Python that has the package wandb."`
}

// EvalSet is a further set of held-out queries.
type EvalSet struct {
	Name   string `yaml:"-"`
	Path   Path   `yaml:"path" required:"true" doc:"File of its queries, as of eval."`
	Layout string `yaml:"layout" default:"rows" enum:"rows|hotpotqa|2wiki|musique|frames|fanoutqa|webwalkerqa|gaia|browsecomp|verl|sharegpt" doc:"How the file names things, as task.layout."`
}

// Stage is a part of the training that takes some of the training rows.
type Stage struct {
	Name     string   `yaml:"-"`
	Steps    int64    `yaml:"steps" required:"true" min:"1" doc:"Training steps of the stage."`
	Kinds    []string `yaml:"kinds" doc:"Rows of these kinds (task.fields.kind). Absent: of any kind."`
	Levels   []string `yaml:"levels" doc:"Rows of these levels (task.fields.level). Absent: of any level."`
	MinParts int      `yaml:"min_parts" default:"0" min:"0" doc:"Rows with at least as many parts."`
	MaxParts int      `yaml:"max_parts" default:"0" min:"0" doc:"Rows with at most as many parts. 0: any number."`
	Balance  bool     `yaml:"balance" default:"false" doc:"Kinds take turns, so that all come equally often and rows of a rare kind more often than others."`
}

// Fields are the names of the fields that the task reads from a row.
type Fields struct {
	ID       string `yaml:"id" default:"id" doc:"Row id. A row without this field is named by its number."`
	Question string `yaml:"question" default:"question" doc:"Text of the query, or messages: one of the user, after a system message or none, whose text is put in front."`
	Answer   string `yaml:"answer" default:"answer" doc:"Reference answer, or a list of accepted answers."`
	Choices  string `yaml:"choices" default:"choices" doc:"List of choices, for the verifier of that kind."`
	Kind     string `yaml:"kind" default:"kind" doc:"What kind of question it is; evaluations report each kind."`
	Level    string `yaml:"level" default:"level" doc:"How hard it is; evaluations report each level."`
	Parts    string `yaml:"parts" default:"parts" doc:"List of sub-questions, {question, answer}, for the expert of that kind and for demonstrations."`
}

// Verifier says how one answer becomes a score in [0, 1].
type Verifier struct {
	Kind      string        `yaml:"kind" default:"auto" enum:"auto|exact|normalized|exact_match|f1|quantity|numeric|choice|regex|parts|judge|program|torchscript" doc:"auto: gsm8k numeric, jsonl normalized. parts, of an expert: as task.verifier, against the part of the question that the sub-task asks for. numeric reads \\boxed, ####, or the last number. program: a program in any language. torchscript: a module that scores. See docs/verifiers.md."`
	Pattern   string        `yaml:"pattern" doc:"regex: RE2 pattern; its first group, or the whole match, is compared with the reference answer."`
	Tolerance float64       `yaml:"tolerance" default:"0" min:"0" doc:"numeric, quantity: greatest absolute difference that still counts as equal."`
	Relative  float64       `yaml:"relative" default:"0" min:"0" doc:"numeric, quantity: the same as a share of the reference answer. The larger of the two counts."`
	Overlap   float64       `yaml:"overlap" default:"1" above:"0" max:"1" doc:"parts, of an expert: least share of a part's words that a sub-task which asks for it has. See docs/verifiers.md."`
	Command   []string      `yaml:"command" doc:"program: program and arguments, without a shell. It reads a JSON line for each answer and writes a JSON line with its score."`
	Dir       Path          `yaml:"dir" default:"." doc:"program: folder in which it runs. Absent: the folder of this file." change:"worker"`
	Timeout   time.Duration `yaml:"timeout" default:"60s" above:"0s" doc:"program: longest wait for one score." change:"worker"`
	Path      Path          `yaml:"path" doc:"torchscript: the module, as torch.jit.save writes it. Loading it runs its code: use only files from people whom you trust."`
	Tokenizer Path          `yaml:"tokenizer" doc:"torchscript: folder with the tokenizer.json that the module was trained with, and its chat template if it has one."`
	MaxTokens int           `yaml:"max_tokens" default:"4096" min:"1" doc:"torchscript: most tokens of a question with its answer; a longer one has no score."`
}

// Program plays rollouts through the gateway.
type Program struct {
	Command   []string      `yaml:"command" doc:"Program and arguments, without a shell, started once for each rollout by the main agent's worker. Absent, and elsewhere not true: the main agent plays the rollouts itself." change:"worker"`
	Elsewhere bool          `yaml:"elsewhere" default:"false" doc:"true: programs on any machine ask for rollouts (mgrpo rollout), in place of command."`
	Dir       Path          `yaml:"dir" default:"." doc:"Folder in which the command runs. Absent: the folder of this file." change:"worker"`
	Parallel  int           `yaml:"parallel" default:"8" min:"1" max:"4096" doc:"Commands that run at once." change:"worker"`
	Timeout   time.Duration `yaml:"timeout" default:"10m" above:"0s" doc:"Longest time of a program. A rollout whose program takes longer has failed." change:"worker"`
	Lease     time.Duration `yaml:"lease" default:"1m" min:"1s" doc:"Programs elsewhere: a rollout that is not renewed for this long is given to another program, as its next attempt." change:"worker"`
}

// Judge is an OpenAI-compatible model that scores answers.
type Judge struct {
	URL     string        `yaml:"url" doc:"Base URL of an OpenAI-compatible API, such as https://host/v1."`
	Model   string        `yaml:"model" doc:"Model name sent to it."`
	KeyEnv  string        `yaml:"key_env" doc:"Environment variable with the API key." change:"worker"`
	Prompt  Path          `yaml:"prompt" doc:"File with the judge's instructions; {question}, {reference}, {answer}, {scale} and {row} (the row as JSON) are replaced. Absent: the built-in prompt."`
	Scale   float64       `yaml:"scale" default:"1" above:"0" doc:"Best score the judge gives; scores are divided by it."`
	Timeout time.Duration `yaml:"timeout" default:"60s" above:"0s" doc:"Longest wait for one reply." change:"worker"`
	Retries int           `yaml:"retries" default:"5" min:"0" max:"20" doc:"How often a request is repeated after a time-out, a broken connection, or the status 408, 425, 429 or 5xx. Pauses double from half a second, or follow Retry-After." change:"worker"`
}

// Research sets the knowledge bases of the built-in task and the scripted experts of its cold start.
type Research struct {
	Hops     int     `yaml:"hops" default:"3" min:"1" max:"3" doc:"Most hops of a question; each count from 1 is equally likely."`
	Parts    int     `yaml:"parts" default:"0" min:"0" max:"6" doc:"Most parts of a fan-out question, in place of hops: each count from 1 is equally likely, each part asks for its own name, and the answer is all the names, scored by the share that is right. The planner may call twelve times. 0: chains of hops."`
	Alias    float64 `yaml:"alias" default:"0.25" min:"0" max:"1" doc:"Probability that a hop's subject is filed under an alias."`
	Outdated float64 `yaml:"outdated" default:"0.5" min:"0" max:"1" doc:"Probability that a hop's fact has an outdated twin."`
	Failures float64 `yaml:"failures" default:"0" min:"0" max:"1" doc:"Probability that a search finds nothing, in demonstrations, too: a function of the seed and the place of the call."`
	Keyword  float64 `yaml:"keyword" default:"0.06" min:"0" max:"1" doc:"Demonstrations: the researcher searches one word instead of two."`
	Random   float64 `yaml:"random" default:"0.03" min:"0" max:"1" doc:"Demonstrations: the researcher quotes a random sentence."`
	Was      float64 `yaml:"was" default:"0.55" min:"0" max:"1" doc:"Demonstrations: the researcher quotes the outdated twin."`
	GiveUp   float64 `yaml:"give_up" default:"0.55" min:"0" max:"1" doc:"Demonstrations: the researcher sees an alias and does not follow it."`
	Early    float64 `yaml:"early" default:"0.08" min:"0" max:"1" doc:"Demonstrations: the planner answers before the last hop."`
	WrongRel float64 `yaml:"wrong_relation" default:"0.05" min:"0" max:"1" doc:"Demonstrations: the planner asks for a random relation."`
	Reask    float64 `yaml:"reask" default:"0.6" min:"0" max:"1" doc:"Demonstrations: the planner asks again when told unknown."`
}

// GRPO are the settings of the algorithm: groups, alignment, advantages and loss.
type GRPO struct {
	Rollouts        int     `yaml:"rollouts" default:"8" min:"2" max:"4096" doc:"Rollouts of each query (K). They are compared with each other: one alone has no advantage." change:"resume"`
	Align           Align   `yaml:"align" doc:"Alignment: how rollouts with different numbers of sub-agent calls get equal weight."`
	SubGroup        string  `yaml:"sub_group" default:"query" enum:"query|batch" doc:"Which of a sub-agent's invocations are compared with each other: the invocations of a query, as in the paper, or all invocations of a step."`
	Convention      string  `yaml:"convention" default:"population" enum:"population|sample|none|leave_one_out|leave_one_out_std" doc:"How advantages are normalised: the standard deviation that divides them, or the baseline. See docs/algorithm.md, section 4."`
	StdEps          float64 `yaml:"std_eps" default:"0" min:"0" doc:"Added to the standard deviation (population, sample)."`
	SigmaMin        float64 `yaml:"sigma_min" default:"1e-6" min:"0" doc:"A population group whose standard deviation is below this is degenerate: advantage 0. Under every convention so is a group whose rewards are equal up to rounding."`
	mgrpo.Objective `yaml:",inline"`
	Reference       string              `yaml:"reference" default:"auto" enum:"auto|start|cold_start" doc:"KL reference of agents without a reference of their own. start: the weights at the start of the run. cold_start: the weights after the cold start, which the run keeps in run.dir. auto: cold_start for an agent that has a cold start, else start."`
	Old             string              `yaml:"old" default:"behaviour" enum:"behaviour|recomputed" doc:"Old log-probs: the sampler's, or those of another forward pass of the trainer. Absent, where an agent's engine is vllm or sglang and tis_cap is absent, too: recomputed."`
	Epochs          int                 `yaml:"epochs" default:"1" min:"1" max:"1000" doc:"Passes over a step's trajectories." change:"resume"`
	Minibatches     int                 `yaml:"minibatches" default:"1" min:"1" max:"65536" doc:"Optimizer updates of one pass; each uses whole queries." change:"resume"`
	Temperature     float64             `yaml:"temperature" default:"1" min:"1e-6" doc:"Sampling temperature of rollouts; all log-probs are of softmax(logits / temperature)."`
	MaxLag          int64               `yaml:"max_lag" default:"0" min:"0" doc:"How many policy versions a trajectory may be older than the weights it trains. That many steps are rolled out ahead. A value above 0 needs old: recomputed and tis_cap, and the run is then not deterministic but for exact_lag."`
	ExactLag        bool                `yaml:"exact_lag" default:"false" doc:"Train only when max_lag steps are rolled out ahead, or as many as there are before the next evaluation: a trajectory's age depends on its step alone, and a run without a break is deterministic. One that goes on from a checkpoint begins with young trajectories again. For comparisons; rollouts and training then take turns."`
	MaxRemoved      float64             `yaml:"max_removed" default:"0.25" min:"0" max:"1" doc:"Largest share of a step's rollouts that may be removed, because an answer could not be scored or a trajectory was lost. If 3 steps in a row exceed it, the run ends with the reason, because the remaining rollouts are no longer a fair sample. 1: never."`
	Resample        int                 `yaml:"resample" default:"0" min:"0" doc:"Replacement queries of a step at most: a query whose main group is degenerate, of which the main agent can learn nothing, is replaced by another (dynamic sampling)."`
	GapWarn         float64             `yaml:"gap_warn" default:"0.05" min:"0" doc:"Warn when the mean |trainer - sampler| log-prob gap exceeds this (nats)."`
	GapStop         float64             `yaml:"gap_stop" default:"0.2" above:"0" doc:"Stop when the gap exceeds this (nats)."`
	Routing         string              `yaml:"routing" default:"replay" enum:"replay|free" doc:"Mixtures of experts. replay: training sends each token through the experts that the sampler recorded for it, with weights of its own. free: the trainer's router chooses. See docs/algorithm.md, section 9."`
	RoutingWarn     float64             `yaml:"routing_warn" default:"0.1" min:"0" max:"1" doc:"Warn when the trainer's router would choose other experts than the recorded ones for a larger share of tokens (routing_differs)."`
	RoutingStop     float64             `yaml:"routing_stop" default:"0.5" above:"0" max:"1" doc:"Stop when the share exceeds this."`
	RouterAuxCoef   float64             `yaml:"router_aux_coef" default:"0" min:"0" doc:"Coefficient of the load-balancing loss of mixtures of experts; 0: off. See docs/algorithm.md, section 9."`
	Reward          mgrpo.RewardWeights `yaml:"reward" doc:"Weights of the parts of a reward. A trajectory with an invalid format has reward 0."`
}

// Slack is how many steps an agent may be ahead of the others. Where there is any, agents sample while they train.
func (g *GRPO) Slack() int64 {
	if g.ExactLag {
		return 0
	}
	return g.MaxLag
}

// Align says how the invocations of a sub-agent are aligned to d per rollout.
type Align struct {
	D    int    `yaml:"d" default:"8" min:"1" max:"65536" doc:"Aligned invocations per rollout; about the 99th percentile of the calls. An agent can set its own value."`
	Mode string `yaml:"mode" default:"draw" enum:"draw|balanced|none" doc:"draw: duplicate and drop at random, as in the paper. balanced: weight d/d_k. none: weight 1."`
}

// Eval is held-out evaluation during training. Only evaluation may use truncated sampling.
type Eval struct {
	Every       int64   `yaml:"every" default:"20" min:"0" doc:"Steps between evaluations. The last step is always followed by an evaluation. 0: only the last step."`
	Queries     int     `yaml:"queries" default:"200" min:"1" doc:"Number of held-out queries, or all queries if the task has fewer."`
	Samples     int     `yaml:"samples" default:"4" min:"1" max:"4096" doc:"Rollouts of each."`
	Temperature float64 `yaml:"temperature" default:"1" min:"0" doc:"Sampling temperature; 0 is greedy."`
	TopK        int     `yaml:"top_k" default:"0" min:"0" doc:"Sample from the k most likely tokens; 0: all."`
	TopP        float64 `yaml:"top_p" default:"1" above:"0" max:"1" doc:"Sample from the smallest set of tokens with this probability."`
	MinP        float64 `yaml:"min_p" default:"0" min:"0" max:"1" doc:"Leave out tokens less likely than this times the most likely."`
	Before      bool    `yaml:"before" default:"true" doc:"Also evaluate before the first step."`
}

// ColdStart is supervised training before the first step. Its steps, batch and optimizer are the defaults of each
// agent's cold_start.
type ColdStart struct {
	Demonstrations Path       `yaml:"demonstrations" default:"none" words:"none|task|parts" doc:"none: no cold start. task: the task's own demonstrations. parts: made from the parts of the training queries. Else the path of a file of chats: JSON lines, a JSON array, or Parquet."`
	Queries        int        `yaml:"queries" default:"3072" min:"1" doc:"Number of queries with demonstrations."`
	Sloppiness     Sloppiness `yaml:"sloppiness" doc:"Demonstrations made from parts: probabilities of mistakes, which training is to unlearn."`
	Supervised     Supervised `yaml:",inline"`
}

// Sloppiness are the probabilities of mistakes in demonstrations made from parts.
type Sloppiness struct {
	Skip    float64 `yaml:"skip" default:"0.1" min:"0" max:"1" doc:"The main agent does not ask for a part of a question that has several."`
	Again   float64 `yaml:"again" default:"0.2" min:"0" max:"1" doc:"The main agent asks again for a part that was answered."`
	GiveUp  float64 `yaml:"give_up" default:"0.3" min:"0" max:"1" doc:"An agent that found nothing does not try again."`
	Narrow  float64 `yaml:"narrow" default:"0.3" min:"0" max:"1" doc:"A search has one half of the question's words only."`
	Misread float64 `yaml:"misread" default:"0.2" min:"0" max:"1" doc:"Another value of the passage is quoted."`
}

// Supervised sets steps, batch and optimizer of an agent's cold start.
type Supervised struct {
	Steps     int64     `yaml:"steps" default:"0" min:"0" doc:"Optimizer updates. 0: the agent has no cold start."`
	Batch     int       `yaml:"batch" default:"32" min:"1" doc:"Trajectories of one update."`
	Optimizer Optimizer `yaml:"optimizer" doc:"AdamW of the cold start, separate from training's AdamW."`
}

// Optimizer is AdamW with warm-up, schedule and clip.
type Optimizer struct {
	LR          float64    `yaml:"lr" default:"1e-6" above:"0" doc:"Learning rate."`
	Betas       [2]float64 `yaml:"betas" default:"[0.9, 0.98]" min:"0" below:"1" doc:"Decay rates of the two moments."`
	Eps         float64    `yaml:"eps" default:"1e-8" above:"0" doc:"Added to the square root of the second moment."`
	WeightDecay float64    `yaml:"weight_decay" default:"0.01" min:"0" doc:"Decoupled weight decay."`
	Clip        float64    `yaml:"clip" default:"1" min:"0" doc:"Greatest global gradient norm; 0: no clip."`
	Warmup      int64      `yaml:"warmup" default:"0" min:"0" doc:"Steps over which the rate rises linearly to lr."`
	Schedule    string     `yaml:"schedule" default:"constant" enum:"constant|linear|cosine" doc:"How the rate falls after the plateau (hold)."`
	Floor       float64    `yaml:"floor" default:"0.1" min:"0" max:"1" doc:"Fraction of lr at which linear and cosine end."`
	Hold        float64    `yaml:"hold" default:"0" min:"0" max:"1" doc:"Fraction of decay_steps during which the rate stays at lr."`
	DecaySteps  int64      `yaml:"decay_steps" default:"0" min:"0" doc:"Step at which the rate reaches the floor, and stays there. 0: run.steps at the start of the run; where --resume comes with more steps, the schedule keeps its end unless this key is given."`

	EndsWithRun bool `yaml:"-"` // decay_steps was not given
}

// Agent is one member of the team.
type Agent struct {
	Name         string     `yaml:"-"`
	Role         string     `yaml:"role" required:"true" enum:"main|sub" doc:"main plans, delegates and answers; sub works on sub-tasks."`
	Model        Model      `yaml:"model" required:"true" doc:"Initial weights: a Hugging Face folder, a GGUF file, the name of a model on the Hub, ORG/NAME or ORG/NAME@REVISION (a branch, a tag or a commit), that is in the local cache (hf download ORG/NAME --revision REVISION), or a shape for random weights. Or a model that somebody else serves: {kind: openai, url: https://host/v1, name: MODEL, key_env: VARIABLE}."`
	Device       string     `yaml:"device" default:"cpu" doc:"cpu, cuda or cuda:N." change:"worker"`
	Devices      []string   `yaml:"devices" doc:"In place of device: several, with a process for each, which share the conversations, the work of an update and AdamW's moments (docs/ranks.md): [cpu, cpu]." change:"worker"`
	Machines     Machines   `yaml:"machines" doc:"Several machines that lend this agent their devices (docs/ranks.md)." change:"worker"`
	DType        string     `yaml:"dtype" default:"auto" enum:"auto|fp32|bf16|quantised" doc:"Precision of the weights in forward passes. auto: fp32 on CPU, bf16 on GPU. bf16 has an fp32 master copy if training changes the weights. quantised: matrices stay in the blocks of the model's GGUF file, are widened in the products and never trained: with lora or train: false."`
	LoRA         LoRA       `yaml:"lora" doc:"Low-rank adapters: the model's weights stay as they are, and small matrices beside its linear maps are trained (docs/adapters.md). Agents of one process with the same model and adapters hold its weights once."`
	Train        bool       `yaml:"train" default:"true" doc:"false: the agent takes part with frozen weights. An agent whose model is hosted always does."`
	Delegates    []string   `yaml:"delegates" doc:"main: the sub-agents it may call. Absent: all of them."`
	Tools        []string   `yaml:"tools" doc:"Tools it may call. The research task brings its own."`
	Prompt       Path       `yaml:"prompt" doc:"File with its system prompt."`
	PromptText   string     `yaml:"prompt_text" doc:"Its system prompt. Without prompt and prompt_text, the system prompt only describes the tools."`
	PromptSingle string     `yaml:"prompt_single" doc:"main: its system prompt in the arm single, in which it has the sub-agents' tools and no sub-agents. Absent: prompt or prompt_text."`
	Template     Variables  `yaml:"template" doc:"Variables of the model's chat template beside those that every template gets, such as {enable_thinking: false}. Requests of programs cannot change them in training."`
	Describe     string     `yaml:"describe" doc:"sub: its description for the main agent. Absent: a line made from its name and tools."`
	Limits       Limits     `yaml:"limits" doc:"Limits of a conversation. A conversation that reaches a limit has an invalid format."`
	Align        AgentAlign `yaml:"align" inherits:"grpo.align" doc:"Alignment of this sub-agent's groups."`
	Reference    Path       `yaml:"reference" hub:"true" doc:"Weights of the KL reference, named as in model. Absent: see grpo.reference."`
	Optimizer    Optimizer  `yaml:"optimizer" doc:"AdamW of the training." change:"resume"`
	State        string     `yaml:"optimizer_state" default:"device" enum:"device|host" doc:"Where AdamW's moments are, 8 bytes a trained parameter, and where the agent computes in bf16 the fp32 weights, 4 more. host: in the memory of the machine of a GPU, which has them a piece at a time in an update." change:"worker"`
	Shard        string     `yaml:"shard" default:"optimizer" enum:"optimizer|full" doc:"What several devices divide among them. optimizer: AdamW's moments, and where the agent computes in bf16 the fp32 weights and gradient, too. full: besides these the weights that passes read, which the devices gather a layer at a time, but for experts, to which rows travel (docs/ranks.md). For agents whose servers sample, with engine.checkpoint_activations." change:"worker"`
	ColdStart    Supervised `yaml:"cold_start" inherits:"cold_start" doc:"Cold start of this agent."`
	Engine       Engine     `yaml:"engine" doc:"What samples the agent's turns; memory and batching." change:"worker"`
}

// Machines are those whose devices an agent has. On the first runs its worker.
type Machines struct {
	Count   int    `yaml:"count" default:"1" min:"1" max:"64" doc:"How many machines there are. Each lends as many devices as device or devices name."`
	Address string `yaml:"address" doc:"HOST:PORT of the first machine, at which the agent's worker listens and the others find it."`
	KeyEnv  string `yaml:"key_env" doc:"Environment variable with a key of at least 16 random bytes, the same on all these machines. Whoever has it can read what the agent does, and have these machines compute."`
	KeyFile Path   `yaml:"key_file" doc:"File with the key; a newline at its end is ignored."`
}

// LoRA says which low-rank adapters an agent trains in place of its model's weights.
type LoRA struct {
	R       int      `yaml:"r" default:"0" min:"0" max:"2048" doc:"Rank of the adapters. 0: none, every weight is trained."`
	Alpha   float64  `yaml:"alpha" default:"0" min:"0" doc:"What an adapter adds is multiplied by alpha/r. 0: by 1."`
	Targets []string `yaml:"targets" single:"true" doc:"Modules that have an adapter: the ends of their names in the checkpoint, such as [q_proj, v_proj], or one regular expression (RE2) for whole names, or all-linear: every linear map of the layers. Absent: all-linear."`
	RSLoRA  bool     `yaml:"rslora" default:"false" doc:"true: multiplied by alpha/sqrt(r)."`
	Init    Path     `yaml:"init" default:"uniform" words:"uniform|gaussian" doc:"Initial values; they change nothing, since one of the two matrices is 0. uniform: the other as in PEFT, uniform between -1/sqrt(inputs) and 1/sqrt(inputs). gaussian: normal with standard deviation 1/r. Else a folder with an adapter as PEFT writes it, to go on with; it has its own r, alpha, targets and rslora."`
}

// Limits bound a conversation.
type Limits struct {
	MaxTurns        int           `yaml:"max_turns" default:"8" min:"1" max:"10000" doc:"Sampled turns of a conversation."`
	MaxCallsPerTurn int           `yaml:"max_calls_per_turn" default:"4" min:"1" max:"1000" doc:"Calls in one turn."`
	MaxNewTokens    int           `yaml:"max_new_tokens" default:"512" min:"1" doc:"Sampled tokens of a turn."`
	MaxTokens       int           `yaml:"max_tokens" default:"4096" min:"1" doc:"Tokens of a conversation, including prompt and observations, since it was last folded; the model's limit may be lower. Of a hosted model: as its server counts them, if it does."`
	WallTime        time.Duration `yaml:"wall_time" default:"10m" above:"0s" doc:"Time of a conversation, including waits for sub-agents and tools."`
	Fold            Fold          `yaml:"fold" doc:"Conversations that outgrow their context go on from a summary (docs/algorithm.md, section 5)."`
}

// Fold says when a conversation is folded, and what it keeps beside the summary.
type Fold struct {
	At   int `yaml:"at" default:"0" min:"0" doc:"Tokens of a conversation, with the results of its newest turn, from which on the agent is asked for a summary, which is trained, and goes on from its prompt, the question and the summary. The summary has at most max_new_tokens and is no turn of max_turns. 0: never."`
	Keep int `yaml:"keep" default:"0" min:"0" max:"10000" doc:"Last turns that follow the summary with their results, token by token, as far as they fit below at."`
}

// AgentAlign is the part of Align that an agent can set.
type AgentAlign struct {
	D int `yaml:"d" min:"1" max:"65536" doc:"Aligned invocations of a rollout."`
}

// Engine says what samples an agent's turns, and sets the sizes of its inference and training batches.
type Engine struct {
	Kind                  string        `yaml:"kind" default:"local" enum:"local|vllm|sglang" doc:"What samples. local: this program, on the agent's device. vllm, sglang: servers that you start (docs/engines.md); the run is then not deterministic."`
	URL                   []string      `yaml:"url" doc:"vllm, sglang: base addresses of one or more servers of the agent's model, such as [\"http://127.0.0.1:8000\"]. No other program may use them during the run."`
	KeyEnv                string        `yaml:"key_env" doc:"vllm, sglang: environment variable with the servers' API key."`
	Weights               EngineWeights `yaml:"weights" doc:"vllm, sglang: how the servers get the agent's weights."`
	Slots                 int           `yaml:"slots" default:"0" min:"0" max:"65536" doc:"Sequences that sample at once, on each of several devices; of a hosted model, conversations at once. 0: as many as a step can use, at most 128."`
	Conversations         int           `yaml:"conversations" default:"0" min:"0" max:"65536" doc:"Conversations at once, on each of several devices, with those that wait for a tool, for another agent or for a slot. 0: as many as slots."`
	CacheTokens           int           `yaml:"cache_tokens" default:"0" min:"0" doc:"Tokens of all conversations, on each of several devices, whose keys and values are kept, at least those of one. Conversations that wait make room for those that sample, and are then computed again. 0: slots × the longest conversation."`
	Context               int           `yaml:"context" default:"0" min:"0" doc:"Most tokens of a conversation. 0: limits.max_tokens or the model's limit, whichever is lower."`
	CUDAGraphs            bool          `yaml:"cuda_graphs" default:"true" doc:"On a GPU, decode passes are recorded once and replayed, as CUDA graphs. Where that fails they run without, and a note says so. false: always without."`
	MicroBatchTokens      int           `yaml:"micro_batch_tokens" default:"4096" min:"1" doc:"Tokens packed into one forward and backward pass; a common prefix of sequences counts once."`
	CheckpointActivations bool          `yaml:"checkpoint_activations" default:"false" doc:"Recompute activations in the backward pass: less memory, about a third more time."`
	DType                 string        `yaml:"dtype" default:"auto" enum:"auto|bf16" doc:"Weights for sampling. auto: the weights of training. bf16: on the CPU, a bf16 copy, renewed after each update (with train: false nothing else is kept); log-probs then differ from the trainer's (grpo.gap_warn)."`
}

// EngineWeights says how servers get an agent's weights, and how exactly they must compute with them.
type EngineWeights struct {
	Path      Path    `yaml:"path" doc:"Folder that this worker and the servers share under the same absolute path. Each version of the weights is a Hugging Face folder in it, which is removed when all servers hold the next one."`
	DType     string  `yaml:"dtype" default:"bf16" enum:"bf16|fp32" doc:"Type of the weights in these folders."`
	Tolerance float64 `yaml:"tolerance" default:"0" min:"0" doc:"After each update the servers sample some tokens. If their log-probs differ from the trainer's by more than this on average (nats), the run ends. 0: 0.05, with dtype fp32 0.001."`
}

// Tool is one tool that agents can call.
type Tool struct {
	Name       string   `yaml:"-"`
	Kind       string   `yaml:"kind" required:"true" enum:"search|visit|retriever|calculator|code|python|mcp" doc:"search: a local corpus. visit: the text of a web page. retriever: any HTTP service that answers a query with documents. calculator, code: Starlark without files or network. python: Python in a sandbox of the system (Linux). mcp: any MCP server (docs/tools.md)."`
	Corpus     Path     `yaml:"corpus" doc:"search: a JSONL file or a folder of Markdown."`
	Index      Path     `yaml:"index" doc:"search: folder in which the index of the corpus is kept, built by whoever needs it first and shared by all. Absent: each agent makes one in memory." change:"worker"`
	Command    []string `yaml:"command" doc:"mcp: program and arguments of a server on stdio."`
	Dir        Path     `yaml:"dir" default:"." doc:"mcp: folder in which command runs. Absent: the folder of this file." change:"worker"`
	Env        []string `yaml:"env" doc:"mcp: names of environment variables passed on to command. Values of 8 bytes or more are taken for secrets and replaced in what the server says."`
	Prefix     string   `yaml:"prefix" doc:"mcp: text before the names of the server's tools, such as github_, where two servers have a tool of one name."`
	Only       []string `yaml:"only" doc:"mcp: the server's tools that are offered, by the server's names. Absent: all."`
	URL        string   `yaml:"url" doc:"mcp: address of a server over HTTP. retriever: address of the service."`
	TokenEnv   string   `yaml:"token_env" doc:"mcp, retriever: environment variable whose value is sent to url as a bearer token." change:"worker"`
	Results    int      `yaml:"results" default:"3" min:"1" max:"100" doc:"search, retriever: results of one call."`
	Request    string   `yaml:"request" doc:"retriever: Go template of what is sent, of .Query and .Results: JSON, or a query string that begins with ?. Absent: as Search-R1's retriever wants it (docs/tools.md)."`
	Response   string   `yaml:"response" doc:"retriever: Go template that makes the text for the model of the JSON that comes back. Absent: for what Search-R1's retriever answers."`
	MaxSteps   int64    `yaml:"max_steps" default:"1000000" min:"1" doc:"code: Starlark steps of one call."`
	Visit      `yaml:",inline"`
	Python     `yaml:",inline"`
	ToolLimits `yaml:",inline"`
}

// Python sets the interpreter of a tool of the kind python and the bounds of its programs.
type Python struct {
	Interpreter string `yaml:"interpreter" default:"python3" doc:"python: the interpreter, a name in PATH or a path, such as that of a virtual environment, whose packages programs may import." change:"worker"`
	MaxMemory   int64  `yaml:"max_memory" default:"536870912" min:"67108864" doc:"python: bytes of address space of a program."`
	MaxFiles    int64  `yaml:"max_files" default:"16777216" min:"4096" doc:"python: bytes that a program may keep in /tmp, its only writable folder, for as long as it runs."`
}

// Visit says which pages a tool of the kind visit may fetch.
type Visit struct {
	Hosts     []string `yaml:"hosts" doc:"visit: hosts that may be visited: example.org, *.example.org (all below it), * (any); with :PORT if it is not the scheme's own."`
	Schemes   []string `yaml:"schemes" default:"[https]" doc:"visit: http, https or both."`
	Networks  []string `yaml:"networks" doc:"visit: networks such as 10.1.0.0/16 that may be connected to although their addresses are private, loopback or link-local. Absent: public addresses alone."`
	MaxPage   int64    `yaml:"max_page" default:"2097152" min:"1" max:"67108864" doc:"visit: bytes of the longest page that is read."`
	UserAgent string   `yaml:"user_agent" default:"mgrpo" doc:"visit: what it calls itself. The part before / or a space is the name under which robots.txt knows it. Many sites want an address for complaints in it."`
	Links     bool     `yaml:"links" default:"false" doc:"visit: true: links in the text are those of Markdown, with their addresses, so that the model can follow them."`
}

// ToolLimits bound the calls of a tool. Those of an agent count by themselves.
type ToolLimits struct {
	Timeout   time.Duration `yaml:"timeout" default:"10s" above:"0s" doc:"Longest time of one attempt at a call."`
	Retries   int           `yaml:"retries" default:"0" min:"0" max:"100" doc:"Further attempts at a call after a time-out or an error that may pass, such as a busy server, with growing pauses. Absent: 2 of visit and retriever, else 0."`
	MaxOutput int           `yaml:"max_output" default:"4096" min:"1" doc:"Bytes of output shown to the model; the rest is cut."`
	MaxCalls  int           `yaml:"max_calls" default:"0" min:"0" doc:"Calls in one conversation: a rollout of the main agent, an invocation of a sub-agent. Further ones are refused. 0: any number."`
	Parallel  int           `yaml:"parallel" default:"0" min:"0" max:"65536" doc:"Attempts at once, of one agent. 0: any number." change:"worker"`
	Rate      float64       `yaml:"rate" default:"0" min:"0" doc:"Attempts begun in a second, of one agent. 0: any number." change:"worker"`
	Cached    bool          `yaml:"cached" default:"true" doc:"false: never in the cache, and always asked, in a replay too. For a server on this machine, and for one whose answers depend on more than the arguments, such as the calls before."`
}

// Cache is a folder in which answers of outside services are kept.
type Cache struct {
	Dir  Path   `yaml:"dir" doc:"Folder that any number of workers may use at once. Absent: nothing is kept."`
	Mode string `yaml:"mode" default:"record" enum:"record|replay" doc:"record: who is not in the cache is asked, and the answer kept. replay: nobody is asked, and a question that is not in the cache ends the run."`
}

// Health is the address of a process's health endpoint and its access token.
type Health struct {
	Address  string `yaml:"address" doc:"HOST:PORT to listen at, such as 127.0.0.1:9464; port 0 means a free port. Absent: mgrpo worker listens at a free port of 127.0.0.1 and prints it, mgrpo train does not listen. mgrpo train --listen sets it."`
	TokenEnv string `yaml:"token_env" doc:"Environment variable with a token of at least 16 bytes that every request must carry as Authorization: Bearer TOKEN; a browser opens /live?token=TOKEN. Required where address is not 127.0.0.1, ::1 or localhost."`
}

// Gateway is the OpenAI-compatible endpoint of a process.
type Gateway struct {
	Listen        string `yaml:"listen" doc:"HOST:PORT to listen at, with /healthz, /readyz and /metrics on the same port. Absent: a free port of 127.0.0.1 if a program plays the rollouts, else no gateway."`
	Advertise     string `yaml:"advertise" doc:"URL at which programs and other workers reach this process, such as https://node3:8443. Absent: http://HOST:PORT of listen."`
	TokenEnv      string `yaml:"token_env" doc:"Environment variable with the token, of at least 16 bytes, that programs elsewhere need to ask for rollouts."`
	Cert          Path   `yaml:"cert" doc:"PEM file of this server's certificate. Absent: HTTP without TLS, on an address of this machine only unless allow_insecure is set."`
	Key           Path   `yaml:"key" doc:"PEM file of its key."`
	CA            Path   `yaml:"ca" doc:"PEM file of the authorities that sign other workers' certificates. Absent: the system's."`
	AllowInsecure string `yaml:"allow_insecure" enum:"|anyone may read and write" doc:"Must be the words 'anyone may read and write' to listen without TLS on an address that other machines reach."`
}
