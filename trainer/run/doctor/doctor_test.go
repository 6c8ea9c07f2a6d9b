package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

func quickstart(t *testing.T, sets ...string) *config.Config {
	t.Helper()
	cfg, err := config.Load(filepath.Join("..", "..", "..", "examples", "quickstart", "team.yaml"), append(sets, "run.dir="+t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// find returns the findings about a subject.
func find(findings []Finding, what string) (out []Finding) {
	for _, f := range findings {
		if f.What == what {
			out = append(out, f)
		}
	}
	return out
}

func TestExamineThisMachine(t *testing.T) {
	findings := Examine(context.Background(), Options{CPUOnly: "no NVIDIA driver"})
	for what, want := range map[string]string{"LibTorch": "2.", "CPU": "cores", "memory": "available", "GPU": "no NVIDIA driver", "Redis": "redis-server", "disk": "free"} {
		if f := find(findings, what); len(f) != 1 || f[0].Status == Fail || !strings.Contains(f[0].Found, want) {
			t.Errorf("%s: %+v", what, f)
		}
	}
	var out strings.Builder
	if Write(&out, findings) {
		t.Error("the machine fails the examination although it runs these tests")
	}
}

// The configuration's trackers are checked: their packages, and whether the MLflow server accepts the user.
func TestExamineTracking(t *testing.T) {
	t.Setenv("MLFLOW_TRACKING_URI", "")
	t.Setenv("MLFLOW_TRACKING_TOKEN", "secret")
	bare, full, answers := filepath.Join(t.TempDir(), "python"), filepath.Join(t.TempDir(), "python"), filepath.Join(t.TempDir(), "python")
	for path, script := range map[string]string{bare: "exit 1", full: "exit 0",
		answers: `case $2 in *find_spec*) exit 0 ;; esac; [ $MLFLOW_TRACKING_TOKEN = secret ] || { printf 'Traceback\nstatus 401\n' >&2; exit 1; }`} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		sets   []string
		status Status
		want   string
	}{
		{[]string{"tracking.wandb=agents", "tracking.python=" + bare}, Fail, "does not have the package wandb: run " + bare + " -m pip install wandb"},
		{[]string{"tracking.wandb=agents", "tracking.python=" + full}, OK, "W&B, project agents"},
		{[]string{"tracking.mlflow=agents"}, Fail, "tracking.mlflow: no server is given: set MLFLOW_TRACKING_URI"},
		{[]string{"tracking.mlflow=http://h:1/agents", "tracking.python=" + bare}, Fail, "does not have the package mlflow: run " + bare + " -m pip install mlflow"},
		{[]string{"tracking.mlflow=http://h:1/agents", "tracking.python=" + answers}, OK, "MLflow, http://h:1/agents"},
	} {
		got := tracking(t.Context(), quickstart(t, c.sets...))
		if len(got) != 1 || got[0].Status != c.status || !strings.Contains(got[0].Found, c.want) || (c.status != OK) != (got[0].Advice != "") {
			t.Errorf("%v: %+v, want %s %q", c.sets, got, c.status, c.want)
		}
	}
	t.Setenv("MLFLOW_TRACKING_TOKEN", "wrong")
	if got := tracking(t.Context(), quickstart(t, "tracking.mlflow=http://h:1/agents", "tracking.python="+answers)); got[0].Status != Warn || got[0].Found != "MLflow: status 401" {
		t.Errorf("a wrong token: %+v", got)
	}
	if got := tracking(t.Context(), quickstart(t)); got != nil {
		t.Errorf("without trackers: %+v", got)
	}
}

// TestExamineKL: a KL term without a weight is a warning with advice.
func TestExamineKL(t *testing.T) {
	got := find(Examine(context.Background(), Options{Config: quickstart(t, "grpo.kl=k3")}), "grpo")
	if len(got) != 1 || got[0].Status != Warn || !strings.Contains(got[0].Found, "weight 0") || !strings.HasPrefix(got[0].Advice, "set grpo.kl_coef") {
		t.Errorf("%+v", got)
	}
}

func TestExamineConfiguration(t *testing.T) {
	findings := Examine(context.Background(), Options{Config: quickstart(t)})
	needs := find(findings, "needs")
	if len(needs) != 2 || !strings.Contains(needs[0].Found, "planner on cpu: weights") || !strings.Contains(needs[1].Found, "researcher") {
		t.Errorf("needs %+v", needs)
	}
	if sum := find(findings, "in all"); len(sum) != 1 || !strings.Contains(sum[0].Found, "planner and researcher on cpu: ") || !strings.Contains(sum[0].Found, " available") {
		t.Errorf("the memory of all agents: %+v", sum)
	}
	for _, f := range findings {
		if f.Status == Fail {
			t.Errorf("the quickstart does not run here: %+v", f)
		}
	}

	findings = Examine(context.Background(), Options{Config: quickstart(t, "agents.researcher.device=cuda:7", "agents.planner.devices=[cuda:0, cuda:8]", "task.kind=gsm8k",
		"task.train=missing.jsonl", "task.eval=missing.jsonl", "agents.planner.model=missing-model")})
	for _, c := range [][2]string{{"task", "missing.jsonl"}, {"models", "agents.planner.model"}, {"GPU", "agents.researcher.device is cuda:7"},
		{"GPU", "agents.planner.devices[1] is cuda:8"}} {
		what, want := c[0], c[1]
		bad := false
		for _, f := range find(findings, what) {
			bad = bad || f.Status == Fail && strings.Contains(f.Found, want)
		}
		if !bad {
			t.Errorf("%s: %+v, want a failure with %q", what, find(findings, what), want)
		}
	}
}

// Servers that sample are asked about themselves, and one that is down is reported without a wait.
func TestExamineServers(t *testing.T) {
	findings := Examine(t.Context(), Options{Config: quickstart(t, `agents.planner.engine={kind: vllm, url: ["http://127.0.0.1:1"], weights: {path: w}}`)})
	if said := find(findings, "engine"); len(said) != 1 || said[0].Status != Fail || !strings.Contains(said[0].Found, "planner: the engine at http://127.0.0.1:1") {
		t.Errorf("%+v", said)
	}
	if _, err := os.Stat("../../../examples/quickstart/w"); err == nil {
		t.Error("doctor created the folder of the weights")
	}
}

// If opening a part would stop a worker, doctor fails, too.
func TestWhatTrainOpens(t *testing.T) {
	testdata, err := filepath.Abs(filepath.Join("..", "..", "..", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	shape := "{family: llama, width: 32, layers: 1, heads: 2, ffn: 64, tokenizer: " + filepath.Join(testdata, "tokenizer", "smollm2") + "}"
	missing := write("team.yaml", `run: {name: x}
task: {kind: jsonl, train: rows.jsonl, eval: rows.jsonl}
agents: {boss: {role: main, model: `+shape+`, tools: [lookup]}}
tools: {lookup: {kind: mcp, command: [python3, `+"missing-server.py"+`], timeout: 20s}}
`)
	if err := os.WriteFile(filepath.Join(filepath.Dir(missing), "rows.jsonl"), []byte(`{"question": "q", "answer": "1"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	damaged := t.TempDir()
	for _, dir := range []string{filepath.Join("models", "bad", "missing-norm"), filepath.Join("tokenizer", "smollm2")} {
		if err := os.CopyFS(damaged, os.DirFS(filepath.Join(testdata, dir))); err != nil {
			t.Fatal(err)
		}
	}
	mismatched := t.TempDir()
	for _, dir := range []string{filepath.Join("models", "llama-tiny"), filepath.Join("tokenizer", "smollm2")} {
		if err := os.CopyFS(mismatched, os.DirFS(filepath.Join(testdata, dir))); err != nil {
			t.Fatal(err)
		}
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	own, research := filepath.Join("..", "..", "..", "examples", "own-task", "team.yaml"), filepath.Join("..", "..", "..", "examples", "research-qwen3", "team.yaml")
	models := []string{"agents.planner.model=" + shape}
	hosted, endpoint := filepath.Join("..", "..", "..", "examples", "hosted-model", "team.yaml"), func(url, name string) string {
		return fmt.Sprintf("agents.solver.model={kind: openai, url: %q, name: %s, retries: 0}", url, name)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); !strings.Contains(string(body), `"model":"big"`) {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, `{"choices": [{"message": {"content": "ok"}}]}`)
	}))
	defer server.Close()
	ownModels, researchModels := append(models, "agents.solver.model="+shape), append(models, "agents.searcher.model="+shape)
	for _, c := range []struct {
		name, file string
		sets       []string
		what, want string // the failed finding and a word in it; "" if every check passes
	}{
		{"own-task", own, ownModels, "", ""},
		{"research", research, researchModels, "", ""},
		{"no tokenizer", own, append(ownModels, "agents.solver.model="+filepath.Join(testdata, "models", "llama-tiny")), "solver", "tokenizer.json"},
		{"missing tensors", own, append(ownModels, "agents.solver.model="+damaged), "solver", "model.norm.weight"},
		{"a tokenizer of another model", own, append(ownModels, "agents.solver.model="+mismatched), "solver", `its token "ot" has the id 320, but the model has 320 rows`},
		{"no prompt", own, append(ownModels, "agents.planner.prompt=missing.txt"), "planner", "agents.planner.prompt"},
		{"no corpus", research, append(researchModels, "tools.search.corpus=missing"), "searcher", "tools.search"},
		{"a missing MCP server", missing, nil, "boss", "tools.lookup"},
		{"no judge", own, append(ownModels, "task.verifier={kind: judge}", "task.judge={url: 'http://"+nobody.Addr().String()+"', model: m, retries: 0}"), "verifier", "connection refused"},
		{"a hosted model", hosted, append(models, endpoint(server.URL, "big")), "", ""},
		{"a hosted model of another name", hosted, append(models, endpoint(server.URL, "small")), "solver", "check url and name"},
		{"a hosted model without a server", hosted, append(models, endpoint("http://"+nobody.Addr().String(), "big")), "solver", "connection refused"},
		{"no demonstrations", own, append(ownModels, "cold_start.demonstrations=missing.jsonl"), "planner", "missing.jsonl"},
		{"demonstrations of nobody", own, append(ownModels, "cold_start.demonstrations="+write("chats.jsonl", `{"agent": "clerk", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}`)),
			"planner", `there is no agent "clerk"`},
		{"no demonstrations of one agent", own, append(ownModels, "cold_start.demonstrations="+write("one.jsonl", `{"agent": "planner", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}`)),
			"solver", "no demonstrations"},
		{"long demonstrations", own, append(ownModels, "cold_start.demonstrations="+write("long.jsonl", `{"agent": "planner", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "`+strings.Repeat("word ", 1<<15)+`"}]}`)), "planner", "planner has no demonstration that it can use: 0 of 1 demonstrations used; 1 longer than the context"},
		{"no reference", own, append(ownModels, "grpo.kl=k3", "agents.planner.reference=missing"), "planner", "agents.planner.reference"},
	} {
		cfg, err := config.Load(c.file, append(c.sets, "run.dir="+t.TempDir()))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var failed []Finding
		for _, f := range Examine(t.Context(), Options{Config: cfg}) {
			if f.Status == Fail {
				failed = append(failed, f)
			}
			if strings.HasPrefix(f.Advice, "correct") { // the finding itself names the place
				t.Errorf("%s: the advice adds nothing to the finding: %+v", c.name, f)
			}
		}
		if c.what == "" {
			if len(failed) > 0 {
				t.Errorf("%s: %+v", c.name, failed)
			}
		} else if !slices.ContainsFunc(failed, func(f Finding) bool { return f.What == c.what && strings.Contains(f.Found, c.want) }) {
			t.Errorf("%s: %+v, want a failure of %s with %q", c.name, failed, c.what, c.want)
		}
	}
}

// TestUnusableRows: rows that a step repeats, that training and evaluation share, or that leave no room for an answer are warnings.
func TestUnusableRows(t *testing.T) {
	smol, err := filepath.Abs(filepath.Join("..", "..", "..", "testdata", "tokenizer", "smollm2"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rows := func(name string, questions ...string) {
		var text strings.Builder
		for _, q := range questions {
			fmt.Fprintf(&text, `{"question": %q, "answer": "1"}`+"\n", q)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rows("train.jsonl", "one?", "two?", strings.Repeat("many words ", 200), "three?")
	rows("eval.jsonl", "four?", "two?")
	var chats strings.Builder
	for _, words := range []int{1, 400, 1, 1} {
		fmt.Fprintf(&chats, `{"messages": [{"role": "user", "content": "one?"}, {"role": "assistant", "content": %q}]}`+"\n", strings.Repeat("word ", words))
	}
	if err := os.WriteFile(filepath.Join(dir, "chats.jsonl"), []byte(chats.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`run: {name: x, dir: run}
task: {kind: jsonl, train: train.jsonl, eval: eval.jsonl}
agents: {boss: {role: main, model: {family: llama, width: 32, layers: 1, heads: 2, ffn: 64, tokenizer: %q}, limits: {max_tokens: 200, max_new_tokens: 20}}}
`, smol)
	for _, c := range []struct {
		sets       []string
		task, boss string // the expected warnings; "" if there is no warning
	}{
		{[]string{"task.queries_per_step=5", "task.eval=other.jsonl", "agents.boss.limits.max_tokens=1000"}, "the 5 queries of a step are made from only 4 rows of the task, so each step repeats some of them", ""},
		{[]string{"task.queries_per_step=4", "task.eval=other.jsonl", "agents.boss.limits.max_tokens=1000"}, "", ""},
		{[]string{"task.queries_per_step=4"}, "training uses 1 of the 2 held-out questions, too", "1 of 6 prompts leave no room for an answer; the longest is the prompt of train-row-000003"},
		{[]string{"task.queries_per_step=4", "task.eval=other.jsonl", "agents.boss.limits.max_tokens=300", "cold_start.demonstrations=chats.jsonl",
			"cold_start.queries=3", "cold_start.steps=1"}, "",
			"1 of 6 prompts leave no room for an answer; the longest is the prompt of train-row-000003" +
				"2 of 4 demonstrations used; 1 longer than the context of 300 tokens; 1 beyond cold_start.queries"},
	} {
		rows("other.jsonl", "four?", "five?")
		cfg, err := config.Parse(filepath.Join(dir, "team.yaml"), []byte(text), c.sets)
		if err != nil {
			t.Fatal(err)
		}
		findings := Examine(t.Context(), Options{Config: cfg})
		for what, want := range map[string]string{"task": c.task, "boss": c.boss} {
			warned := ""
			for _, f := range find(findings, what) {
				if f.Status == Warn && f.Advice != "" {
					warned += f.Found
				}
			}
			if warned != want {
				t.Errorf("%v: %s: %q, want %q", c.sets, what, warned, want)
			}
		}
	}
}

func TestRedis(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	f := redis(context.Background(), quickstart(t, "store.url=redis://"+closed.Addr().String()+"/0"))
	if f.Status != Fail || !strings.Contains(f.Found, closed.Addr().String()) || f.Advice == "" {
		t.Errorf("nobody listens: %+v", f)
	}
	f = redis(context.Background(), quickstart(t, "store.url=redis://localhost:1/0", "store.password_env=MGRPO_TEST_NOT_SET"))
	if f.Status != Fail || !strings.Contains(f.Found, "MGRPO_TEST_NOT_SET") {
		t.Errorf("the password is not set: %+v", f)
	}

	for _, c := range []struct {
		appendonly, word string
		status           Status
		set              []string
	}{{"yes", "appendonly yes", OK, nil}, {"no", "appendonly yes", Fail, nil}, {"no", "answers", Warn, []string{"store.allow_volatile=data may be lost"}}} {
		server, err := redisserver.Start("--appendonly", c.appendonly, "--save", "")
		if err != nil {
			t.Fatal(err)
		}
		f := redis(context.Background(), quickstart(t, append(c.set, "store.url=unix://"+server.Socket())...))
		if f.Status != c.status || !strings.Contains(f.Found, c.word) {
			t.Errorf("appendonly %s, %v: %+v", c.appendonly, c.set, f)
		}
		server.Remove()
	}
}

func TestDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	if f := disk(dir, 1<<20); f.Status != OK || !strings.Contains(f.Found, "1.0 MiB") {
		t.Errorf("%+v", f)
	}
	if f := disk(dir, 1<<62); f.Status != Fail || !strings.Contains(f.Advice, "run.keep") {
		t.Errorf("%+v", f)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the check created the folder")
	}
}

// TestRunDisk checks that a folder in which the run could not write is a failure with its own reason, and that checkpoints behind a link
// count on their own disk.
func TestRunDisk(t *testing.T) {
	dir := t.TempDir()
	file, closed, nowhere, linked := filepath.Join(dir, "file"), filepath.Join(dir, "closed"), filepath.Join(dir, "nowhere"), filepath.Join(dir, "linked")
	if err := errors.Join(os.WriteFile(file, nil, 0o666), os.Mkdir(closed, 0o555), os.Symlink(filepath.Join(dir, "x"), nowhere), os.Mkdir(linked, 0o777),
		os.Symlink("/proc", filepath.Join(linked, "checkpoints"))); err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{file: "not a directory", file + "/run": "not a directory", nowhere: "a link to a folder that does not exist"}
	if os.Getuid() != 0 {
		reasons[closed], reasons[closed+"/run"], reasons[linked] = "permission denied", "permission denied", "permission denied"
	}
	for at, reason := range reasons {
		cfg := quickstart(t)
		cfg.Run.Dir = config.Path(at)
		if f := runDisk(cfg, 1<<20, 0); f.Status != Fail || !strings.Contains(f.Found, "run.dir: "+at) || !strings.Contains(f.Found, reason) {
			t.Errorf("%s: %+v", at, f)
		}
		if _, err := Preflight(cfg, nil, nil); err == nil || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), "too small") {
			t.Errorf("%s: Preflight: %v", at, err)
		}
	}
	// The link leads to /proc, which has no space.
	if f := disk(filepath.Join(linked, "checkpoints"), 1); f.Status != Fail || !strings.Contains(f.Found, "too small: 0 B free") {
		t.Errorf("checkpoints on a disk without space: %+v", f)
	}
	cfg := quickstart(t)
	cfg.Run.Dir = config.Path(filepath.Join(dir, "new", "run"))
	if f := runDisk(cfg, 1<<20, 0); f.Status != OK {
		t.Errorf("a new folder: %+v", f)
	}
}

// TestCheckpointBytes: a short run has fewer checkpoints, an agent that is not trained has one
// file for all checkpoints, and a checkpoint without moments is a third as large.
func TestCheckpointBytes(t *testing.T) {
	const each = 1200
	of := func(sets ...string) (one, most int64) {
		t.Helper()
		return checkpointBytes(quickstart(t, append([]string{"run.keep=2"}, sets...)...), []memory.Need{{Agent: "planner", Files: each}, {Agent: "researcher", Files: each}})
	}
	noColdStart := "cold_start.demonstrations=none"
	for _, c := range []struct {
		sets []string
		most int64
	}{
		{[]string{noColdStart, "run.steps=1"}, 2 * each},
		{[]string{noColdStart, "run.steps=2"}, 4 * each},
		{[]string{"run.steps=1"}, 4 * each},
		{[]string{"run.steps=100"}, 10 * each},
		{[]string{noColdStart, "run.steps=100", "agents.researcher.train=false"}, 7 * each},
		{[]string{noColdStart, "run.steps=1000", "run.keep=50", "run.checkpoint_every=500", "eval.every=500"}, 2 * 6 * each},
	} {
		if one, most := of(c.sets...); one != 2*each || most != c.most {
			t.Errorf("%v: %d, up to %d; want %d, up to %d", c.sets, one, most, 2*each, c.most)
		}
	}
	// A cold start that was stopped leaves files in addition to the first checkpoint.
	needs := []memory.Need{{Agent: "planner", Files: each, Parts: []memory.Part{{Kind: memory.Snapshot, Bytes: 5 * each}}}, {Agent: "researcher", Files: each}}
	if _, most := checkpointBytes(quickstart(t, "run.keep=2", "run.steps=1"), needs); most != 7*each {
		t.Errorf("with a stopped cold start up to %d, want %d", most, 7*each)
	}
}

// TestPreflightOfDisk: a run does not start if its checkpoints do not fit on the disk, unless they exist already.
func TestPreflightOfDisk(t *testing.T) {
	dir := t.TempDir()
	keeps := func(n int) *config.Config {
		cfg, err := config.Load(filepath.Join("..", "..", "..", "examples", "quickstart", "team.yaml"), []string{"run.dir=" + dir, fmt.Sprintf("run.steps=%d", n), fmt.Sprintf("run.keep=%d", n)})
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	_, err := Preflight(keeps(1e9), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "the disk of run.dir is too small") || !strings.Contains(err.Error(), "lower run.keep") {
		t.Errorf("checkpoints that do not fit: %v", err)
	}
	checkpoint := filepath.Join(dir, "checkpoints", "step-000001")
	if err := os.MkdirAll(checkpoint, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(checkpoint, "sparse"))
	if err == nil {
		err = errors.Join(f.Truncate(1<<43), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Preflight(keeps(1e6), nil, nil); err != nil {
		t.Errorf("checkpoints that exist already: %v", err)
	}
}

func TestPreflight(t *testing.T) {
	plan, err := Preflight(quickstart(t), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"planner", "researcher", "weights", "KV", "total", "planner and researcher on cpu: ", " available"} {
		if !strings.Contains(plan, want) {
			t.Errorf("no %s in\n%s", want, plan)
		}
	}
	for line := range strings.Lines(plan) {
		if len(line) > 80 {
			t.Errorf("wider than 80: %q", line)
		}
	}
	huge := quickstart(t, "agents.planner.engine.slots=65536", "agents.planner.model.max_positions=1048576", "agents.planner.limits.max_tokens=1048576")
	if plan, err := Preflight(huge, []string{"planner"}, nil); err == nil || !strings.Contains(err.Error(), "lower agents.planner.engine.slots (65536;") || !strings.Contains(plan, "planner on cpu: ") {
		t.Errorf("%v\n%s", err, plan)
	}
	if _, err := Preflight(quickstart(t), []string{"nobody"}, nil); err == nil || !strings.Contains(err.Error(), `no agent "nobody"`) {
		t.Error(err)
	}
}

func TestWriteFits80Columns(t *testing.T) {
	long := strings.Repeat("some words of advice ", 20)
	var out strings.Builder
	failed := Write(&out, []Finding{{OK, "one", long, ""}, {Warn, "two", "short", long}, {Fail, "three", "bad", "do this"}})
	if !failed {
		t.Error("the failure was not printed")
	}
	for line := range strings.Lines(out.String()) {
		if len(strings.TrimRight(line, "\n")) > 80 {
			t.Errorf("wider than 80: %q", line)
		}
	}
	if want := fmt.Sprintf("%-4s  %-9s bad\n%16s-> do this\n", "fail", "three", ""); !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q", out.String())
	}
}

// TestOneAgentsMachine: agents that do not fit on this machine together have machines of their own, and each is examined alone.
func TestOneAgentsMachine(t *testing.T) {
	cfg := quickstart(t, "agents.researcher.device=cuda:7")
	for _, f := range Examine(t.Context(), Options{Config: cfg, Agents: []string{"planner"}}) {
		if f.Status == Fail || strings.Contains(f.Found, "researcher") {
			t.Errorf("the planner's machine: %v", f)
		}
	}
	needs, err := assemble.MemoryNeeds(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range needs {
		for j := range needs[i].Parts {
			needs[i].Parts[j].Device = "cuda:0"
		}
	}
	sum := memory.Sums(needs, nil)[0].Needed
	for _, c := range []struct {
		url  string
		free int64
		want Status
	}{{"", sum - 1, Fail}, {"redis://store:6379", sum - 1, Warn}, {"redis://store:6379", 1, Fail}} {
		cfg.Store.URL = c.url
		free := map[string]int64{"cuda:0": c.free}
		if f := checkShared(cfg, needs, free, memory.Fits(needs, free)); f.Status != c.want {
			t.Errorf("store %q, %d free: %v", c.url, c.free, f)
		}
	}
}
