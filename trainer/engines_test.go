//go:build engines

package trainer

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// This test trains the small team with its planner on a real server: make test-engines, which installs vLLM and sets
// MGRPO_ENGINES to the folder of its virtual environment.

// engineServer is a process that serves a model. It is slow to start on a CPU: one to three minutes.
type engineServer struct {
	t       *testing.T
	command []string
	env     []string
	address string
	process *exec.Cmd
}

// start returns at once: whoever needs the server waits for it.
func (s *engineServer) start() {
	s.process = exec.Command(s.command[0], s.command[1:]...)
	s.process.Env = append(os.Environ(), s.env...)
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has children
	log, err := os.OpenFile(filepath.Join(os.Getenv("MGRPO_ENGINES"), "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer log.Close()
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		s.t.Error(err)
	}
}

func (s *engineServer) kill() {
	_ = syscall.Kill(-s.process.Process.Pid, syscall.SIGKILL)
	_ = s.process.Wait()
}

func (s *engineServer) url() string { return "http://" + s.address }

// freeAddress is one that nobody listens at.
func freeAddress(t *testing.T) (address, port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return l.Addr().String(), port
}

// python is the interpreter of the virtual environment with vLLM.
func python(t *testing.T) string {
	t.Helper()
	path := filepath.Join(os.Getenv("MGRPO_ENGINES"), "vllm", "bin", "python")
	if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
		t.Fatal("no vLLM in MGRPO_ENGINES: make test-engines installs it")
	}
	return path
}

func newVLLM(t *testing.T, model, forget string) *engineServer {
	t.Helper()
	extension, err := filepath.Abs("../deploy/vllm")
	if err != nil {
		t.Fatal(err)
	}
	forgetful, _ := filepath.Abs("../bench/engines")
	address, port := freeAddress(t)
	return &engineServer{t: t, address: address,
		command: []string{python(t), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "policy",
			"--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "32",
			"--logprobs-mode", "processed_logprobs", "--worker-extension-cls", "forgetful.Weights"},
		env: []string{"VLLM_SERVER_DEV_MODE=1", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1",
			"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
			"PYTHONPATH=" + extension + ":" + forgetful, "MGRPO_FORGET=" + forget},
	}
}

// served are the settings of the small team with its planner on a server. vLLM's attention on a CPU takes heads of 32 and
// more. The entropy term gives every step a gradient, so that the weights change.
func served(extra ...string) []string {
	return append([]string{"agents.planner.model.head_dim=32", "grpo.entropy_coef=0.01", "store.timeout=15m", "agents.planner.limits.wall_time=20m",
		"agents.researcher.limits.wall_time=20m", "eval.before=false"}, extra...)
}

// TestVLLM trains three steps on a server that is killed in the second, and then on one that forgets to load.
func TestVLLM(t *testing.T) {
	dir := t.TempDir()
	if err := toTheEnd(Train(t.Context(), load(t, dir+"/model", served(append(untaught, "run.steps=0", "agents.planner.train=false", "agents.planner.optimizer.warmup=0", "agents.researcher.optimizer.warmup=0")...)...), Options{})); err != nil {
		t.Fatal(err)
	}
	model := archive.CheckpointsOf(dir+"/model").AgentDir(0, "planner")
	forget := filepath.Join(dir, "forget")
	s := newVLLM(t, model, forget)
	s.start()
	t.Cleanup(s.kill)
	engine := fmt.Sprintf("agents.planner.engine={kind: vllm, url: [%q], weights: {path: %q, dtype: fp32}}", s.url(), dir+"/weights")

	seen := &recorder{}
	var once sync.Once
	seen.on = func(agent, phase string, done int) {
		if agent == "planner" && phase == "step-1" && done > 0 {
			once.Do(func() { s.kill(); s.start() })
		}
	}
	if err := Train(t.Context(), load(t, dir+"/run", served(engine)...), Options{Observer: seen}); err != nil {
		t.Fatalf("%v\nnotes: %s", err, seen)
	}
	for step := int64(1); step <= 3; step++ {
		v := seen.find(t, "step", step, "planner").Values
		if gap := v["gap_mean"]; !(gap > 0 && gap < 1e-4) || v["updates"]-v["updates_skipped"] < 1 || v["tis_mean"] == 0 {
			t.Errorf("step %d: a gap of %v nats, %v updates of which %v skipped, importance weight %v", step, gap, v["updates"], v["updates_skipped"], v["tis_mean"])
		}
	}
	for _, want := range []string{"not deterministic", "waits for the engine", "holds version 0", "holds version 1"} {
		if !strings.Contains(seen.String(), want) {
			t.Errorf("nobody said %q:\n%s", want, seen)
		}
	}
	t.Logf("%s", seen)

	seen = &recorder{on: func(agent, phase string, done int) {
		if agent == "planner" && phase == "learn" {
			if err := os.WriteFile(forget, nil, 0o666); err != nil {
				t.Error(err)
			}
		}
	}}
	err := Train(t.Context(), load(t, dir+"/stale", served(engine)...), Options{Observer: seen})
	if err == nil || !strings.Contains(err.Error(), "it still samples with the weights before") && !strings.Contains(err.Error(), "does not sample with the agent's weights") {
		t.Errorf("a server that forgets to load: %v\nnotes: %s", err, seen)
	}
	t.Logf("%v", err)
	if steps := slices.ContainsFunc(seen.records, func(r metrics.Record) bool { return r.Kind == "step" && r.Agent == "planner" }); steps {
		t.Error("a step was trained although the server did not take its weights")
	}
	if r, err := http.Get(s.url() + "/health"); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("the server did not survive it: %v", err)
	}
}
