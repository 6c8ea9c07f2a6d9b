package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

const team = "run: {name: t}\nagents: {a: {role: main, model: m}, b: {role: sub, model: m}}\n"

// faulty is a configuration that is refused.
type faulty struct {
	name, text string
	sets       []string
	want       string // all messages, one a line
}

// wantErrors compares messages word for word, because users read them.
func wantErrors(t *testing.T, all []faulty) {
	for _, test := range all {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse("f.yaml", []byte(test.text), test.sets)
			if err == nil {
				t.Fatal("no error")
			}
			if got := err.Error(); got != test.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, test.want)
			}
			var one *Error
			if !errors.As(err, &one) || one.Where == "" {
				t.Errorf("%T does not hold an *Error with a place", err)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	wantErrors(t, []faulty{
		{name: "keys that a module does not have", text: team, sets: []string{"agents.b.model={torchscript: m/policy.pt}", "agents.b.dtype=bf16", "agents.b.device=cuda", "agents.b.engine.checkpoint_activations=true", "agents.b.lora.r=4"},
			want: "--set agents.b.dtype=bf16: agents.b.dtype: the model of b is a TorchScript module, which has float32 parameters; remove this key\n" +
				"--set agents.b.engine.checkpoint_activations=true: agents.b.engine.checkpoint_activations: the model of b is a TorchScript module, which is computed as a whole; remove this key\n" +
				"--set agents.b.lora.r=4: agents.b.lora: the model of b is a TorchScript module, which has layers that mgrpo does not know, so it cannot adapt them; remove this key"},
		{name: "unknown key", text: team + "grpo:\n  eps_lo: 0.1\n",
			want: "f.yaml:4:3: grpo.eps_lo: unknown key; did you mean eps_low?"},
		{name: "swapped letters", text: team + "grpo: {rollotus: 4}\n",
			want: "f.yaml:3:8: grpo.rollotus: unknown key; did you mean rollouts?"},
		{name: "another number and three edits", text: team + "task: {query_per_step: 4}\n",
			want: "f.yaml:3:8: task.query_per_step: unknown key; did you mean queries_per_step?"},
		{name: "key of another section", text: team + "eval: {rollouts: 4}\n",
			want: "f.yaml:3:8: eval.rollouts: unknown key; did you mean grpo.rollouts?"},
		{name: "key like no other", text: team + "store: {zzzzzzzzz: 4}\n",
			want: "f.yaml:3:9: store.zzzzzzzzz: unknown key; valid are url, username, password_env, password_file, tls, allow_insecure, allow_volatile, timeout, lease, max_deliveries"},
		{name: "short key like no other", text: team + "grpo: {align: {k: 2}}\n",
			want: "f.yaml:3:16: grpo.align.k: unknown key; valid are d, mode"},
		{name: "key that only looks alike", text: team + "tools: {x: {kind: search, max_cals: 2, result: 1}}\n",
			want: "f.yaml:3:27: tools.x.max_cals: unknown key; did you mean max_calls?\nf.yaml:3:40: tools.x.result: unknown key; did you mean results?"},
		{name: "unknown section", text: team + "evaluation: {}\n",
			want: "f.yaml:3:1: evaluation: unknown key; sections are run, store, task, grpo, eval, cold_start, agents, tools, cache, gateway, tracking, health"},
		{name: "missing", text: "run: {}\nagents: {a: {role: main}}\n",
			want: "f.yaml:1:6: run.name: missing, but required\nf.yaml:2:10: agents.a.model: missing, but required"},
		{name: "empty file", text: "",
			want: "f.yaml:1:1: run: missing, but required\nf.yaml:1:1: agents: missing, but required"},
		{name: "paths of a shell", text: team + "tools: {s: {kind: search, corpus: ~/c}}\n", sets: []string{"run.dir='~'", "agents.a.model=$HOME/m", "cold_start.demonstrations=a/${B}/c"},
			want: "f.yaml:3:35: tools.s.corpus: \"~/c\" is not expanded here: write the full path\n" +
				"--set run.dir='~': run.dir: \"~\" is not expanded here: write the full path\n" +
				"--set cold_start.demonstrations=a/${B}/c: cold_start.demonstrations: \"a/${B}/c\" is not expanded here: write the full path\n" +
				"--set agents.a.model=$HOME/m: agents.a.model: \"$HOME/m\" is not expanded here: write the full path"},
		{name: "types", text: team + "grpo:\n  rollouts: 3.5\n  eps_low: low\n  align: 4\n  dual_clip: off\n  temperature: .inf\neval: {before: 1}\nstore: {timeout: 30, url: 5}\n",
			want: "f.yaml:4:13: grpo.rollouts: must be a whole number; found the number 3.5\n" +
				"f.yaml:5:12: grpo.eps_low: must be a finite number; found the text \"low\"\n" +
				"f.yaml:6:10: grpo.align: must be a section with keys such as d; found the number 4\n" +
				"f.yaml:7:14: grpo.dual_clip: must be a number or none; found the text \"off\"\n" +
				"f.yaml:8:16: grpo.temperature: must be a finite number; found the number .inf\n" +
				"f.yaml:9:16: eval.before: must be true or false; found the number 1\n" +
				"f.yaml:10:18: store.timeout: must be a duration such as 30s or 10m; found the number 30\n" +
				"f.yaml:10:27: store.url: must be text, in quotes if it looks like something else; found the number 5"},
		{name: "not finite", text: team + "grpo: {dual_clip: .inf, log_ratio_clamp: .nan, eps_high: -.inf, std_eps: .NaN}\n",
			want: "f.yaml:3:19: grpo.dual_clip: must be a number or none; found the number .inf\n" +
				"f.yaml:3:42: grpo.log_ratio_clamp: must be a number or none; found the number .nan\n" +
				"f.yaml:3:58: grpo.eps_high: must be a finite number; found the number -.inf\n" +
				"f.yaml:3:74: grpo.std_eps: must be a finite number; found the number .NaN"},
		{name: "bounds", text: team + "grpo: {rollouts: 1, temperature: 0, eps_low: 1.5, log_ratio_clamp: 90}\nstore: {lease: 10ms}\nrun2: 1\n",
			want: "f.yaml:3:18: grpo.rollouts: must be at least 2; found 1\n" +
				"f.yaml:3:34: grpo.temperature: must be at least 1e-6; found 0\n" +
				"f.yaml:3:46: grpo.eps_low: must be at most 1; found 1.5\n" +
				"f.yaml:3:68: grpo.log_ratio_clamp: must be at most 88; found 90\n" +
				"f.yaml:4:16: store.lease: must be at least 1s; found 10ms\n" +
				"f.yaml:5:1: run2: unknown key; did you mean run?"},
		{name: "too many", text: team, sets: []string{"grpo.resample=1000000000000000000", "eval.queries=5000000000"},
			want: "--set grpo.resample=1000000000000000000: grpo.resample: must be at most 65536; found 1000000000000000000\n" +
				"--set eval.queries=5000000000: eval.queries: must be at most 1e6; found 5000000000"},
		{name: "list", text: "run: {name: t}\nagents: {a: {role: main, model: m, optimizer: {betas: [0.9]}, tools: calculator, delegates: [b, 3]}, b: {role: sub, model: m, optimizer: {betas: [0.9, 1]}}}\n",
			want: "f.yaml:2:55: agents.a.optimizer.betas: must be a list of 2 numbers; found a list of 1\n" +
				"f.yaml:2:70: agents.a.tools: must be a list such as [a, b]; found the text \"calculator\"\n" +
				"f.yaml:2:97: agents.a.delegates[1]: must be text, in quotes if it looks like something else; found the number 3\n" +
				"f.yaml:2:152: agents.b.optimizer.betas[1]: must be below 1; found 1"},
		{name: "word", text: team + "grpo: {ratio: tokens, kl: k9}\n",
			want: "f.yaml:3:15: grpo.ratio: \"tokens\" is not possible; did you mean token?\n" +
				"f.yaml:3:27: grpo.kl: \"k9\" is not possible; did you mean k1?"},
		{name: "given twice", text: team + "run: {name: u}\ngrpo: {rollouts: 4, rollouts: 5}\n",
			want: "f.yaml:3:1: run: given twice; first at line 1\nf.yaml:4:21: grpo.rollouts: given twice; first at line 4"},
		{name: "not YAML", text: "run: {name: t\n",
			want: "f.yaml:1:6: not YAML: could not find flow mapping end token '}'"},
		{name: "two documents", text: team + "---\nrun: {}\n",
			want: "f.yaml:4:4: a second YAML document; a configuration is one document"},
		{name: "merge key", text: team + "grpo: {<<: {rollouts: 4}}\n",
			want: "f.yaml:3:8: grpo: merge keys (<<) are not supported in a configuration; repeat the keys or use an alias for the whole value"},
		{name: "sets", text: team, sets: []string{"run.stps=3", "agents.c.device=cpu", "run.name.x=1", "grpo.rollouts=", "steps", "grpo.align={d: [}"},
			want: "--set agents.c.device=cpu: agents.c: not in the file; valid are a, b\n" +
				"--set run.name.x=1: run.name.x: run.name is the text \"t\", which has no keys\n" +
				"--set steps: must be KEY=VALUE, such as run.steps=3\n" +
				"--set grpo.align={d: [}: grpo.align: not YAML: could not find '{' character corresponding to '}'\n" +
				"--set run.stps=3: run.stps: unknown key; did you mean steps?\n" +
				"--set grpo.rollouts=: grpo.rollouts: must be a whole number; found the text \"\""},
		{name: "date", text: team, sets: []string{"run.date=26.7.2024"},
			want: "--set run.date=26.7.2024: run.date: \"26.7.2024\" is not a date; use YYYY-MM-DD"},
		{name: "health", text: team + "health: {address: \"0.0.0.0:9464\"}\n",
			want: "f.yaml:3:1: health.token_env: missing; health.address 0.0.0.0:9464 is open to other machines, so requests need a token"},
		{name: "health everywhere", text: team + "health: {address: \":70000\"}\n",
			want: "f.yaml:3:1: health.token_env: missing; health.address :70000 is open to other machines, so requests need a token\n" +
				"f.yaml:3:10: health.address: \"70000\" is not a port; use a number from 0 to 65535"},
		{name: "health by name", text: team + "health: {address: worker-1:80, token_env: no name}\n",
			want: "f.yaml:3:32: health.token_env: must be the name of an environment variable, not the token itself"},
		{name: "health of nothing", text: team + "health: {token_env: T}\n",
			want: "f.yaml:3:1: health.address: missing; a token has an effect only with an address"},
		{name: "health without port", text: team + "health: {address: localhost}\n",
			want: "f.yaml:3:10: health.address: must be HOST:PORT, such as 127.0.0.1:9464"},
		{name: "gateway for other machines without a token for its page", text: team + "gateway: {listen: \"node0:9464\", cert: a.crt, key: a.key}\n",
			want: "f.yaml:3:11: gateway.listen: node0:9464 is open to other machines, and so is the page at the same port: " +
				"set health.address to the same address, and health.token_env"},
	})
}

func TestErrorsOfAgents(t *testing.T) {
	wantErrors(t, []faulty{
		{name: "no main agent", text: "run: {name: t}\nagents: {a: {role: sub, model: m}}\n",
			want: "f.yaml:2:1: agents: one agent must have role: main"},
		{name: "two main agents", text: "run: {name: t}\nagents: {a: {role: main, model: m}, b: {role: main, model: m}}\n",
			want: "f.yaml:2:41: agents.b.role: a is main already; a team has one main agent"},
		{name: "agent name", text: "run: {name: t}\nagents: {a: {role: main, model: m}, \"b c\": {role: sub, model: m}}\n",
			want: "f.yaml:2:37: agents.b c: not a name; names start with a letter and have at most 64 letters, digits, dashes and underscores"},
		{name: "delegates and tools", text: "run: {name: t}\nagents:\n  a: {role: main, model: m, delegates: [solvr, a], tools: [calculater]}\n  solver: {role: sub, model: m, delegates: [a]}\n",
			want: "f.yaml:3:41: agents.a.delegates[0]: \"solvr\" is not a sub-agent; did you mean solver?\n" +
				"f.yaml:3:48: agents.a.delegates[1]: \"a\" is not a sub-agent; valid are solver\n" +
				"f.yaml:3:60: agents.a.tools[0]: \"calculater\" is not a tool; did you mean calculator?\n" +
				"f.yaml:4:33: agents.solver.delegates: only the main agent delegates"},
		{name: "device", text: "run: {name: t}\nagents: {a: {role: main, model: m, device: gpu}, b: {role: sub, model: m, device: \"cuda:0,cuda:1\"}, c: {role: sub, model: m, dtype: bf16}}\n",
			want: "f.yaml:2:36: agents.a.device: \"gpu\" is not possible; valid are cpu, cuda, cuda:N\n" +
				"f.yaml:2:75: agents.b.device: must be one device; give several as a list under devices, such as [cuda:0, cuda:1]\n" +
				"f.yaml:2:126: agents.c.dtype: bf16 is for GPUs; on the CPU an agent is fp32"},
		{name: "devices", text: "run: {name: t}\nagents:\n  a: {role: main, model: m, device: cpu, devices: [\"cuda:0\", cpu, gpu]}\n  b: {role: sub, model: m, train: false, devices: [cpu, cpu], engine: {kind: vllm, url: [\"http://h:1\"], weights: {path: w}}}\n",
			want: "f.yaml:3:42: agents.a.devices: given in addition to device, which is cpu; keep one\n" +
				"f.yaml:3:62: agents.a.devices[1]: is cpu, but the first device is cuda:0; the devices of an agent must all be CPUs or all GPUs\n" +
				"f.yaml:3:67: agents.a.devices[2]: \"gpu\" is not possible; valid are cpu, cuda, cuda:N\n" +
				"f.yaml:4:42: agents.b.devices: several devices share the work of training, but b is not trained and samples on servers; give one device"},
		{name: "overrides of device and devices", text: team, sets: []string{"agents.a.devices=[\"cuda:0\"]", "agents.a.device=cpu"},
			want: "--set agents.a.devices=[\"cuda:0\"]: agents.a.devices: given in addition to device, which is cpu; keep one"},
		{name: "many devices", text: team, sets: []string{"agents.a.devices=[" + strings.Repeat("cpu, ", 64) + "cpu]"},
			want: "--set agents.a.devices=[cpu, cpu, cpu, cpu, cpu, cpu, cpu, cpu, cp…: agents.a.devices: 65 devices are more than the 64 that one machine can have"},
		{name: "machines", text: "run: {name: t}\nagents:\n  a: {role: main, model: m, machines: {count: 2}}\n  b: {role: sub, model: m, machines: {count: 3, address: \"0.0.0.0:9\", key_env: \"s3 cret\", key_file: k}}\n  c: {role: sub, model: m, machines: {count: 2, address: \"h:0\", key_file: k}}\n",
			want: "f.yaml:3:29: agents.a.machines.key_env: missing; 2 machines need a key to recognise each other: name a variable, or give key_file\n" +
				"f.yaml:3:29: agents.a.machines.address: missing; give HOST:PORT of the first machine, where the other machines find the worker\n" +
				"f.yaml:4:49: agents.b.machines.address: \"0.0.0.0:9\" does not name a machine; use the HOST:PORT at which the others reach the first\n" +
				"f.yaml:4:71: agents.b.machines.key_env: must be the name of an environment variable, not the key itself\n" +
				"f.yaml:4:91: agents.b.machines.key_file: given in addition to key_env; keep one\n" +
				"f.yaml:5:49: agents.c.machines.address: \"h:0\" is not possible; use HOST:PORT, such as 10.0.0.5:9470"},
		{name: "machines of one address", text: "run: {name: t}\nagents:\n  a: {role: main, model: m, machines: {count: 2, address: \"h:9\", key_file: k}}\n  b: {role: sub, model: m, machines: {count: 64, address: \"h:9\", key_file: k}, devices: [" + strings.Repeat("cpu, ", 16) + "cpu]}\n",
			want: "f.yaml:4:39: agents.b.machines.count: 64 machines with 17 devices each are more than 1024 devices\n" +
				"f.yaml:4:50: agents.b.machines.address: is also the address of a; each agent's worker needs its own address"},
		{name: "machines of a hosted model", text: "run: {name: t}\ntask: {kind: jsonl, train: r, eval: r}\nagents: {a: {role: main, model: m}, b: {role: sub, machines: {count: 2, address: \"h:9\", key_file: k}, model: {kind: openai, url: \"https://h/v1\", name: n}}}\n",
			want: "f.yaml:3:52: agents.b.machines: the model of b is hosted, so this key does not apply; remove this key"},
		{name: "devices of a hosted model", text: "run: {name: t}\ntask: {kind: jsonl, train: r, eval: r}\nagents: {a: {role: main, model: m}, b: {role: sub, devices: [cpu, cpu], model: {kind: openai, url: \"https://h/v1\", name: n}}}\n",
			want: "f.yaml:3:52: agents.b.devices: the model of b is hosted, so this key does not apply; remove this key"},
		{name: "quantised on a server", text: "run: {name: t}\nagents: {a: {role: main, model: m}, b: {role: sub, model: m.gguf, train: false, dtype: quantised, engine: {kind: vllm, url: [\"http://127.0.0.1:1\"], weights: {path: w}}}}\n",
			want: "f.yaml:2:81: agents.b.dtype: a server takes whole weights, and quantised ones cannot be written; set dtype: auto"},
		{name: "quantised", text: "run: {name: t}\nagents: {a: {role: main, model: m.gguf, dtype: quantised}, b: {role: sub, model: m, train: false, dtype: quantised}, c: {role: sub, model: m.gguf, train: false, dtype: quantised, engine: {dtype: bf16}}}\n",
			want: "f.yaml:2:41: agents.a.dtype: quantised weights cannot be trained in full; set dtype: auto, train adapters (lora), or set train: false and no cold start\n" +
				"f.yaml:2:99: agents.b.dtype: only the model of a .gguf file can stay quantised; set dtype: auto\n" +
				"f.yaml:2:189: agents.c.engine.dtype: the weights stay quantised for sampling, too; remove this key"},
		{name: "half copy on a GPU", text: "run: {name: t}\nagents: {a: {role: main, model: m, device: cuda, engine: {dtype: bf16}}}\n",
			want: "f.yaml:2:59: agents.a.engine.dtype: bf16 with fp32 training is only for the CPU; on a GPU set dtype: bf16"},
		{name: "half cache on a GPU, and on a server", text: "run: {name: t}\nagents:\n  a: {role: main, model: m, device: cuda, engine: {cache_dtype: bf16}}\n" +
			"  b: {role: sub, model: m, engine: {kind: vllm, url: [\"http://h:1\"], weights: {path: w}, cache_dtype: bf16}}\n",
			want: "f.yaml:3:52: agents.a.engine.cache_dtype: on a GPU keys and values have the type of the model; remove this key, or set dtype: bf16\n" +
				"f.yaml:4:90: agents.b.engine.cache_dtype: has an effect only with agents.b.engine.kind local; set that, or remove this key"},
		{name: "engines", text: "run: {name: t}\nagents:\n  a: {role: main, model: m, engine: {url: [\"http://h\"], key_env: K, weights: {path: w, dtype: fp32, tolerance: 1}}}\n" +
			"  b: {role: sub, model: m, engine: {kind: vllm, dtype: bf16, key_env: \"s3 cret\"}}\n  c: {role: sub, model: m, engine: {kind: sglang, url: [h, \"http://x\", \"http://x\"], weights: {path: w}}}\n",
			want: "f.yaml:3:38: agents.a.engine.url: has an effect only with agents.a.engine.kind vllm or sglang; set that, or remove this key\n" +
				"f.yaml:3:57: agents.a.engine.key_env: has an effect only with agents.a.engine.kind vllm or sglang; set that, or remove this key\n" +
				"f.yaml:3:79: agents.a.engine.weights.path: has an effect only with agents.a.engine.kind vllm or sglang; set that, or remove this key\n" +
				"f.yaml:3:88: agents.a.engine.weights.dtype: has an effect only with agents.a.engine.kind vllm or sglang; set that, or remove this key\n" +
				"f.yaml:3:101: agents.a.engine.weights.tolerance: has an effect only with agents.a.engine.kind vllm or sglang; set that, or remove this key\n" +
				"f.yaml:4:28: agents.b.engine.url: missing; an engine of kind vllm needs the address of a server\n" +
				"f.yaml:4:28: agents.b.engine.weights.path: missing; an engine of kind vllm needs a folder to read weights from\n" +
				"f.yaml:4:49: agents.b.engine.dtype: has an effect only with agents.b.engine.kind local; set that, or remove this key\n" +
				"f.yaml:4:62: agents.b.engine.key_env: must be the name of an environment variable, not the key itself\n" +
				"f.yaml:5:57: agents.c.engine.url[0]: must start with http:// or https://\n" +
				"f.yaml:5:72: agents.c.engine.url[2]: is given twice"},
		{name: "an engine of two agents", text: "run: {name: t}\nagents:\n  a: {role: main, model: {width: 64, layers: 1, heads: 4, ffn: 8}, engine: {kind: vllm, url: [\"http://h:1\"], weights: {path: w}}}\n" +
			"  b: {role: sub, model: {width: 64, layers: 1, heads: 4, ffn: 8}, engine: {kind: vllm, url: [\"http://h:2\", \"http://h:1\"], weights: {path: w}}}\n", want: "f.yaml:4:108: agents.b.engine.url[1]: is also the address of a; a server holds the weights of one agent"},
		{name: "shape", text: "run: {name: t}\nagents: {a: {role: main, model: {width: 65, layers: 1, heads: 4, kv_heads: 3, ffn: 8}}}\n",
			want: "f.yaml:2:26: agents.a.model.head_dim: missing; width 65 is not a multiple of heads, 4\n" +
				"f.yaml:2:66: agents.a.model.kv_heads: must divide heads, 4; found 3"},
		{name: "hosted", text: "run: {name: t}\nagents:\n  a: {role: main, model: m}\n" +
			"  b: {role: sub, train: true, device: cuda, dtype: bf16, reference: r, cold_start: {steps: 3}, model: {kind: openai, url: \"https://u:geheim@h/v1\", name: \"\", key_env: my key}}\n" +
			"  c: {role: sub, model: {kind: grpc, url: h}}\n",
			want: "f.yaml:5:25: agents.c.model.name: missing, but required\n" +
				"f.yaml:5:32: agents.c.model.kind: \"grpc\" is not possible; the only word is \"openai\""},
		{name: "hosted, together with others", text: "run: {name: t}\nagents:\n  a: {role: main, model: m}\n" +
			"  b: {role: sub, train: true, device: cuda, dtype: bf16, reference: r, cold_start: {steps: 3}, model: {kind: openai, url: \"https://u:geheim@h/v1\", name: \"\", key_env: my key}}\n",
			want: "f.yaml:4:18: agents.b.train: the model of b is hosted: it cannot be trained; remove this key\n" +
				"f.yaml:4:31: agents.b.device: the model of b is hosted, so this key does not apply; remove this key\n" +
				"f.yaml:4:45: agents.b.dtype: the model of b is hosted, so this key does not apply; remove this key\n" +
				"f.yaml:4:58: agents.b.reference: has an effect only with grpo.kl other than none; set that, or remove this key\n" +
				"f.yaml:4:58: agents.b.reference: the model of b is hosted, so this key does not apply; remove this key\n" +
				"f.yaml:4:85: agents.b.cold_start.steps: the model of b is hosted: it cannot have a cold start; remove this key\n" +
				"f.yaml:4:96: agents.b.model: the task research has its own dialect, which a hosted model cannot use; use jsonl or gsm8k\n" +
				"f.yaml:4:118: agents.b.model.url: must start with http:// or https:// and contain no user; put the key into the environment variable that key_env names\n" +
				"f.yaml:4:148: agents.b.model.name: missing; the API needs the name of a model\n" +
				"f.yaml:4:158: agents.b.model.key_env: must be the name of an environment variable, not the key itself"},
		{name: "nobody to train", text: "run: {name: t}\ntask: {kind: jsonl, train: r, eval: r}\nagents: {a: {role: main, model: {kind: openai, url: \"https://h/v1\", name: m}}, b: {role: sub, model: m}}\n", sets: []string{"run.arm=main_only"},
			want: "f.yaml:3:1: agents: no agent learns in the arm main_only; set train: true on one, or run.steps: 0"},
		{name: "shards of one device", text: "run: {name: t}\ntask: {kind: jsonl, train: r, eval: r}\nagents: {a: {role: main, model: m, shard: full}}\n",
			want: "f.yaml:3:36: agents.a.shard: full divides the weights among devices, but a has one; name several under devices, or remove this key"},
		{name: "shards that are sampled from", text: "run: {name: t}\ntask: {kind: jsonl, train: r, eval: r}\nagents: {a: {role: main, model: m, devices: [cpu, cpu], shard: full}}\n",
			want: "f.yaml:3:57: agents.a.shard: with full no device holds all weights, but a is sampled on its devices; sample on servers (engine.kind), or remove this key"},
		{name: "shards of an adapter", text: "run: {name: t}\ntask: {kind: jsonl, train: r, eval: r}\nagents: {a: {role: main, model: m, devices: [cpu, cpu], lora: {r: 2}, shard: full}}\n",
			want: "f.yaml:3:71: agents.a.shard: full divides trained weights, but a trains adapters; remove this key"},
		{name: "shards of whole passes", text: "run: {name: t}\ntask: {kind: jsonl, train: r, eval: r}\nagents: {a: {role: main, model: m, devices: [cpu, cpu], shard: full, engine: {kind: vllm, url: [\"http://h:1\"], weights: {path: w}}}}\n",
			want: "f.yaml:3:57: agents.a.shard: full gathers one layer at a time, which needs passes that run layer by layer; set engine.checkpoint_activations: true"},
	})
}

// Agents that cannot take part, or cannot be saved.
func TestErrorsOfMembers(t *testing.T) {
	wantErrors(t, []faulty{
		{name: "no delegates", text: team, sets: []string{"agents.a.delegates=[]"},
			want: "--set agents.a.delegates=[]: agents.a.delegates: is empty, so b would never take part; name sub-agents, or remove this key"},
		{name: "a file of checkpoints", text: "run: {name: t}\nagents: {a: {role: main, model: m}, agreed: {role: sub, model: m}}\n",
			want: "f.yaml:2:37: agents.agreed: a checkpoint has a file of this name where the agent's folder would be; choose another name"},
	})
}

func TestErrorsOfOtherSections(t *testing.T) {
	wantErrors(t, []faulty{
		{name: "password in url", text: team + "store: {url: \"redis://u:geheim@h/0\"}\n",
			want: "f.yaml:3:9: store.url: contains a password; put it into an environment variable and name the variable in store.password_env"},
		{name: "words", text: team + "store: {allow_insecure: yes please}\n",
			want: "f.yaml:3:25: store.allow_insecure: \"yes please\" is not possible; the only word is \"anyone may read and write\""},
		{name: "combinations", text: team + "grpo: {aggregation: constant, convention: leave_one_out_std, kl_coef: 0.1, tis_cap: 2, minibatches: 20, gap_warn: 1, max_lag: 1}\n", sets: []string{"run.deterministic=true", "agents.b.device=cuda"},
			want: "f.yaml:3:1: grpo.max_length: missing; aggregation constant divides by it\n" +
				"f.yaml:3:1: grpo.gap_stop: must be at least grpo.gap_warn, 1\n" +
				"f.yaml:3:31: grpo.convention: leave_one_out_std needs trajectories of weight 1, but grpo.align.mode draw gives other weights; set it to none\n" +
				"f.yaml:3:62: grpo.kl_coef: has an effect only with grpo.kl other than none; set that, or remove this key\n" +
				"f.yaml:3:76: grpo.tis_cap: needs grpo.old: recomputed; with the sampler's own log-probs every weight is 1\n" +
				"f.yaml:3:88: grpo.minibatches: must be at most task.queries_per_step, 16: a minibatch takes whole queries\n" +
				"f.yaml:3:118: grpo.max_lag: the versions that sample then depend on the clock: run.deterministic cannot be true"},
		{name: "removal credit of a program", text: team + "grpo: {credit: removal}\n", sets: []string{"task={kind: jsonl, train: r, eval: r}", "task.program.command=[x]"},
			want: "f.yaml:3:8: grpo.credit: a program plays the rollouts, so the main agent cannot answer again without a call; use outcome"},
		{name: "removal credit of a hosted model", text: team + "grpo: {credit: removal}\n", sets: []string{"task={kind: jsonl, train: r, eval: r}", "agents.a.model={kind: openai, url: https://h/v1, name: n}"},
			want: "f.yaml:3:8: grpo.credit: the model of a is hosted, so it cannot answer again without a call; use outcome"},
		{name: "removal credit with folds", text: team + "grpo: {credit: removal}\n", sets: []string{"task={kind: jsonl, train: r, eval: r}", "agents.a.limits.fold={at: 2000}"},
			want: "f.yaml:3:8: grpo.credit: the conversations of a are folded, so it cannot answer again without a call; use outcome, or remove limits.fold"},
		{name: "exact lag", text: team + "grpo: {exact_lag: true}\n", sets: []string{"run.deterministic=true"},
			want: "f.yaml:3:8: grpo.exact_lag: needs grpo.max_lag above 0"},
		{name: "reference after no cold start", text: team + "grpo: {kl: k3, reference: cold_start}\ncold_start: {demonstrations: none}\n",
			want: "f.yaml:3:16: grpo.reference: is cold_start, but a has no cold start: set auto, or agents.a.reference\n" +
				"f.yaml:3:16: grpo.reference: is cold_start, but b has no cold start: set auto, or agents.b.reference"},
		{name: "research's verifier", text: team + "task: {verifier: {kind: numeric}}\n",
			want: "f.yaml:3:19: task.verifier.kind: has an effect only with task.kind jsonl or gsm8k; set that, or remove this key"},
		{name: "temperatures", text: team + "eval: {temperature: 1e-9}\n",
			want: "f.yaml:3:8: eval.temperature: must be 0, which is greedy, or at least 1e-6"},
		{name: "task files", text: team + "task: {kind: gsm8k, train: a.jsonl, verifier: {kind: regex, pattern: \"(\"}, expert: {kind: judge}}\n",
			want: "f.yaml:3:1: task.eval: missing; the task gsm8k reads its held-out queries from this file\n" +
				"f.yaml:3:1: task.judge: task.expert uses a judge: url must start with http:// or https://, and model must be given\n" +
				"f.yaml:3:61: task.verifier.pattern: error parsing regexp: missing closing ): `(`"},
		{name: "demonstrations from parts", text: team, sets: []string{"cold_start.demonstrations=parts", "agents.a.cold_start.steps=1"},
			want: "--set cold_start.demonstrations=parts: cold_start.demonstrations: demonstrations are not made from parts; name a file of chats, or write ./parts for a file of that name"},
		{name: "parts", text: team + "task: {kind: jsonl, train: a, eval: b, verifier: {kind: parts}, expert: {kind: numeric, overlap: 0.5}}\n",
			want: "f.yaml:3:51: task.verifier.kind: parts scores only sub-agents' answers; set task.expert.kind: parts, and here a kind that compares answers\n" +
				"f.yaml:3:89: task.expert.overlap: has an effect only with task.expert.kind parts; set that, or remove this key"},
		{name: "parts of nothing", text: team + "task: {kind: gsm8k, train: a, eval: b, expert: {kind: parts}}\n",
			want: "f.yaml:3:49: task.expert.kind: the rows of gsm8k have no parts; use task.kind: jsonl"},
		{name: "layout", text: team + "task: {kind: jsonl, train: a, eval: b, layout: musique, fields: {answer: a}}\n",
			want: "f.yaml:3:66: task.fields.answer: has an effect only with task.kind jsonl and task.layout rows; set that, or remove this key"},
		{name: "evaluation sets", text: team + "task: {eval_sets: {hard: {path: h, layout: row}, \"a b\": {}}}\n",
			want: "f.yaml:3:44: task.eval_sets.hard.layout: \"row\" is not possible; did you mean rows?\nf.yaml:3:50: task.eval_sets.a b: not a name; names start with a letter and have at most 64 letters, digits, dashes and underscores"},
		{name: "evaluation sets of a task", text: team + "task: {eval_sets: {hard: {path: h}}}\n",
			want: "f.yaml:3:8: task.eval_sets: has an effect only with task.kind jsonl; set that, or remove this key"},
		{name: "curriculum", text: team + "task: {curriculum: {easy: {steps: 2, min_parts: 3, max_parts: 2}}}\n",
			want: "f.yaml:3:8: task.curriculum: has an effect only with task.kind jsonl; set that, or remove this key\n" +
				"f.yaml:3:52: task.curriculum.easy.max_parts: must be at least min_parts, 3"},
		{name: "a stage without steps", text: team + "task: {kind: jsonl, train: a, eval: b, curriculum: {easy: {kind: hop}}}\n",
			want: "f.yaml:3:53: task.curriculum.easy.steps: missing, but required\nf.yaml:3:60: task.curriculum.easy.kind: unknown key; did you mean kinds?"},
		{name: "layout of a task", text: team + "task: {layout: gaia, verifier: {relative: 0.1}}\n",
			want: "f.yaml:3:8: task.layout: has an effect only with task.kind jsonl; set that, or remove this key\nf.yaml:3:33: task.verifier.relative: has an effect only with task.kind jsonl or gsm8k; set that, or remove this key"},
		{name: "an unknown layout", text: team + "task: {kind: jsonl, train: a, eval: b, layout: hotpotq}\n",
			want: "f.yaml:3:48: task.layout: \"hotpotq\" is not possible; did you mean hotpotqa?"},
		{name: "verifiers", text: team + "task: {kind: jsonl, train: a, eval: b, verifier: {kind: program}, expert: {kind: torchscript, path: s.pt, command: [x]}}\n",
			want: "f.yaml:3:40: task.verifier.command: missing; a verifier of kind program needs it\n" +
				"f.yaml:3:67: task.expert.tokenizer: missing; a verifier of kind torchscript needs it\n" +
				"f.yaml:3:107: task.expert.command: has an effect only with task.expert.kind program; set that, or remove this key"},
		{name: "optimizer_state", text: "run: {name: t}\nagents:\n  a: {role: main, model: m, optimizer_state: host}\n  b: {role: sub, model: m, device: cuda, optimizer_state: host}\n",
			want: "f.yaml:3:29: agents.a.optimizer_state: an agent on the CPU keeps all optimizer state in the host's memory; remove this key"},
		{name: "nobody learns", text: "run: {name: t, arm: main_only}\nagents: {a: {role: main, model: m, train: false}, b: {role: sub, model: m}}\n",
			want: "f.yaml:2:1: agents: no agent learns in the arm main_only; set train: true on one, or run.steps: 0"},
		{name: "tools", text: team + "tools: {s: {kind: mcp}}\n",
			want: "f.yaml:3:9: tools.s: an MCP server needs either command or url"},
		{name: "keys of other kinds of tools", text: team + "tools: {t: {kind: python, corpus: x, index: y}, s: {url: 'http://a', kind: search, response: x, hosts: [a.org]}}\n",
			want: "f.yaml:3:27: tools.t.corpus: unknown key; only a tool of kind search has it\n" +
				"f.yaml:3:38: tools.t.index: unknown key; only a tool of kind search has it\n" +
				"f.yaml:3:53: tools.s.url: unknown key; only a tool of kind retriever or mcp has it\n" +
				"f.yaml:3:84: tools.s.response: unknown key; only a tool of kind retriever has it\n" +
				"f.yaml:3:97: tools.s.hosts: unknown key; only a tool of kind visit has it"},
		{name: "tools of no kind", text: team + "tools: {code: {kind: code, corpus: x}, none: {corpus: x}, list: []}\n",
			want: "f.yaml:3:22: tools.code.kind: \"code\" is not possible; valid are search, visit, retriever, calculator, python, mcp\n" +
				"f.yaml:3:40: tools.none.kind: missing, but required\n" +
				"f.yaml:3:59: tools.list: must be a section with keys such as kind; found a list of 0"},
		{name: "a replay of nothing", text: team + "cache: {mode: replay}\n",
			want: "f.yaml:3:1: cache.dir: missing; a replay needs the folder in which a run was recorded"},
		{name: "retrievers", text: team + "tools: {r: {kind: retriever}, s: {kind: search}}\n",
			want: "f.yaml:3:9: tools.r.url: missing; a retriever needs the address of its service\n" +
				"f.yaml:3:31: tools.s.corpus: missing; search needs a JSONL file or a folder of Markdown"},
		{name: "pages", text: team + "tools: {v: {kind: visit, schemes: [ftp], networks: [10.0.0.0], user_agent: 1bot},\n w: {kind: visit, hosts: ['http://a', '*b.org', a.org]}}\n",
			want: "f.yaml:3:9: tools.v.hosts: missing; list the hosts that may be visited, such as [en.wikipedia.org]\n" +
				"f.yaml:3:36: tools.v.schemes[0]: \"ftp\" is not possible; valid are http, https\n" +
				"f.yaml:3:53: tools.v.networks[0]: \"10.0.0.0\" is not a network; use one such as 10.1.0.0/16\n" +
				"f.yaml:3:64: tools.v.user_agent: must be a name of letters, - and _, optionally followed by a version or comment, such as mybot/1.0 (+https://example.org)\n" +
				"f.yaml:4:27: tools.w.hosts[0]: \"http://a\" is not a host; use example.org, *.example.org or *, with :PORT if it is not the scheme's default\n" +
				"f.yaml:4:39: tools.w.hosts[1]: \"*b.org\" is not a host; use example.org, *.example.org or *, with :PORT if it is not the scheme's default"},
	})
}

// Hostile texts are refused quickly and without a panic.
func TestHostileTexts(t *testing.T) {
	laughs := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		p := string(c - 1)
		laughs += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+p+", ", 9) + "*" + p + "]\n"
	}
	var manyKeys strings.Builder
	for i := range 1 << 16 {
		fmt.Fprintf(&manyKeys, "k%d: 1\n", i)
	}
	for name, c := range map[string]struct{ text, want string }{
		"aliases":          {laughs, "nested too deep or too large"},
		"open brackets":    {strings.Repeat("[", 1<<19), "nested deeper"},
		"open braces":      {strings.Repeat("{a: ", 1<<17), "nested deeper"},
		"nested sequences": {strings.Repeat("- ", 1<<18), "nested deeper"},
		"indentation":      {deepIndent(700), "nested deeper"},
		"too long":         {strings.Repeat("# x\n", 1<<19), "too long"},
		"many keys":        {manyKeys.String(), "line ends and commas"},
		"many keys in one": {"{" + strings.Repeat("a, ", 1<<16) + "}", "line ends and commas"},
		"self alias":       {"a: &a [*a]\n", "no anchor"},
		"bytes":            {"\x00\xff\xfe: [\x80]", ""},
	} {
		if _, err := Parse("f.yaml", []byte(c.text), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %.200v, want an error with %q", name, err, c.want)
		}
	}
}

// TestLargeAliases: a text whose aliases expand to too many values is refused, also in a mapping with any names.
func TestLargeAliases(t *testing.T) {
	text := "run: {name: t}\nagents: {a: {role: main, model: m, template: {x: &x [" + strings.Repeat("1, ", 1000) + "1], y: [" + strings.Repeat("*x, ", 98) + "*x]}}}\n"
	for _, last := range []string{"eval: {every: 4}\n", ""} { // the alias that exceeds the limit may be the last value
		if _, err := Parse("f.yaml", []byte(text+last), nil); err == nil || strings.Count(err.Error(), "nested too deep or too large") != 1 {
			t.Errorf("followed by %q: %v", last, err)
		}
	}
}

func deepIndent(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

// For any text, Parse returns a Config that dumps and reads back, or errors with a place.
func FuzzParse(f *testing.F) {
	f.Add([]byte(Example()))
	f.Add([]byte(minimal))
	f.Add([]byte(team + "grpo: {dual_clip: none, align: {d: 3}}\ntools: {x: {kind: mcp, command: [\"a\\nb\"]}}\n"))
	f.Add([]byte("run: &r {name: t}\nagents: {a: {role: main, model: |\n  x\n}}\neval: *r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("f.yaml", text, nil)
		if err != nil {
			var es Errors
			if !errors.As(err, &es) || len(es) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		again, err := Parse("f.yaml", c.Dump(c.dir), nil)
		if err != nil {
			t.Fatalf("the dump is refused: %v\n%s", err, c.Dump(c.dir))
		}
		if string(again.Dump(c.dir)) != string(c.Dump(c.dir)) {
			t.Fatalf("the dump changes:\n%s\n%s", c.Dump(c.dir), again.Dump(c.dir))
		}
	})
}
