// Package gpu_test runs call.py where there is no GPU: programs, driver and torch are stand-ins. bench/gpu/rehearse.sh runs the
// real programs on the emulated GPU.
package gpu_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// machine is a copy of the scripts on a machine that has only what the stand-ins answer.
type machine struct {
	root string
	env  []string
}

const (
	trains = `case "$1" in
version) echo 'mgrpo 0' ;;
train)
  while [ $# -gt 0 ]; do case "$2" in run.dir=*) dir=${2#run.dir=} ;; *.device=cuda:0) loss=$LOSS ;; esac; shift; done
  mkdir -p "$dir"
  printf '{"kind": "cold_start", "agent": "a", "values": {"loss": %s}}\n{"kind": "step", "agent": "a", "values": {"gap_mean": 1e-6}}\n' "${loss:-2}" >"$dir/metrics.jsonl" ;;
esac`
	tests = `[ -e here ] && echo '    --- PASS: TestLogits/tiny/cuda:0 (0.00s)'`
)

// newMachine has programs as shell scripts by name; those that are not named pass.
func newMachine(t *testing.T, programs map[string]string) *machine {
	t.Helper()
	m := &machine{root: t.TempDir()}
	write := func(name, script string) {
		path := filepath.Join(m.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bench/gpu/call.py", ".ci/quickstart-small"} {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		write(name, string(text))
	}
	write("bench/gpu/first.py", "")
	write("bench/gpu/hottest.py", "")
	all := map[string]string{"build/gpu/bin/mgrpo-cuda": trains, "build/gpu/test/kernels_test": "", "build/gpu/lib/libmgrpo_kernels_cuda.so": ""}
	for _, folder := range []string{"cuda", "bindings/kernels", "bindings/torch", "trainer/model", "trainer/engine/learner", "trainer/engine/policy/local"} {
		write(folder+"/here", "")
		all["build/gpu/test/"+strings.ReplaceAll(folder, "/", ".")+".go_test"] = tests
	}
	for _, tool := range []string{"nvidia-smi", "compute-sanitizer", "ncu"} {
		all["path/"+tool] = "echo A GPU"
	}
	for name, script := range programs {
		all[name] = script
	}
	for name, script := range all {
		write(name, "#!/bin/bash\n"+script+"\n")
	}
	write("python/torch/__init__.py", "import os\n__version__ = '2.11.0+cu130'\nclass cuda: is_available = staticmethod(lambda: os.environ.get('GPUS') != '0')\n")
	m.env = append(os.Environ(), "PATH="+m.root+"/path:"+os.Getenv("PATH"), "PYTHONPATH="+m.root+"/python", "OUT="+m.root+"/out", "LOSS=2.001")
	return m
}

func (m *machine) start(arguments ...string) (status int, said string) {
	c := exec.Command("python3", append([]string{filepath.Join(m.root, "bench/gpu/call.py")}, arguments...)...)
	c.Env = m.env
	out, _ := c.CombinedOutput()
	return c.ProcessState.ExitCode(), string(out)
}

// step is what call.json has of one.
type step struct {
	Step, Status, Why string
	Before            bool
	GPUTests          int `json:"gpu_tests"`
	Commands          []struct{ Command, Status string }
}

// call starts call.py and returns its exit status, what it printed, and every step that it recorded.
func (m *machine) call(t *testing.T, arguments ...string) (status int, said string, steps map[string]step) {
	t.Helper()
	status, said = m.start(arguments...)
	var results struct{ Steps []step }
	raw, err := os.ReadFile(filepath.Join(m.root, "out", "call.json"))
	if err == nil {
		err = json.Unmarshal(raw, &results)
	}
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, raw, said)
	}
	steps = map[string]step{}
	for _, s := range results.Steps {
		steps[s.Step] = s
	}
	return status, said, steps
}

func want(t *testing.T, steps map[string]step, status string, names ...string) {
	t.Helper()
	for _, name := range names {
		if steps[name].Status != status {
			t.Errorf("%s: %+v, want %q", name, steps[name], status)
		}
	}
}

const model, learner = "build/gpu/test/trainer.model.go_test", "build/gpu/test/trainer.engine.learner.go_test"

// A program that fails, one that hangs and one that is absent are reported, and hide none behind them.
func TestEachFailingStepIsReported(t *testing.T) {
	m := newMachine(t, map[string]string{model: "echo the gradient is off; exit 1", "bench/gpu/first.py": "", "path/ncu": "sleep 600"})
	if err := os.Remove(filepath.Join(m.root, "path/compute-sanitizer")); err != nil {
		t.Fatal(err)
	}
	status, said, steps := m.call(t, "--most", "3", "first")
	if status != 1 || !strings.Contains(said, "the gradient is off") {
		t.Errorf("status %d, printed:\n%s", status, said)
	}
	want(t, steps, "failed", "go-tests")
	want(t, steps, "absent", "memcheck")
	want(t, steps, "timed_out", "profile")
	want(t, steps, "passed", "kernels", "doctor", "quick", "decode", "update", "step", "quickstart", "suite")
	if s := steps["go-tests"]; s.GPUTests != 5 || s.Commands[0].Status != "passed" || s.Commands[3].Status != "failed" {
		t.Errorf("the Go tests: %+v", s)
	}
	log, err := os.ReadFile(filepath.Join(m.root, "out", "call.log"))
	if err != nil || !strings.Contains(string(log), "the gradient is off") || !strings.Contains(string(log), "== profile") {
		t.Errorf("the log: %v\n%s", err, log)
	}
}

// A call that runs out of time leaves its steps to the next call. A step that passed runs again only if it is named.
func TestStepsAreLeftToTheNextCall(t *testing.T) {
	m := newMachine(t, map[string]string{"build/gpu/test/kernels_test": "echo run >>" + filepath.Join(t.TempDir(), "ran")})
	status, _, steps := m.call(t, "--seconds", "0", "first")
	if status != 3 {
		t.Errorf("status %d, want 3", status)
	}
	want(t, steps, "left", "kernels", "quickstart", "profile")
	status, said, steps := m.call(t, "first")
	if status != 0 || steps["suite"].Before {
		t.Errorf("status %d, printed:\n%s", status, said)
	}
	if _, _, steps = m.call(t, "first"); !steps["suite"].Before || !steps["quickstart"].Before {
		t.Errorf("what passed was repeated: %+v", steps)
	}
	if _, _, steps = m.call(t, "suite"); len(steps) != 1 || steps["suite"].Before {
		t.Errorf("what was named was not repeated: %+v", steps)
	}
	status, said, steps = m.call(t, "rest")
	if status != 0 {
		t.Errorf("status %d, printed:\n%s", status, said)
	}
	want(t, steps, "passed", "racecheck", "ranks", "step-trl", "kernels-peers", "suite")
}

// A team that learns otherwise on the GPU than on the CPU is found.
func TestQuickstartIsHeldAgainstTheCPU(t *testing.T) {
	m := newMachine(t, nil)
	m.env = append(m.env, "LOSS=2.1")
	status, said, steps := m.call(t, "quickstart")
	if status != 1 || !strings.Contains(steps["quickstart"].Why, "cuda-fp32 a: the losses are more than 1% apart") {
		t.Errorf("status %d, %+v, printed:\n%s", status, steps, said)
	}
}

// A machine without a GPU, and programs that do not see it, are failures.
func TestWithoutGPU(t *testing.T) {
	m := newMachine(t, nil)
	m.env = append(m.env, "GPUS=0")
	if status, said := m.start("first"); status != 1 || !strings.Contains(said, "torch sees no GPU") {
		t.Errorf("status %d, printed:\n%s", status, said)
	}
	none := "echo '--- PASS: TestLogits (0.00s)'; [ $MGRPO_REQUIRE_GPU = 1 ]"
	programs := map[string]string{}
	for _, folder := range []string{"cuda", "bindings.kernels", "bindings.torch", "trainer.model", "trainer.engine.learner", "trainer.engine.policy.local"} {
		programs["build/gpu/test/"+folder+".go_test"] = none
	}
	status, said, steps := newMachine(t, programs).call(t, "go-tests")
	if status != 1 || steps["go-tests"].Why != "no test ran on the GPU" {
		t.Errorf("status %d, %+v, printed:\n%s", status, steps, said)
	}
}

// Launches of a kernel are added up by grid, the units of ncu's second line left out.
func TestHottest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profile.csv")
	profile := `==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum"
"","","","","","ns"
"0","1","attend","(128, 1, 1)","(512, 1, 1)","2000"
"1","1","norm","(256, 1, 1)","(64, 1, 1)","1500"
"2","1","attend","(128, 1, 1)","(512, 1, 1)","4500"
`
	if err := os.WriteFile(path, []byte(profile), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("python3", "hottest.py", path).CombinedOutput()
	want := `3 launches, 8 us
 81.2%     2 launches of      3.2 us  (512, 1, 1) x (128, 1, 1) attend
 18.8%     1 launches of      1.5 us  (64, 1, 1) x (256, 1, 1) norm
`
	if err != nil || string(out) != want {
		t.Errorf("%v, printed:\n%s\nwant:\n%s", err, out, want)
	}
}

// The tree that is put aside comes back whole, and a file with changes never leaves.
func TestSendPutsTheTreeBack(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"LICENSE": "a", "trainer/model.go": "b", "trainer/changed.go": "c", "bench/gpu/call.py": "d", "testdata/large": "e", ".gitignore": "/build/\n", "build/kept": "f"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("send.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bench/gpu/send.sh"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(command string) string {
		t.Helper()
		c := exec.Command("bash", "-c", command)
		c.Dir = root
		c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	files := "find . -path ./.git -prune -o -type f -print | sort | tr '\\n' ' '"
	run("git init -q && git add -A && git commit -qm all && echo more >>trainer/changed.go && echo new >untracked")
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(filepath.Join(root, "testdata/large"), old, old); err != nil {
		t.Fatal(err)
	}
	before := run(files)
	if said := run("bench/gpu/send.sh away"); !strings.Contains(said, "untracked") {
		t.Errorf("an untracked file travels unnoticed: %s", said)
	}
	if away := run(files); away != "./.gitignore ./LICENSE ./bench/gpu/call.py ./bench/gpu/send.sh ./build/kept ./trainer/changed.go ./untracked " {
		t.Errorf("these stayed: %s", away)
	}
	run("bench/gpu/send.sh back")
	if after := run(files); after != before || run("cat trainer/changed.go") != "cmore\n" || strings.TrimSpace(run("git status --short")) != "M trainer/changed.go\n?? untracked" {
		t.Errorf("back are %s of %s\n%s", after, before, run("git status --short"))
	}
	if info, err := os.Stat(filepath.Join(root, "testdata/large")); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("a file is back with another time, which would build it again: %v, %v", info, err)
	}
}
