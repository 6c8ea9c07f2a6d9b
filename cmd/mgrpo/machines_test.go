package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// machineCommand returns a function that makes commands of a worker on two machines, whose run is in a folder.
func machineCommand(t *testing.T, dir string, settings ...string) func(more ...string) *exec.Cmd {
	t.Setenv("MGRPO_MACHINES_KEY", "known to these machines alone")
	args := []string{"worker", filepath.Join("..", "..", "examples", "quickstart", "team.yaml"), "--agent", "planner", "--resume"}
	for _, s := range append([]string{"run.dir=" + dir, "run.arm=single", "run.steps=100000", "run.threads=1", "run.checkpoint_every=1", "eval.before=false", "eval.queries=2",
		"eval.samples=1", "task.queries_per_step=2", "grpo.rollouts=2", "cold_start.demonstrations=none",
		"agents.planner.machines={count: 2, address: '127.0.0.1:" + freePort(t) + "', key_env: MGRPO_MACHINES_KEY}"}, settings...) {
		args = append(args, "--set", s)
	}
	return func(more ...string) *exec.Cmd { return program(t, "", append(slices.Clone(args), more...)...) }
}

// TestMachines trains an agent on two machines with the commands of docs/ranks.md. Stopping the second machine, as one
// stops a worker, ends both with the same status. A machine that is not in the configuration is refused.
func TestMachines(t *testing.T) {
	dir := t.TempDir()
	command := machineCommand(t, dir)
	worker, further, none := command(), command("--machine", "1"), command("--machine", "2")
	if out, err := none.CombinedOutput(); none.ProcessState.ExitCode() != exitFailed || !strings.Contains(string(out), `there is no machine 2 of planner: agents.planner.machines.count is 2`) {
		t.Errorf("%v: %s", err, out)
	}
	var said [2]bytes.Buffer
	for i, cmd := range []*exec.Cmd{worker, further} {
		cmd.Stdout, cmd.Stderr = &said[i], &said[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
	}
	for deadline := time.Now().Add(time.Hour); ; time.Sleep(50 * time.Millisecond) {
		saved, err := filepath.Glob(filepath.Join(dir, "checkpoints", "step-*", "manifest.json"))
		if err != nil || len(saved) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no checkpoint appeared")
		}
	}
	if err := further.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_, _ = further.Wait(), worker.Wait()
	for i, cmd := range []*exec.Cmd{worker, further} {
		want := []string{"machine 1 was asked to stop the run", "the worker of planner has ended: stopped before the end, as asked"}[i]
		if status := cmd.ProcessState.ExitCode(); status != exitStopped || !strings.Contains(said[i].String(), want) {
			t.Errorf("status %d, without %q:\n%s", status, want, said[i].String())
		}
	}
	if !strings.Contains(said[1].String(), "planner/1") {
		t.Errorf("the second machine does not print its rank's memory:\n%s", said[1].String())
	}
}

// TestMachinesFail: the worker's error ends the process on a further machine with the same status, so that nothing starts it again.
func TestMachinesFail(t *testing.T) {
	command := machineCommand(t, t.TempDir(), "grpo.entropy_coef=1e42") // overflows float32 gradients, so updates are refused
	for i, cmd := range []*exec.Cmd{command(), command("--machine", "1")} {
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		said := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = said, said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailed || !strings.Contains(said.String(), "updates were refused") {
				t.Errorf("machine %d: status %d:\n%s", i, cmd.ProcessState.ExitCode(), said.String())
			}
		}()
	}
}
