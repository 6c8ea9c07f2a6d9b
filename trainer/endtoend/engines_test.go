//go:build engines

package endtoend

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/bench/phases"
	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/remote"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// These tests train the small team with its planner on real servers. Run them with make test-engines,
// which installs vLLM and SGLang and sets MGRPO_ENGINES to the folder of their virtual environments.

// engineServer is a process that serves a model. It takes one to three minutes to start on a CPU.
type engineServer struct {
	t       *testing.T
	command []string
	env     []string
	address string
	process *exec.Cmd
}

// start returns at once; a caller that needs the server must wait for it.
func (s *engineServer) start() {
	s.process = exec.Command(s.command[0], s.command[1:]...)
	s.process.Env = append(os.Environ(), s.env...)
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that kill reaches its children
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

// freeAddress returns an address with an unused port.
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

// python returns the path of the interpreter in a server's virtual environment.
func python(t *testing.T, kind string) string {
	t.Helper()
	path := filepath.Join(os.Getenv("MGRPO_ENGINES"), kind, "bin", "python")
	if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
		t.Fatalf("no %s in MGRPO_ENGINES: make test-engines installs it", kind)
	}
	return path
}

// absolute returns the absolute path of a folder of the repository.
func absolute(t *testing.T, folder string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", folder))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// startEngine starts a server for a model. While the file forget exists, the server ignores new
// weights but reports that it has loaded them.
func startEngine(t *testing.T, kind, model, dtype, forget string) *engineServer {
	t.Helper()
	address, port := freeAddress(t)
	s := &engineServer{t: t, address: address, env: []string{"OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "MGRPO_FORGET=" + forget}}
	common := []string{"--served-model-name", "policy", "--host", "127.0.0.1", "--port", port, "--dtype", dtype}
	scripts := absolute(t, "bench/engines")
	switch kind {
	case "vllm":
		s.command = slices.Concat([]string{python(t, kind), "-m", "vllm.entrypoints.openai.api_server", "--model", model}, common,
			[]string{"--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "32", "--logprobs-mode", "processed_logprobs",
				"--worker-extension-cls", "forgetful.Weights"})
		s.env = append(s.env, "VLLM_SERVER_DEV_MODE=1", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "VLLM_NO_USAGE_STATS=1",
			"DO_NOT_TRACK=1", "PYTHONPATH="+absolute(t, "deploy/vllm")+":"+scripts)
	case "sglang":
		s.command = slices.Concat([]string{python(t, kind), scripts + "/sglang_server.py", "--model-path", model}, common,
			[]string{"--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none",
				"--disable-overlap-schedule", "--disable-cuda-graph", "--max-total-tokens", "8192", "--max-running-requests", "32",
				"--context-length", "256", "--mem-fraction-static", "0.3"})
		s.env = append(s.env, "SGLANG_USE_CPU_ENGINE=1")
	}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// served returns the settings of the small team with its planner on a server. vLLM's attention on a
// CPU needs heads of at least 32. The entropy term gives every step a gradient, so the weights change.
func served(extra ...string) []string {
	return append([]string{"agents.planner.model.head_dim=32", "grpo.entropy_coef=0.01", "store.timeout=15m", "agents.planner.limits.wall_time=20m",
		"agents.researcher.limits.wall_time=20m", "eval.before=false"}, extra...)
}

// servable returns a checkpoint of the small team's untrained planner.
func servable(t *testing.T, dir string) string {
	t.Helper()
	settings := append(noColdStart, "run.steps=0", "agents.planner.train=false", "agents.planner.optimizer.warmup=0", "agents.researcher.optimizer.warmup=0")
	if err := toTheEnd(trainer.Train(t.Context(), load(t, dir, served(settings...)...), trainer.TrainOptions{})); err != nil {
		t.Fatal(err)
	}
	return archive.CheckpointsOf(dir).AgentDir(0, "planner")
}

func TestVLLM(t *testing.T)   { useServer(t, "vllm") }
func TestSGLang(t *testing.T) { useServer(t, "sglang") }

// useServer trains three steps on a server that is killed in the second step, and then on a server that ignores new weights.
func useServer(t *testing.T, kind string) {
	dir := t.TempDir()
	forget := filepath.Join(dir, "forget")
	model := servable(t, dir+"/model")
	s := startEngine(t, kind, model, "float32", forget)
	engine := fmt.Sprintf("agents.planner.engine={kind: %s, url: [%q], weights: {path: %q, dtype: fp32}}", kind, s.url(), dir+"/weights")

	seen := &recorder{}
	var once sync.Once
	seen.on = func(agent, phase string, done int) {
		if agent == "planner" && phase == "step-1" && done > 0 {
			once.Do(func() { s.kill(); s.start() })
		}
	}
	if err := trainer.Train(t.Context(), load(t, dir+"/run", served(engine)...), trainer.TrainOptions{Observer: seen}); err != nil {
		t.Fatalf("%v\nnotes: %s", err, seen)
	}
	for step := int64(1); step <= 3; step++ {
		v := seen.find(t, "step", step, "planner").Values
		if gap := v["gap_mean"]; !(gap > 0 && gap < 1e-4) || v["updates"]-v["updates_skipped"] < 1 || v["tis_mean"] == 0 {
			t.Errorf("step %d: a gap of %v nats, %v updates (%v skipped), importance weight %v", step, gap, v["updates"], v["updates_skipped"], v["tis_mean"])
		}
	}
	for _, want := range []string{"not deterministic", "waits for the engine", "has version 0", "has version 1"} {
		if !strings.Contains(seen.String(), want) {
			t.Errorf("no note contains %q:\n%s", want, seen)
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
	err := trainer.Train(t.Context(), load(t, dir+"/stale", served(engine)...), trainer.TrainOptions{Observer: seen})
	if err == nil || !strings.Contains(err.Error(), "it still samples with the previous weights") && !strings.Contains(err.Error(), "does not sample with the agent's weights") {
		t.Errorf("with a server that ignores new weights: %v\nnotes: %s", err, seen)
	}
	t.Logf("%v", err)
	if steps := slices.ContainsFunc(seen.Records, func(r metrics.Record) bool { return r.Kind == "step" && r.Agent == "planner" }); steps {
		t.Error("a step was trained although the server ignored its weights")
	}
	if r, err := http.Get(s.url() + "/health"); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("the server is no longer healthy: %v", err)
	}
	if err := os.Remove(forget); err != nil {
		t.Fatal(err)
	}
	compareInTurn(t, phases.Server{Kind: remote.Kind(kind), URL: s.url(), Model: model})
}

// compareInTurn compares the server with our engine in the benchmark of rollouts.
func compareInTurn(t *testing.T, s phases.Server) {
	t.Helper()
	r, err := phases.CompareInTurn(t.Context(), s, phases.Options{Root: t.TempDir(), Device: "cpu", Threads: 1, Quick: true, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Rows[0].Providers {
		if p.Status != "ok" || p.Median <= 0 || p.MaxError > 1e-4 {
			t.Errorf("%+v", p)
		}
	}
	t.Log(r.Table())
}

func TestVLLMReplicas(t *testing.T)   { useReplicas(t, "vllm") }
func TestSGLangReplicas(t *testing.T) { useReplicas(t, "sglang") }

// useReplicas trains on two servers at once. The weights and the servers use bf16.
func useReplicas(t *testing.T, kind string) {
	dir := t.TempDir()
	model := servable(t, dir+"/model")
	a, b := counted(t, startEngine(t, kind, model, "bfloat16", dir+"/never")), counted(t, startEngine(t, kind, model, "bfloat16", dir+"/never"))
	engine := fmt.Sprintf("agents.planner.engine={kind: %s, url: [%q, %q], weights: {path: %q, dtype: bf16}}", kind, a.URL, b.URL, dir+"/weights")
	seen := &recorder{}
	if err := trainer.Train(t.Context(), load(t, dir+"/run", served(engine, "run.steps=2")...), trainer.TrainOptions{Observer: seen}); err != nil {
		t.Fatalf("%v\nnotes: %s", err, seen)
	}
	for step := int64(1); step <= 2; step++ {
		if gap := seen.find(t, "step", step, "planner").Values["gap_mean"]; !(gap > 1e-5 && gap < 0.05) {
			t.Errorf("step %d: a gap of %v nats is not typical of bf16", step, gap)
		}
	}
	const proofs = 3 * 2 * 12 // three versions, two temperatures, 12 prompts each
	if a.turns.Load() <= proofs || b.turns.Load() <= proofs {
		t.Errorf("%d and %d requests for tokens: one of the servers did not sample", a.turns.Load(), b.turns.Load())
	}
	t.Logf("%d and %d requests for tokens\n%s", a.turns.Load(), b.turns.Load(), seen)
}

// counter passes requests on to a server and counts the requests for tokens.
type counter struct {
	*httptest.Server
	turns atomic.Int64
}

func counted(t *testing.T, s *engineServer) *counter {
	t.Helper()
	to, err := url.Parse(s.url())
	if err != nil {
		t.Fatal(err)
	}
	c, proxy := &counter{}, httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorLog = log.New(io.Discard, "", 0) // the first requests come long before the server answers
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/generate") {
			c.turns.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(c.Close)
	return c
}
