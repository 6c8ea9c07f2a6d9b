// Package gpu_test runs the scripts for a GPU machine where there is none: programs, driver and torch are stand-ins.
package gpu_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a copy of the scripts, with the archive's parts, on a machine that has only what the stand-ins answer.
type machine struct {
	root string
	env  []string
}

const trains = `case "$1" in
version) echo 'mgrpo 0' ;;
train)
  while [ $# -gt 0 ]; do case "$2" in run.dir=*) dir=${2#run.dir=} ;; *.device=cuda) loss=$LOSS ;; esac; shift; done
  mkdir -p "$dir"
  printf '{"kind": "cold_start", "agent": "a", "values": {"loss": %s}}\n{"kind": "step", "agent": "a", "values": {"gap_mean": 1e-6}}\n' "${loss:-2}" >"$dir/metrics.jsonl" ;;
esac`

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
	for _, name := range []string{"bench/gpu/env.sh", "bench/gpu/test.sh", "bench/gpu/compare.py", ".ci/quickstart-small"} {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		write(name, string(text))
	}
	all := map[string]string{"bin/mgrpo-cuda": trains, "test/kernels_test": ""}
	for _, folder := range []string{"cuda", "bindings/kernels", "bindings/torch", "trainer/model", "trainer/learner", "trainer/policy/local", "bench/kernels", "bench/phases"} {
		write(folder+"/here", "")
		all["test/"+strings.ReplaceAll(folder, "/", ".")+".go_test"] = "[ -e here ]"
	}
	for name, script := range programs {
		all[name] = script
	}
	for name, script := range all {
		write("build/gpu/"+name, "#!/bin/bash\n"+script+"\n")
	}
	write("path/nvidia-smi", "#!/bin/bash\necho A GPU\n")
	write("path/compute-sanitizer", "#!/bin/bash\n")
	write("path/timeout", `#!/bin/bash
limit=$2
case "$*" in *' trainer/learner') limit=1 ;; esac # nobody waits for minutes here
exec /usr/bin/timeout "$1" $limit "${@:3}"
`)
	write("python/torch/__init__.py", "__version__ = '2.11.0+cu130'\nclass cuda: is_available = staticmethod(lambda: True)\n")
	m.shell(t, "tar -C build -c gpu | xz >whole && mkdir build/gpu.parts && split -d -a 2 -n 2 --additional-suffix=-2 whole build/gpu.parts/ && rm -r build/gpu whole")
	m.env = append(os.Environ(), "PATH="+m.root+"/path:"+os.Getenv("PATH"), "PYTHONPATH="+m.root+"/python", "OUT="+m.root+"/out", "LOSS=2.001")
	return m
}

func (m *machine) shell(t *testing.T, command string) {
	t.Helper()
	c := exec.Command("bash", "-euo", "pipefail", "-c", command)
	c.Dir = m.root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// test runs test.sh and returns its exit status, what it says, and the status of every stage it recorded.
func (m *machine) test(t *testing.T, env ...string) (status int, said string, stages map[string]string) {
	t.Helper()
	c := exec.Command(filepath.Join(m.root, "bench/gpu/test.sh"))
	c.Env = append(m.env, env...)
	out, _ := c.CombinedOutput()
	var results struct {
		Stages []struct{ Stage, Status string }
	}
	raw, err := os.ReadFile(filepath.Join(m.root, "out", "gpu-test.json"))
	if err == nil {
		err = json.Unmarshal(raw, &results)
	}
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, raw, out)
	}
	stages = map[string]string{}
	for _, s := range results.Stages {
		stages[s.Stage] = s.Status
	}
	return c.ProcessState.ExitCode(), string(out), stages
}

func want(t *testing.T, stages map[string]string, status string, names ...string) {
	t.Helper()
	for _, name := range names {
		if stages[name] != status {
			t.Errorf("%s: %q, want %q", name, stages[name], status)
		}
	}
}

// A program that fails and one that hangs are reported, and hide none behind them.
func TestNoStageHidesAnother(t *testing.T) {
	m := newMachine(t, map[string]string{"test/trainer.model.go_test": "echo the gradient is off; exit 1", "test/trainer.learner.go_test": "sleep 600"})
	status, said, stages := m.test(t)
	if status != 1 || len(stages) != 13 || !strings.Contains(said, "the gradient is off") {
		t.Errorf("status %d, %d stages, said:\n%s", status, len(stages), said)
	}
	want(t, stages, "failed", "trainer.model")
	want(t, stages, "timed_out", "trainer.learner")
	want(t, stages, "passed", "proof", "kernels", "bindings.torch", "trainer.policy.local", "quickstart", "memcheck", "racecheck")
}

// Where the time of a call is over, the next one goes on; what passed is not repeated.
func TestStagesAreLeftToTheNextCall(t *testing.T) {
	m := newMachine(t, map[string]string{"test/kernels_test": `echo run >>"$root/kernels-ran"`})
	status, _, stages := m.test(t, "GPU_TEST_SECONDS=119")
	if status != 3 {
		t.Errorf("status %d, want 3", status)
	}
	want(t, stages, "passed", "proof", "kernels")
	want(t, stages, "left", "quickstart", "memcheck")
	if status, said, stages := m.test(t); status != 0 || len(stages) != 13 {
		t.Errorf("status %d, %d stages, said:\n%s", status, len(stages), said)
	}
	ran, err := os.ReadFile(filepath.Join(m.root, "kernels-ran"))
	if err != nil || string(ran) != "run\n" {
		t.Errorf("the kernels ran: %q, %v", ran, err)
	}
}

// A team that learns otherwise on the GPU than on the CPU is found.
func TestQuickstartIsHeldAgainstTheCPU(t *testing.T) {
	status, said, stages := newMachine(t, nil).test(t, "LOSS=2.1")
	if status != 1 || !strings.Contains(said, "1% apart") {
		t.Errorf("status %d, said:\n%s", status, said)
	}
	want(t, stages, "failed", "quickstart")
}

// A part that did not come along is missed before anything runs.
func TestPartsAreCounted(t *testing.T) {
	m := newMachine(t, nil)
	m.shell(t, "rm build/gpu.parts/00-2")
	c := exec.Command(filepath.Join(m.root, "bench/gpu/test.sh"))
	c.Env = m.env
	if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "has 1 parts of 2") {
		t.Errorf("%v: %s", err, out)
	}
}
