package config

import "time"

// Task is the source of queries and the scoring of answers.
type Task struct {
	// research: built in, generated. jsonl: your own questions and answers. gsm8k: the GSM8K files as published. go: a
	// Go program that uses the trainer as a library brings its task (docs/library.md).
	Kind string `yaml:"kind" common:"true" default:"research" enum:"research|jsonl|gsm8k|go"`

	// File of training queries: JSON lines, a JSON array, Parquet, .csv or .tsv (jsonl, gsm8k).
	Train Path `yaml:"train" common:"true" applies:"kind=jsonl|gsm8k"`

	// File of held-out queries, in the same formats (jsonl, gsm8k).
	Eval Path `yaml:"eval" common:"true" applies:"kind=jsonl|gsm8k" change:"resume"`

	// jsonl: further sets of held-out queries, by name. Evaluations report each set; only eval decides which version
	// is best.
	EvalSets []EvalSet `yaml:"eval_sets" keyed:"true" applies:"kind=jsonl" change:"resume"`

	// jsonl: stages of the training, by name, one after another from step 1 on. Each stage trains on some of the rows
	// for its steps; after the last stage, training uses all rows.
	Curriculum []Stage `yaml:"curriculum" keyed:"true" applies:"kind=jsonl"`

	// jsonl: names of the fields in the files. rows: as set in fields. Others: the published form of that benchmark,
	// or the form of that framework's rows (docs/verifiers.md).
	Layout string `yaml:"layout" default:"rows" applies:"kind=jsonl" layout:"true"`

	// Names of the fields of a row, with layout rows. Dots select within objects and lists, as in
	// reward_model.ground_truth or answers.0.text; a column with exactly this name takes precedence. The verifier
	// receives all fields.
	Fields Fields `yaml:"fields" applies:"kind=jsonl and layout=rows"`

	// Queries of one step (Q).
	QueriesPerStep int `yaml:"queries_per_step" common:"true" default:"16" min:"1" max:"65536" change:"resume"`

	// How the main agent's answer is scored (jsonl, gsm8k).
	Verifier Verifier `yaml:"verifier" applies:"kind=jsonl|gsm8k"`

	// How a sub-agent's answer is scored: its expert score (jsonl, gsm8k). Absent: as verifier.
	Expert Verifier `yaml:"expert" applies:"kind=jsonl|gsm8k and expert.kind!=auto"`

	// The model that scores answers if a verifier's kind is judge.
	Judge Judge `yaml:"judge" applies:"verifier.kind=judge or expert.kind=judge or kind=go"`

	// The program that plays the rollouts, in place of the main agent's own conversation. It calls the agents through
	// the gateway (docs/programs.md).
	Program Program `yaml:"program"`

	// The generated task: its knowledge bases and the mistakes in its demonstrations.
	Research Research `yaml:"research" applies:"kind=research"`
}

// EvalSet is a further set of held-out queries.
type EvalSet struct {
	Name string `yaml:"-"`

	// File of its queries, in the same formats as eval.
	Path Path `yaml:"path" required:"true"`

	// Names of the fields in the file, as for task.layout.
	Layout string `yaml:"layout" default:"rows" layout:"true"`
}

// Stage is a part of the training that uses some of the training rows.
type Stage struct {
	Name string `yaml:"-"`

	// Training steps of the stage.
	Steps int64 `yaml:"steps" required:"true" min:"1" max:"1e9"`

	// Only rows of these kinds (task.fields.kind). Absent: rows of all kinds.
	Kinds []string `yaml:"kinds"`

	// Only rows of these levels (task.fields.level). Absent: rows of all levels.
	Levels []string `yaml:"levels"`

	// Rows with at least this number of parts.
	MinParts int `yaml:"min_parts" default:"0" min:"0" max:"1e6"`

	// Rows with at most this number of parts. 0: any number.
	MaxParts int `yaml:"max_parts" default:"0" min:"0" max:"1e6"`

	// Kinds take turns, so that all kinds appear equally often, and a row of a rare kind appears more often than
	// others.
	Balance bool `yaml:"balance" default:"false"`
}

// Fields are the names of the fields that the task reads from a row.
type Fields struct {
	// Row id. A row without this field, or with null, uses its row number. Characters other than letters, digits and . _ : -
	// become %XX, as in an address.
	ID string `yaml:"id" default:"id"`

	// Text of the query, or messages: one user message, optionally after a system message, whose text is put in front
	// of it.
	Question string `yaml:"question" default:"question"`

	// Reference answer, or a list of accepted answers. For the verifier choice also an option's number, counted from 0
	// (as a number, or as a text if no option is this number), or label.
	Answer string `yaml:"answer" default:"answer"`

	// List of choices, for the verifier of that kind. With labels: {text: list, label: list} or {A: text, B: text}.
	Choices string `yaml:"choices" default:"choices"`

	// Kind of question; evaluations report each kind.
	Kind string `yaml:"kind" default:"kind"`

	// Difficulty; evaluations report each level.
	Level string `yaml:"level" default:"level"`

	// List of sub-questions, {question, answer}, for the expert of that kind.
	Parts string `yaml:"parts" default:"parts"`
}

// layouts are the allowed values of Task.Layout.
var layouts = []string{"rows", "hotpotqa", "2wiki", "musique", "frames", "fanoutqa", "webwalkerqa", "gaia", "browsecomp", "verl", "sharegpt"}

// verifierKinds are the allowed values of Verifier.Kind.
var verifierKinds = []string{"auto", "exact", "normalized", "exact_match", "f1", "quantity", "numeric", "choice", "regex", "parts", "judge", "program",
	"torchscript"}

// Verifier configures how one answer is converted into a score in [0, 1].
type Verifier struct {
	// auto: gsm8k numeric, jsonl normalized. parts, only for expert: as task.verifier, but compared with the part of
	// the question that the sub-task asks for. numeric reads \boxed, ####, or the last number. program: a program in
	// any language. torchscript: a module that scores. See docs/verifiers.md.
	Kind string `yaml:"kind" common:"true" default:"auto" verifier:"true"`

	// regex: RE2 pattern; the first group of its last match in the answer, or the whole match, is compared with the reference
	// answer.
	Pattern string `yaml:"pattern" applies:"kind=regex"`

	// numeric, quantity: greatest absolute difference that still counts as equal.
	Tolerance float64 `yaml:"tolerance" default:"0" min:"0" applies:"kind=numeric|quantity or kind=auto and task.kind=gsm8k"`

	// numeric, quantity: the same limit as a fraction of the reference answer. The larger of the two limits applies.
	Relative float64 `yaml:"relative" default:"0" min:"0" applies:"kind=numeric|quantity or kind=auto and task.kind=gsm8k"`

	// parts, only for expert: smallest fraction of a part's words that a sub-task must contain to ask for it. See
	// docs/verifiers.md.
	Overlap float64 `yaml:"overlap" default:"1" above:"0" max:"1" applies:"kind=parts"`

	// program: program and arguments, without a shell. It reads a JSON line for each answer and writes a JSON line
	// with its score.
	Command []string `yaml:"command" applies:"kind=program"`

	// program: working folder. Absent: the folder of this file.
	Dir Path `yaml:"dir" default:"." change:"worker"`

	// program: longest wait for one score.
	Timeout time.Duration `yaml:"timeout" default:"60s" above:"0s" applies:"kind=program" change:"worker"`

	// torchscript: the module, as torch.jit.save writes it. Loading it runs its code, so use only files from people
	// you trust.
	Path Path `yaml:"path" applies:"kind=torchscript"`

	// torchscript: folder with the tokenizer.json that the module was trained with, and its chat template if it has
	// one.
	Tokenizer Path `yaml:"tokenizer" applies:"kind=torchscript"`

	// torchscript: largest number of tokens of a question with its answer; a longer one gets no score.
	MaxTokens int `yaml:"max_tokens" default:"4096" min:"1" max:"1e9" applies:"kind=torchscript"`
}

// Program plays rollouts through the gateway.
type Program struct {
	// Program and arguments, without a shell, started once for each rollout by the main agent's worker. Absent, and
	// elsewhere false: the main agent plays the rollouts itself.
	Command []string `yaml:"command" change:"worker"`

	// true: programs on any machine request rollouts (mgrpo rollout), in place of command.
	Elsewhere bool `yaml:"elsewhere" default:"false"`

	// Working folder of the command. Absent: the folder of this file.
	Dir Path `yaml:"dir" default:"." change:"worker"`

	// Commands that run at once.
	Parallel int `yaml:"parallel" default:"8" min:"1" max:"4096" applies:"command" change:"worker"`

	// Time limit of a program. If a program takes longer, its rollout has failed.
	Timeout time.Duration `yaml:"timeout" default:"10m" above:"0s" applies:"command or elsewhere" change:"worker"`

	// Programs elsewhere: if a program does not renew its rollout for this long, another program gets it as the next
	// attempt.
	Lease time.Duration `yaml:"lease" default:"1m" min:"1s" applies:"elsewhere" change:"worker"`
}

// Judge is an OpenAI-compatible model that scores answers.
type Judge struct {
	// Base URL of an OpenAI-compatible API, such as https://host/v1.
	URL string `yaml:"url"`

	// Model name sent to it.
	Model string `yaml:"model"`

	// Environment variable with the API key.
	KeyEnv string `yaml:"key_env" change:"worker"`

	// File with the judge's instructions; {question}, {reference}, {answer}, {scale} and {row} (the row as JSON) are
	// replaced. Absent: the built-in prompt.
	Prompt Path `yaml:"prompt"`

	// Best score that the judge can give; scores are divided by it.
	Scale float64 `yaml:"scale" default:"1" above:"0"`

	// Longest wait for one reply.
	Timeout time.Duration `yaml:"timeout" default:"60s" above:"0s" change:"worker"`

	// Number of times that a request is repeated after a time-out, a broken connection, or the status 408, 425, 429 or
	// 5xx. Pauses double from half a second, or follow Retry-After.
	Retries int `yaml:"retries" default:"5" min:"0" max:"20" change:"worker"`
}

// Research sets the knowledge bases of the built-in task and the scripted experts of its cold start.
type Research struct {
	// Largest number of hops of a question; each number from 1 is equally likely.
	Hops int `yaml:"hops" default:"3" min:"1" max:"3"`

	// Largest number of parts of a fan-out question, in place of hops. Each number from 1 is equally likely. Each part
	// asks for its own name, and the answer is all the names; its score is the fraction that is right. The planner may
	// call twelve times. 0: chains of hops.
	Parts int `yaml:"parts" default:"0" min:"0" max:"6"`

	// Probability that a hop's subject is stored under an alias.
	Alias float64 `yaml:"alias" default:"0.25" min:"0" max:"1"`

	// Probability that a hop's fact has an outdated twin.
	Outdated float64 `yaml:"outdated" default:"0.5" min:"0" max:"1"`

	// Probability that a search finds nothing, also in demonstrations. Whether it does depends only on the seed and
	// the position of the call.
	Failures float64 `yaml:"failures" default:"0" min:"0" max:"1"`

	// Demonstrations: the researcher searches for one word instead of two.
	Keyword float64 `yaml:"keyword" default:"0.06" min:"0" max:"1"`

	// Demonstrations: the researcher quotes a random sentence.
	Random float64 `yaml:"random" default:"0.03" min:"0" max:"1"`

	// Demonstrations: the researcher quotes the outdated twin.
	Was float64 `yaml:"was" default:"0.55" min:"0" max:"1"`

	// Demonstrations: the researcher sees an alias and does not follow it.
	GiveUp float64 `yaml:"give_up" default:"0.55" min:"0" max:"1"`

	// Demonstrations: the planner answers before the last hop.
	Early float64 `yaml:"early" default:"0.08" min:"0" max:"1"`

	// Demonstrations: the planner asks for a random relation.
	WrongRel float64 `yaml:"wrong_relation" default:"0.05" min:"0" max:"1"`

	// Demonstrations: the planner asks again after the answer unknown.
	Reask float64 `yaml:"reask" default:"0.6" min:"0" max:"1"`
}
