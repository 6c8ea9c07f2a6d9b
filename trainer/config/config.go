// Package config is the YAML schema of mgrpo: the run, the store, the task, the algorithm, the agents and their tools.
//
// The structs are the schema: config.go holds the sections of a file, the other files hold
// their parts. The comment above a field is the key's meaning in docs/config.md. The rest of the package reads the tags:
//
//	yaml       the key
//	default    the value of an absent key, written as in YAML
//	required   "true": the key must be present
//	common     "true": most runs set it; docs/config.md begins with these keys
//	enum       the allowed values, separated by |
//	family     "true": the allowed values are the families of trainer/model/arch
//	verifier   "true": the allowed values are verifierKinds
//	layout     "true": the allowed values are layouts
//	tool       "true": the allowed values are the names in toolKinds
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
//	derived    "true": other keys can imply the value of an absent key; with the default 0, also if 0 is given
//	applies    the condition under which the key, or the section, has an effect: KEY=VALUE|VALUE, KEY!=VALUE or KEY (it is given),
//	           joined by " and " and " or "; KEY is in the same section or starts from the top
//	off        the value with which the key switches others off: these may then be given without effect
//
// Load reads a file, reports all unknown keys and bad values with file, line and column, and fills in the defaults.
// This package opens no model, data set or socket; Config.Find checks whether a model exists.
//
// Programs may rely on Load, Parse, the structs and Config.RunDir (docs/library.md). The other methods derive what mgrpo's own packages
// need, and change without notice.
package config

import "time"

// Config is a configuration file with all defaults filled in. Fields that a program changes are not checked, and values that were derived
// from them stay as they are: pass overrides to Load or Parse.
type Config struct {
	// The run: its name, its folder and its length.
	Run Run `yaml:"run" required:"true"`

	// The Redis store through which the agents communicate. Absent: an embedded store, with all agents in one process.
	Store Store `yaml:"store" change:"worker"`

	// The source of queries and the scoring of answers.
	Task Task `yaml:"task"`

	// The algorithm: groups, alignment, objective. Names and defaults follow docs/algorithm.md.
	// Keep the defaults of align.mode, sub_group, convention and exact_lag unless you compare methods.
	GRPO GRPO `yaml:"grpo"`

	// Held-out evaluation during training.
	Eval Eval `yaml:"eval" change:"resume"`

	// Supervised training on demonstrations before the first step of M-GRPO.
	ColdStart ColdStart `yaml:"cold_start" applies:"cold_start.demonstrations!=none"`

	// The team, in this order: exactly one main agent and any number of sub-agents.
	Agents []Agent `yaml:"agents" keyed:"true" required:"true"`

	// Tools that agents name in their tools list. calculator needs no entry.
	Tools []Tool `yaml:"tools" keyed:"true"`

	// Answers of outside services, stored on disk: web pages, retrievers, judges, MCP servers (docs/tools.md).
	Cache Cache `yaml:"cache" change:"worker"`

	// The team behind an OpenAI-compatible endpoint, so that your own program can hold its conversations
	// (docs/programs.md).
	Gateway Gateway `yaml:"gateway" change:"worker"`

	// Experiment trackers that receive the run's records during the run (docs/tracking.md).
	Tracking Tracking `yaml:"tracking" change:"worker"`

	// The HTTP endpoint of a process: GET /healthz (the process runs), /readyz (it takes part in the run), /metrics
	// (Prometheus) and /live (a live page of the run).
	Health Health `yaml:"health" change:"worker"`

	dir string              // folder of the file; relative paths start from it
	at  map[string]position // position of each given key
}

// Run holds the name, the folder and the length of a run.
type Run struct {
	// Name of the run: a letter, then letters, digits, dashes and underscores. Also names its keys in the store.
	Name string `yaml:"name" common:"true" required:"true"`

	// Folder for checkpoints, ledgers, metrics and trajectories. All workers may share it, or each server may have its
	// own. Absent: runs/NAME.
	Dir Path `yaml:"dir" common:"true" change:"worker"`

	// Seed of everything random: query order, sampling, alignment draws, initial weights.
	Seed uint64 `yaml:"seed" default:"0"`

	// Number of training steps, including the steps before a resume.
	Steps int64 `yaml:"steps" common:"true" default:"100" min:"0" max:"1e9" change:"resume"`

	// Steps between checkpoints. The last step, and every step with the best evaluation so far, also write one. 0:
	// only these steps do.
	CheckpointEvery int64 `yaml:"checkpoint_every" common:"true" default:"20" min:"0" max:"1e9" change:"resume"`

	// Number of newest checkpoints to keep. The best checkpoint, and the checkpoint of step 0, which contains the cold
	// start, are kept in addition.
	Keep int `yaml:"keep" default:"2" min:"2" max:"1e9" change:"resume"`

	// Type of the weights in a checkpoint's Hugging Face folders. auto: each tensor has the type of the initial
	// weights if they are bf16, or fp16, with or without some in fp32; else fp32. Training always resumes from fp32:
	// if a folder has 16-bit weights, the optimizer's file contains the fp32 weights.
	SaveDType string `yaml:"save_dtype" default:"auto" enum:"auto|fp32|bf16" change:"resume"`

	// Contents of a checkpoint of a model that is more than a language model, such as one that reads images. whole:
	// the folder as it was loaded, with copies of the parts that are not trained. text: only the language model, as a
	// separate model; adapters still belong to the whole model.
	Save string `yaml:"save" default:"whole" enum:"whole|text" change:"resume"`

	// Checkpoints contain AdamW's moments, two fp32 values for each trained parameter. false: a checkpoint takes a
	// third of the space (less than half if weights are saved in 16 bits), and a resume begins with moments of 0 and
	// reports this. The weights are then exact, but the run differs from an uninterrupted one.
	SaveMoments bool `yaml:"save_moments" default:"true" change:"resume"`

	// true: refuse to run if equal seeds and CPU features do not guarantee bit-equal results. Absent: runs on the CPU
	// are deterministic, other runs may not be.
	Deterministic *bool `yaml:"deterministic"`

	// true: training on a GPU uses algorithms that give the same bits for the same batch. The backward pass of
	// attention then takes 10 to 20 % longer. false: attention adds up the gradients of queries in a varying order, so
	// two trainings on a GPU differ by rounding. In either case, sampling on a GPU depends on which sequences share a
	// pass.
	GPUDeterministic bool `yaml:"gpu_deterministic" default:"false" change:"worker"`

	// team: all agents learn. main_only: sub-agents take part with frozen weights. single: only the main agent, with
	// the tools of the whole team.
	Arm string `yaml:"arm" default:"team" enum:"team|main_only|single"`

	// Date, as YYYY-MM-DD, that chat templates print as today. Absent: the day on which the main agent's worker begins
	// the run, which --resume keeps.
	Date string `yaml:"date" change:"worker"`

	// Matrix products in training on a CPU. bf16: if the processor multiplies bf16 faster (with AMX, or
	// the avx512_bf16 of AMD or Cooper Lake), factors are rounded to bf16 and products summed in fp32, in
	// about half the time. On other processors, including Intel processors whose AMX is switched off, it is the
	// same as fp32. Weights, activations and gradients stay fp32.
	// Products with quantised weights are never rounded, and products of adapters only with AMX. With
	// avx512_bf16 and without AMX, engines with dtype: bf16 also round their activations in products.
	Matmul string `yaml:"matmul" default:"fp32" enum:"fp32|bf16"`

	// CPU threads, divided among the agents of this process; generation also uses the threads of idle agents. 0: one
	// for each core that the process may use according to its affinity and its control groups' quota, rounded down, at
	// least 1.
	Threads int `yaml:"threads" default:"0" min:"0" max:"4096" change:"worker"`
}

// Store is the Redis store through which the agents communicate. The password comes from an environment variable or a
// file and is never in the configuration.
type Store struct {
	// redis://HOST:PORT/DB, rediss:// for TLS, unix:///SOCKET. Sentinel:
	// rediss://HOST:PORT/DB?master_name=NAME&addr=HOST:PORT. Cluster: rediss://HOST:PORT?addr=HOST:PORT. It must not
	// contain a password. Absent: embedded.
	URL string `yaml:"url"`

	// ACL user; url may contain it instead.
	Username string `yaml:"username"`

	// Environment variable with the password.
	PasswordEnv string `yaml:"password_env"`

	// File with the password; a newline at its end is ignored.
	PasswordFile Path `yaml:"password_file"`

	// Certificates for rediss://. Absent: the system's authorities.
	TLS TLS `yaml:"tls"`

	// Must be the words 'anyone may read and write' to use a store on another machine with neither TLS nor password.
	AllowInsecure string `yaml:"allow_insecure" enum:"|anyone may read and write"`

	// Must be the words 'data may be lost' to use a Redis without appendonly yes and maxmemory-policy noeviction.
	AllowVolatile string `yaml:"allow_volatile" enum:"|data may be lost"`

	// Longest wait for another agent. After that the run stops and names the missing agent. The same limit applies to
	// the ranks of an agent with several devices; a rank that exceeds it counts as lost.
	Timeout time.Duration `yaml:"timeout" default:"30m" above:"0s"`

	// A worker without a sign of life for this long is considered dead, and its work is given to another worker.
	Lease time.Duration `yaml:"lease" default:"15s" min:"1s" max:"10m"`

	// An invocation fails after this number of its agent's workers crashed while working on it, because it may be the
	// cause of the crashes.
	MaxDeliveries int `yaml:"max_deliveries" default:"5" min:"1" max:"1e6"`
}

// TLS names the certificates for a rediss:// store.
type TLS struct {
	// PEM file of the authorities that may sign the server's certificate.
	CA Path `yaml:"ca"`

	// PEM file of the client's certificate.
	Cert Path `yaml:"cert"`

	// PEM file of the client's key.
	Key Path `yaml:"key"`

	// Name that the server's certificate must carry. Absent: the host of url.
	ServerName string `yaml:"server_name"`
}

// Tracking names the experiment trackers that receive a run's records. The environment variables of the trackers' own
// clients hold the credentials.
type Tracking struct {
	// Project of Weights & Biases.
	WandB string `yaml:"wandb"`

	// URI/EXPERIMENT: an experiment on an MLflow server, such as http://127.0.0.1:5000/agents. Only EXPERIMENT: on the
	// server in MLFLOW_TRACKING_URI.
	MLflow string `yaml:"mlflow"`

	// Folder for TensorBoard: FOLDER/AGENT in it, where FOLDER is the name of the run's folder, gets the agent's events.
	TensorBoard Path `yaml:"tensorboard"`

	// Python that has the package wandb, mlflow or tensorboard.
	Python string `yaml:"python" default:"python3"`
}

// Cache configures the folder that stores answers of outside services.
type Cache struct {
	// Folder that any number of workers may use at once. Absent: nothing is stored.
	Dir Path `yaml:"dir"`

	// record: questions that are not in the cache are sent to their service, and the answers are stored. replay: no
	// service is asked, and a question that is not in the cache ends the run.
	Mode string `yaml:"mode" default:"record" enum:"record|replay"`
}

// Health is the address of a process's health endpoint and its access token.
type Health struct {
	// HOST:PORT to listen at, such as 127.0.0.1:9464; port 0 means a free port. Absent: mgrpo worker listens at a free
	// port of 127.0.0.1 and prints it, mgrpo train does not listen. mgrpo train --listen sets it.
	Address string `yaml:"address"`

	// Environment variable with a token of at least 16 bytes that every request must carry as Authorization: Bearer
	// TOKEN; a browser opens /live?token=TOKEN. Required if address is not 127.0.0.1, ::1 or localhost.
	TokenEnv string `yaml:"token_env"`
}

// Gateway is the OpenAI-compatible endpoint of a process.
type Gateway struct {
	// HOST:PORT to listen at, with /healthz, /readyz and /metrics on the same port. If other machines can reach it, set
	// health.address to the same address, and health.token_env. Absent: a free port of 127.0.0.1
	// if a program plays the rollouts, otherwise no gateway.
	Listen string `yaml:"listen"`

	// URL at which programs and other workers reach this process, such as https://node3:8443. Absent: HOST:PORT of
	// listen, with https:// if cert is given. Required if listen names no host, such as :9464.
	Advertise string `yaml:"advertise" applies:"listen or task.program.command or task.program.elsewhere"`

	// Environment variable with the token, of at least 16 bytes, that programs elsewhere need to request rollouts.
	TokenEnv string `yaml:"token_env" applies:"listen or task.program.command or task.program.elsewhere"`

	// PEM file of this server's certificate. Absent: HTTP without TLS. Without allow_insecure, listen must then be an
	// address that only this machine can reach.
	Cert Path `yaml:"cert"`

	// PEM file of its key.
	Key Path `yaml:"key"`

	// PEM file of the authorities that sign other workers' certificates. Absent: the system's.
	CA Path `yaml:"ca" applies:"listen or task.program.command or task.program.elsewhere"`

	// Must be the words 'anyone may read and write' to listen without TLS on an address that other machines can reach.
	AllowInsecure string `yaml:"allow_insecure" enum:"|anyone may read and write"`
}
