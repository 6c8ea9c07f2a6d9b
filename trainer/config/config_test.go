package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

var update = flag.Bool("update", false, "rewrite docs/config.md")

// minimal is a configuration with only the required keys.
const minimal = `run: {name: t}
agents:
  boss: {role: main, model: models/a}
  help: {role: sub, model: models/b}
`

func mustParse(t *testing.T, text string, sets ...string) *Config {
	t.Helper()
	c, err := Parse("conf/team.yaml", []byte(text), sets)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var equal = cmp.Options{cmpopts.IgnoreUnexported(Config{}), cmpopts.EquateEmpty()}

// The defaults are those of docs/algorithm.md.
func TestDefaults(t *testing.T) {
	c := mustParse(t, minimal)
	want := GRPO{
		Rollouts: 8, Align: Align{D: 8, Mode: "draw"}, SubGroup: "query", Convention: "population", SigmaMin: 1e-6,
		Objective: mgrpo.DefaultObjective(), Reference: "auto", Old: "behaviour", Epochs: 1, Minibatches: 1,
		Temperature: 1, MaxRemoved: 0.25, GapWarn: 0.05, GapStop: 0.2, Routing: "replay", RoutingWarn: 0.1, RoutingStop: 0.5,
		RewardSettings: mgrpo.RewardSettings{Credit: mgrpo.OutcomeCredit, Reward: mgrpo.RewardWeights{Main: mgrpo.MainWeights{Format: 0.1, Correct: 0.9}, Sub: mgrpo.SubWeights{Format: 0.1, Main: 0.4, Expert: 0.5}}},
	}
	if d := cmp.Diff(want, c.GRPO); d != "" {
		t.Errorf("grpo differs from docs/algorithm.md (-want +got):\n%s", d)
	}
	if c.Run.Dir != "runs/t" || c.Main().Name != "boss" {
		t.Errorf("dir %q, main %q", c.Run.Dir, c.Main().Name)
	}
	if got := c.Main().Delegates; !slices.Equal(got, []string{"help"}) {
		t.Errorf("delegates of the main agent: %v", got)
	}
}

// The first of several devices is the worker's own. A dump reads back.
func TestDevices(t *testing.T) {
	c := mustParse(t, minimal, "agents.boss.devices=[cuda:2]", "agents.help.devices=[cpu, cpu, cpu]")
	if a := c.Main(); a.Device != "cuda:2" || !slices.Equal(a.Ranks(), []string{"cuda:2"}) {
		t.Errorf("device %s, ranks %v", a.Device, a.Ranks())
	}
	if a := c.Agent("help"); a.Device != "cpu" || !slices.Equal(a.Ranks(), []string{"cpu", "cpu", "cpu"}) {
		t.Errorf("device %s, ranks %v", a.Device, a.Ranks())
	}
	if a := mustParse(t, minimal, "agents.boss.devices=[cuda:0, cuda:1]").Main(); !slices.Equal(a.Ranks(), []string{"cuda:0", "cuda:1"}) {
		t.Errorf("ranks of an agent with two GPUs: %v", a.Ranks())
	}
	for _, set := range []string{"agents.boss.device=cuda", "agents.boss.devices=[cuda]"} {
		if a := mustParse(t, minimal, set).Main(); !slices.Equal(a.Ranks(), []string{"cuda:0"}) {
			t.Errorf("%s: ranks %v", set, a.Ranks())
		}
	}
	if a := mustParse(t, minimal).Main(); !slices.Equal(a.Ranks(), []string{"cpu"}) {
		t.Errorf("ranks of an agent with one device: %v", a.Ranks())
	}
	for _, arm := range []string{"single", "main_only"} { // a comparison of a team's file as it is
		mustParse(t, minimal, "agents.help.devices=[cpu, cpu]", "run.arm="+arm)
	}
	again := mustParse(t, string(c.Dump(".")))
	if d := cmp.Diff(c.Agents, again.Agents, equal); d != "" {
		t.Errorf("the dump reads back otherwise (-want +got):\n%s", d)
	}
	for set, want := range map[string][]string{
		"devices=[cuda:0, cuda:1]": {"cuda:0", "cuda:1"}, "device=cuda:1": {"cuda:1"}, "devices=[]": {"cpu"},
	} { // of a saved file, in which device is a comment
		if a := mustParse(t, string(c.Dump(".")), "agents.boss."+set).Main(); !slices.Equal(a.Ranks(), want) {
			t.Errorf("%s of a saved file: ranks %v", set, a.Ranks())
		}
	}
	if keys := c.DiffForResume(mustParse(t, minimal)); len(keys) > 0 {
		t.Errorf("a resume may have other devices; refused: %v", keys)
	}
}

// The example of the design loads as printed there.
func TestDesignExample(t *testing.T) {
	c := mustParse(t, `
run:    {name: gsm8k-team, dir: runs/gsm8k-team, seed: 17, steps: 200, checkpoint_every: 20}
store:  {url: "rediss://trainer@10.0.0.5:6379/0", password_env: MGRPO_REDIS_PASSWORD}
task:   {kind: gsm8k, train: data/train.jsonl, eval: data/test.jsonl, queries_per_step: 16}
grpo:   {rollouts: 8, align: {d: 8, mode: draw}, ratio: token, eps_low: 0.2, eps_high: 0.28, aggregation: trajectory_mean,
         old: behaviour, kl: none, kl_coef: 0, epochs: 1, minibatches: 1, temperature: 1.0}
eval:   {every: 20, queries: 200, samples: 4}
agents:
  planner:  {role: main, model: models/SmolLM2-135M-Instruct, device: cpu, delegates: [solver], prompt: prompts/planner.txt}
  solver:   {role: sub,  model: models/Qwen3-0.6B, device: "cuda:0", tools: [calculator], limits: {max_turns: 4},
             optimizer: {lr: 1e-6, betas: [0.9, 0.98], weight_decay: 0.1, clip: 1.0, warmup: 10, schedule: constant}}
`)
	if c.Agents[0].Name != "planner" || c.Agents[1].Name != "solver" {
		t.Errorf("agents are not in the file's order")
	}
	if o := c.Agent("solver").Optimizer; o.LR != 1e-6 || o.WeightDecay != 0.1 || o.Betas != [2]float64{0.9, 0.98} {
		t.Errorf("optimizer: %+v", o)
	}
	abs, _ := filepath.Abs("conf/data/train.jsonl")
	if got := c.Resolve(c.Task.Train); got != abs {
		t.Errorf("train resolves to %s, want %s", got, abs)
	}
	if got := c.Resolve("/abs/x"); got != "/abs/x" {
		t.Errorf("an absolute path resolves to %s", got)
	}
}

func TestInheritance(t *testing.T) {
	text := `run: {name: t}
agents:
  boss: {role: main, model: a, delegates: [help], cold_start: {steps: 5, optimizer: {lr: 0.5}}}
  help: {role: sub, model: b, align: {d: 3}}
  aide: {role: sub, model: b}
grpo: {align: {d: 4}}
cold_start: {demonstrations: task, steps: 7, batch: 9, optimizer: {warmup: 2}}
`
	c := mustParse(t, text, "grpo.align.d=6")
	if d := []int{c.Agents[0].Align.D, c.Agents[1].Align.D, c.Agents[2].Align.D}; !slices.Equal(d, []int{6, 3, 6}) {
		t.Errorf("align.d of the agents: %v", d)
	}
	boss, aide := c.Agents[0].ColdStart, c.Agents[2].ColdStart
	if boss.Steps != 5 || boss.Batch != 9 || boss.Optimizer.LR != 0.5 || boss.Optimizer.Warmup != 2 {
		t.Errorf("boss: %+v", boss)
	}
	if aide.Steps != 7 || aide.Optimizer.LR != c.ColdStart.Supervised.Optimizer.LR {
		t.Errorf("aide: %+v", aide)
	}
}

func TestSet(t *testing.T) {
	c := mustParse(t, minimal, "run.steps=3", "store.lease=30s", "agents.help.optimizer.betas=[0.5, 0.6]", "grpo.dual_clip=3", "run.steps=4",
		"agents.boss.model={width: 8, layers: 1, heads: 2, ffn: 16}", "store.url=redis://127.0.0.1:6379/0")
	if c.Run.Steps != 4 || c.Store.Lease != 30*time.Second || *c.GRPO.DualClip != 3 {
		t.Errorf("steps %d, lease %v, dual clip %v", c.Run.Steps, c.Store.Lease, *c.GRPO.DualClip)
	}
	if got := c.Agent("help").Optimizer.Betas; got != [2]float64{0.5, 0.6} {
		t.Errorf("betas %v", got)
	}
	if s := c.Main().Model.Shape; s == nil || s.HeadDim != 4 || s.KVHeads != 2 {
		t.Errorf("shape %+v", s)
	}
}

// TestSetOfAlias: an override of one agent does not change the value of the anchor that the agent's alias names.
func TestSetOfAlias(t *testing.T) {
	text := strings.ReplaceAll(minimal, "  help: {", "  help: {optimizer: *opt, ")
	text = strings.ReplaceAll(text, "  boss: {", "  boss: {optimizer: &opt {lr: 1e-5}, ")
	c := mustParse(t, text, "agents.help.optimizer.lr=0.5")
	if boss, help := c.Agent("boss").Optimizer.LR, c.Agent("help").Optimizer.LR; boss != 1e-5 || help != 0.5 {
		t.Errorf("lr of boss %g, of help %g", boss, help)
	}
}

// TestNumbersOfTemplates: numbers that YAML has and JSON does not stay numbers.
func TestNumbersOfTemplates(t *testing.T) {
	c := mustParse(t, minimal, "agents.help.template={a: .5, b: 1., c: +1, d: 0x1f, e: 2, f: \"3\", g: .inf}")
	if got, want := string(c.Agent("help").Template), `{"a": 0.5, "b": 1, "c": 1, "d": 31, "e": 2, "f": "3", "g": ".inf"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A dump reads back as the same configuration, and dumps to the same text.
func TestDumpRoundTrip(t *testing.T) {
	odd := strings.ReplaceAll(minimal, "run:", "task: {kind: jsonl, train: t.jsonl, eval: /e}\nrun:") + "  odd: {role: sub, model: \"a: b #c\", prompt_text: \"line\\n\\t\\\"q\\\" é \\u0001 \", tools: [calculator, \"web\"], describe: \"yes\", template: {enable_thinking: false, effort: \"high\", odd: [1, 2.5, null, {a: \"true\"}]}}\n" +
		"tools: {web: {kind: mcp, command: [\"prog\", \"--x={y}\", \"\", \"- z\"], timeout: 1m30s}}\n"
	for name, text := range map[string]string{"minimal": minimal, "example": Example(), "odd": odd} {
		t.Run(name, func(t *testing.T) {
			c := mustParse(t, text)
			again := mustParse(t, string(c.Dump(c.dir)))
			if d := cmp.Diff(c, again, equal); d != "" {
				t.Errorf("the dump reads back differently (-first +second):\n%s", d)
			}
			if d := cmp.Diff(string(c.Dump(c.dir)), string(again.Dump(again.dir))); d != "" {
				t.Errorf("the second dump differs:\n%s", d)
			}
			if c.Digest() != again.Digest() {
				t.Error("the digests differ")
			}
		})
	}
}

// A copy in another folder names the same files, and a run may be resumed from either.
func TestDumpElsewhere(t *testing.T) {
	text := `run: {name: t, dir: out/x}
task: {kind: jsonl, train: data/t.jsonl, eval: /abs/e.jsonl}
cold_start: {demonstrations: chats.jsonl, steps: 1}
agents:
  boss: {role: main, model: ../models/a}
  help: {role: sub, model: {width: 8, layers: 1, heads: 2, ffn: 16, tokenizer: task}}
`
	c := mustParse(t, text)
	elsewhere := filepath.Join(c.Resolve(c.Run.Dir), "config.yaml")
	again, err := Parse(elsewhere, c.Dump(filepath.Dir(elsewhere)), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]Path{
		{c.Run.Dir, again.Run.Dir}, {c.Task.Train, again.Task.Train}, {c.Task.Eval, again.Task.Eval},
		{c.ColdStart.Demonstrations, again.ColdStart.Demonstrations}, {c.Main().Model.Path, again.Main().Model.Path},
	} {
		if a, b := c.Resolve(pair[0]), again.Resolve(pair[1]); a != b {
			t.Errorf("%s became %s", a, b)
		}
	}
	if got := again.Agent("help").Model.Shape.Tokenizer; got != "task" {
		t.Errorf("the word task became %q", got)
	}
	if d := c.DiffForResume(again); len(d) > 0 || c.Digest() != again.Digest() {
		t.Errorf("the copy differs: %v", d)
	}
	if d := mustParse(t, text, "task.train=data/u.jsonl").DiffForResume(again); len(d) != 1 {
		t.Errorf("another file of queries is not told apart: %v", d)
	}
}

// Where a server samples, importance weights are on, unless the file decides otherwise. A dump has what was decided.
func TestImportanceWeightsOfServers(t *testing.T) {
	remote := "agents.help.engine={kind: vllm, url: [\"http://h:1\"], weights: {path: w}}"
	for _, c := range []struct {
		sets []string
		old  string
		cap  *float64
	}{
		{nil, "behaviour", nil},
		{[]string{remote}, "recomputed", new(2.0)},
		{[]string{remote, "grpo.old=recomputed"}, "recomputed", new(2.0)},
		{[]string{remote, "grpo.old=behaviour"}, "behaviour", nil},
		{[]string{remote, "grpo.tis_cap=none"}, "behaviour", nil},
		{[]string{remote, "grpo.old=recomputed", "grpo.tis_cap=3"}, "recomputed", new(3.0)},
	} {
		cfg := mustParse(t, minimal, c.sets...)
		for _, got := range []*Config{cfg, mustParse(t, string(cfg.Dump(cfg.dir)))} {
			if got.GRPO.Old != c.old || !cmp.Equal(got.GRPO.TISCap, c.cap) {
				t.Errorf("%v: old %s, tis_cap %v", c.sets, got.GRPO.Old, got.GRPO.TISCap)
			}
		}
	}
	for dtype, want := range map[string]float64{"bf16": 0.05, "fp32": 0.001} {
		if got := mustParse(t, minimal, remote, "agents.help.engine.weights.dtype="+dtype).Agent("help").Engine.Weights.Tolerance; got != want {
			t.Errorf("tolerance of %s: %v", dtype, got)
		}
	}
}

func TestDiffForResume(t *testing.T) {
	old := mustParse(t, minimal)
	same := mustParse(t, minimal, "run.steps=900", "eval.every=1", "agents.boss.device=cuda", "store.url=redis://localhost", "run.threads=2", "agents.help.engine.slots=4", "run.dir=/elsewhere",
		"grpo.rollouts=4", "task.queries_per_step=3", "agents.boss.optimizer.lr=0.5")
	if d := same.DiffForResume(old); len(d) > 0 || same.Digest() != old.Digest() {
		t.Errorf("keys that may change were refused: %v", d)
	}
	if d, want := same.ChangedOnResume(old), []string{"agents.boss.optimizer.lr: 1e-06 -> 0.5", "grpo.rollouts: 8 -> 4", "task.queries_per_step: 16 -> 3"}; !slices.Equal(d, want) {
		t.Errorf("changes that are noted: %v", d)
	}
	other := mustParse(t, strings.ReplaceAll(minimal, "help", "aide"), "grpo.eps_low=0.1")
	d := other.DiffForResume(old)
	for _, want := range []string{
		"agents: [boss, help] -> [boss, aide]",
		"agents.aide.role: absent -> sub",
		"agents.help.role: sub -> absent",
		"grpo.eps_low: 0.2 -> 0.1",
	} {
		if !slices.Contains(d, want) {
			t.Errorf("the difference lacks %q:\n%s", want, strings.Join(d, "\n"))
		}
	}
	if other.Digest() == old.Digest() {
		t.Error("equal digests of configurations that differ")
	}
}

// The config.yaml in a run's folder names the folder ".": after a move the run is found in its new place.
func TestDumpInRunFolder(t *testing.T) {
	dir := t.TempDir()
	for _, given := range []string{dir, dir + "/"} {
		c := mustParse(t, Example(), "run.dir="+given)
		again, err := Parse("/moved/config.yaml", c.Dump(dir), nil)
		if err != nil || again.RunDir() != "/moved" {
			t.Errorf("run.dir %s: the moved run is in %v, %v", given, again.RunDir(), err)
		}
	}
}

// Shared contains the keys on which workers must agree, and no key that each worker may set.
// An engine for several agents has room for what each asks for; an agent on servers asks for nothing.
func TestCacheOf(t *testing.T) {
	sets := []string{"agents.boss.engine={slots: 3}", "agents.boss.limits={max_tokens: 70, max_new_tokens: 9}",
		"agents.help.engine={slots: 4, conversations: 9, cache_tokens: 100}", "agents.help.limits={max_tokens: 90, max_new_tokens: 9}"}
	c := mustParse(t, minimal, sets...)
	boss, help := c.Agent("boss"), c.Agent("help")
	want := CacheSize{Slots: 7, Conversations: 12, Context: 90, Tokens: 3*96 + 128}
	if got := c.CacheOf([]*Agent{boss, help}, 1000); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	help.Engine.Kind = "vllm"
	want = CacheSize{Slots: 3, Conversations: 3, Context: 60, Tokens: 3 * 64}
	if got := c.CacheOf([]*Agent{boss, help}, 60); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestShared(t *testing.T) {
	shared := mustParse(t, minimal).Shared()
	for key, want := range map[string]bool{"eval.temperature": true, "run.steps": true, "run.seed": true, "store.url": false, "agents.boss.device": false, "run.dir": false, "agents.help.engine.slots": false} {
		if _, ok := shared[key]; ok != want {
			t.Errorf("%s is shared: %v, want %v", key, ok, want)
		}
	}
}

func TestResumableNamesKeys(t *testing.T) {
	keys := resumable()
	for _, want := range []string{"run.steps", "run.checkpoint_every", "eval.samples", "store.url", "agents.NAME.device"} {
		if !slices.Contains(keys, want) {
			t.Errorf("%s is not resumable", want)
		}
	}
	if slices.Contains(keys, "grpo.eps_low") || slices.Contains(keys, "run.seed") {
		t.Error("a key that the past steps share is resumable")
	}
}

func TestPassword(t *testing.T) {
	t.Setenv("TEST_STORE_PASSWORD", "geheim")
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte("aus der Datei\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{"store.password_env=TEST_STORE_PASSWORD": "geheim", "store.password_file=" + file: "aus der Datei"} {
		c := mustParse(t, minimal, set)
		if got, err := c.Password(); err != nil || got != want {
			t.Errorf("%s: %q, %v", set, got, err)
		}
		if strings.Contains(string(c.Dump(c.dir)), want) {
			t.Errorf("%s: the dump holds the password", set)
		}
	}
	c := mustParse(t, minimal, "store.password_env=TEST_STORE_ABSENT")
	if _, err := c.Password(); err == nil || err.Error() != "config: store.password_env: the environment variable TEST_STORE_ABSENT is not set" {
		t.Errorf("absent variable: %v", err)
	}
}

func TestReferenceIsCurrent(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "config.md")
	want := referencePage()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("docs/config.md differs from the schema (%v): run go test ./trainer/config -update", err)
	}
}

// Every key has a meaning in the reference.
func TestEveryKeyIsDocumented(t *testing.T) {
	for _, r := range reference() {
		if r.doc == "" {
			t.Errorf("the field of %s has no comment above it", r.key)
		}
	}
}

// Counts have a largest value, so that none overflows or allocates without end.
func TestEveryCountHasAMaximum(t *testing.T) {
	for _, r := range reference() {
		if strings.HasPrefix(r.kind, "whole number") && !strings.Contains(r.kind, "≤") && !strings.HasSuffix(r.key, "seed") {
			t.Errorf("%s: %s", r.key, r.kind)
		}
	}
}

// TestLineEnds: a file of Windows is the same configuration, also in texts of several lines, which
// YAML folds into spaces and line breaks.
func TestLineEnds(t *testing.T) {
	text := strings.Replace(minimal, "model: models/b", "model: models/b, prompt_text: \"one\n    two\n\n    three\"", 1)
	file := filepath.Join(t.TempDir(), "team.yaml")
	for _, content := range []string{text, strings.ReplaceAll(text, "\n", "\r\n")} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := c.Agent("help").PromptText, "one two\nthree"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestLoadReportsMissingFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.yaml"), nil)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestHosted: a hosted model is frozen whatever the team's defaults are, and a dump of it is read back the same.
func TestHosted(t *testing.T) {
	const text = `
run: {name: t}
task: {kind: jsonl, train: r, eval: r}
cold_start: {demonstrations: d.jsonl, steps: 5}
agents:
  a: {role: main, model: m}
  b: {role: sub, model: {kind: openai, url: "http://h/v1", name: big, key_env: KEY, retries: 2}}
`
	given, err := Parse("f.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, want := given, Endpoint{Kind: "openai", URL: "http://h/v1", Name: "big", KeyEnv: "KEY", Timeout: 2 * time.Minute, Retries: 2}
	for range 2 {
		b := c.Agent("b")
		if b.Model.Endpoint == nil || *b.Model.Endpoint != want || c.Learns(b) || c.ColdStarts(b) || !c.ColdStarts(c.Agent("a")) {
			t.Errorf("%+v, %+v", b.Model.Endpoint, b)
		}
		if c, err = Parse("f.yaml", c.Dump("."), nil); err != nil {
			t.Fatal(err)
		}
	}
	moved, err := Parse("f.yaml", []byte(text), []string{"agents.b.model.url=https://elsewhere/v1", "agents.b.model.key_env=OTHER"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := moved.DiffForResume(given); len(diff) > 0 || moved.Digest() != given.Digest() {
		t.Errorf("a server that has moved: %v", diff)
	}
	other, err := Parse("f.yaml", []byte(text), []string{"agents.b.model.name=small"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := other.DiffForResume(given); len(diff) != 1 || other.Digest() == given.Digest() {
		t.Errorf("another model: %v", diff)
	}
}

// The key of an agent's machines is read from the configured variable, has a minimum length, and is hidden from programs.
func TestMachinesKey(t *testing.T) {
	const variable = "CONFIG_TEST_MACHINES_KEY"
	text := "run: {name: t}\nagents: {a: {role: main, model: m, machines: {count: 2, address: \"h:9\", key_env: " + variable + "}}}\n"
	c, err := Parse("f.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(c.SecretEnv(), variable) {
		t.Errorf("programs are given %s", variable)
	}
	for value, want := range map[string]string{"": "the environment variable " + variable + " is not set", "fifteen bytes..": "has 15 bytes, but needs at least 16 random bytes", "sixteen bytes...": ""} {
		t.Setenv(variable, value)
		key, err := c.MachinesKey(c.Main())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && string(key) != value {
			t.Errorf("%q: %q, %v, want %s", value, key, err, want)
		}
	}
	if n := len(c.OnOneMachine().Main().Ranks()); n != 1 || len(c.Main().Ranks()) != 2 {
		t.Errorf("%d devices on one machine, %d on all", n, len(c.Main().Ranks()))
	}
}

// TestAgentsAreNamedOnce: a list names agents of the configuration, each once, and an empty list is not nil.
func TestAgentsAreNamedOnce(t *testing.T) {
	c, err := Parse("f.yaml", []byte(team), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{nil, {"a"}, {"b", "a"}} {
		if err := CheckAgents(c, names); err != nil {
			t.Errorf("%v: %v", names, err)
		}
	}
	for _, bad := range []struct {
		names []string
		want  string
	}{{[]string{}, "empty"}, {[]string{"a", "b", "a"}, `"a" is named twice`}, {[]string{"c"}, `no agent "c"`}} {
		if err := CheckAgents(c, bad.names); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%v: %v", bad.names, err)
		}
	}
}
