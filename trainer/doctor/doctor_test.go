package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/store/redisserver"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

func quickstart(t *testing.T, sets ...string) *config.Config {
	t.Helper()
	cfg, err := config.Load(filepath.Join("..", "..", "examples", "quickstart", "team.yaml"), append(sets, "run.dir="+t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// find returns the findings about something.
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
		t.Error("a machine that runs its tests fails")
	}
}

func TestExamineConfiguration(t *testing.T) {
	findings := Examine(context.Background(), Options{Config: quickstart(t)})
	plans := find(findings, "plan")
	if len(plans) != 2 || !strings.Contains(plans[0].Found, "planner on cpu: weights") || !strings.Contains(plans[1].Found, "researcher") {
		t.Errorf("plans %+v", plans)
	}
	for _, f := range findings {
		if f.Status == Fail {
			t.Errorf("the quickstart does not run here: %+v", f)
		}
	}

	findings = Examine(context.Background(), Options{Config: quickstart(t, "agents.researcher.device=cuda:7", "task.kind=gsm8k",
		"task.train=missing.jsonl", "task.eval=missing.jsonl", "agents.planner.model=missing-model", "cold_start.demonstrations=missing-chats.jsonl")})
	for what, want := range map[string]string{"task": "missing.jsonl", "demonstrations": "missing-chats.jsonl", "models": "agents.planner.model", "GPU": "agents.researcher.device is cuda:7"} {
		bad := false
		for _, f := range find(findings, what) {
			bad = bad || f.Status == Fail && strings.Contains(f.Found, want) && f.Advice != ""
		}
		if !bad {
			t.Errorf("%s: %+v, want a failure with %q", what, find(findings, what), want)
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
		t.Errorf("a password that is not set: %+v", f)
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
		t.Error("looking made the folder")
	}
}

func TestFits(t *testing.T) {
	cfg := quickstart(t, "agents.researcher.device=cuda:1")
	plan := func(agent, device string, kv, activations int64) trainer.AgentPlan {
		m := weights.MemoryPlan{Weights: 10, Gradients: 1, KVCache: kv, Activations: activations}
		m.Total = m.Weights + m.Gradients + kv + activations
		return trainer.AgentPlan{Agent: agent, Device: device, Slots: 12, MemoryPlan: m}
	}
	planner, researcher := plan("planner", "cpu", 50, 20), plan("researcher", "cuda:1", 5, 30)
	for _, c := range []struct {
		name string
		free map[string]int64
		want []string // of the error; none: it fits
	}{
		{"enough", map[string]int64{"cpu": 81, "cuda:1": 46}, nil},
		{"unknown devices", nil, nil},
		{"the CPU is short", map[string]int64{"cpu": 80, "cuda:1": 46}, []string{"planner on cpu: 81 B", "80 B available", "lower agents.planner.engine.slots (12; KV cache 50 B) or agents.planner.engine.context"}},
		{"the GPU is short", map[string]int64{"cpu": 81, "cuda:1": 40}, []string{"researcher on cuda:1", "agents.researcher.engine.micro_batch_tokens (4096; activations 30 B)"}},
		{"far too small", map[string]int64{"cpu": 8}, []string{"that alone will not do", "smaller model"}},
	} {
		err := fits(cfg, []trainer.AgentPlan{planner, researcher}, c.free)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, word := range c.want {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v, want %q", c.name, err, word)
			}
		}
	}
	researcher.Snapshot = 12 // of the host's memory, though the agent is on a GPU
	if err := fits(cfg, []trainer.AgentPlan{planner, researcher}, map[string]int64{"cpu": 92}); err == nil || !strings.Contains(err.Error(), "planner and researcher on cpu: 93 B") {
		t.Errorf("a snapshot beside an agent: %v", err)
	}
	if err := fits(cfg, []trainer.AgentPlan{researcher}, map[string]int64{"cpu": 11}); err == nil || !strings.Contains(err.Error(), "train: false") {
		t.Errorf("a snapshot alone: %v", err)
	}
	researcher.Snapshot = 0
	researcher.Device = "cpu"
	if err := fits(cfg, []trainer.AgentPlan{planner, researcher}, map[string]int64{"cpu": 100}); err == nil || !strings.Contains(err.Error(), "planner and researcher on cpu: 127 B") {
		t.Errorf("two agents on one device: %v", err)
	}
}

func TestPreflight(t *testing.T) {
	var out strings.Builder
	if err := Preflight(&out, quickstart(t), nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"planner", "researcher", "weight", "KV cache", "total"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 80 {
			t.Errorf("wider than 80: %q", line)
		}
	}
	out.Reset()
	huge := quickstart(t, "agents.planner.engine.slots=65536", "agents.planner.model.max_positions=1048576", "agents.planner.limits.max_tokens=1048576")
	if err := Preflight(&out, huge, []string{"planner"}); err == nil || !strings.Contains(err.Error(), "lower agents.planner.engine.slots (65536;") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := Preflight(&out, quickstart(t), []string{"nobody"}); err == nil || !strings.Contains(err.Error(), `no agent "nobody"`) {
		t.Error(err)
	}
}

func TestWriteFits80Columns(t *testing.T) {
	long := strings.Repeat("some words that go on ", 20)
	var out strings.Builder
	failed := Write(&out, []Finding{{OK, "one", long, ""}, {Warn, "two", "short", long}, {Fail, "three", "bad", "do this"}})
	if !failed {
		t.Error("a failure is not told")
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
