package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/store/redisserver"
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
	if sum := find(findings, "in all"); len(sum) != 1 || !strings.Contains(sum[0].Found, "planner and researcher on cpu: ") || !strings.Contains(sum[0].Found, " available") {
		t.Errorf("the agents' memory in all: %+v", sum)
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

func TestPreflight(t *testing.T) {
	var out strings.Builder
	if err := Preflight(&out, quickstart(t), nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"planner", "researcher", "weights", "KV", "total", "planner and researcher on cpu: ", " available"} {
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
