package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// The last lines of a resumed run cover all its steps. Training or resuming a finished run is not an error.
func TestEndOfResumedRun(t *testing.T) {
	set := []string{filepath.Join("..", "..", "examples", "quickstart", "team.yaml")}
	for _, s := range []string{"run.dir=" + t.TempDir(), "run.checkpoint_every=1", "eval.every=1", "task.queries_per_step=2", "grpo.rollouts=2", "eval.queries=3",
		"eval.samples=1", "cold_start.demonstrations=none"} {
		set = append(set, "--set", s)
	}
	train := func(more ...string) string { return trainToEnd(t, append(slices.Clone(set), more...)...) }
	end := func(output string) (steps, tokens string) {
		lines := strings.Split(strings.TrimSpace(output), "\n")
		return lines[len(lines)-2], lines[len(lines)-1]
	}
	whole, all := end(train("--set", "run.steps=3", "--set", "run.dir="+t.TempDir()))
	if !strings.HasPrefix(whole, "3 steps in ") {
		t.Fatalf("without an interruption: %q", whole)
	}
	train("--set", "run.steps=2")
	steps, tokens := end(train("--set", "run.steps=3", "--resume"))
	if !strings.HasPrefix(steps, "3 steps (1 since the resume, in ") || tokens != all {
		t.Errorf("resumed:\n%s\n%s\nwant all 3 steps and\n%s", steps, tokens, all)
	}
	if _, accuracies, _ := strings.Cut(whole, ";"); !strings.HasSuffix(steps, accuracies) {
		t.Errorf("resumed: %q, want the accuracies of %q", steps, whole)
	}
	again := train("--set", "run.steps=3", "--resume")
	steps, tokens = end(again)
	if !strings.Contains(again, "the run is complete: its newest checkpoint is of step 3, and run.steps is 3; to continue training, raise run.steps") || !strings.HasPrefix(steps, "3 steps") || tokens != all {
		t.Errorf("finished:\n%s", again)
	}
}

// TestInterruptedColdStart checks that Ctrl-C in a cold start ends the process after the current update, with the status
// and the last line of every stop. --resume continues from there, and the weights equal the ones of an uninterrupted run.
func TestInterruptedColdStart(t *testing.T) {
	args := func(dir string, more ...string) []string {
		out := []string{"train", filepath.Join("..", "..", "examples", "quickstart", "team.yaml"), "--set", "run.dir=" + dir}
		for _, s := range []string{"run.steps=0", "run.threads=2", "eval.before=false", "eval.queries=2", "eval.samples=1", "task.queries_per_step=2",
			"grpo.rollouts=2", "cold_start.queries=32", "agents.planner.cold_start.steps=800", "agents.planner.cold_start.batch=4",
			"agents.researcher.cold_start.steps=800", "agents.researcher.cold_start.batch=4"} {
			out = append(out, "--set", s)
		}
		return append(out, more...)
	}
	whole, dir := t.TempDir(), t.TempDir()
	mustRun(t, "", args(whole)...)

	cmd := program(t, "", args(dir)...)
	var notes strings.Builder
	cmd.Stderr = &notes
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(io.TeeReader(out, &said))
	for interrupted := false; lines.Scan(); {
		if !interrupted && strings.Contains(lines.Text(), "cold start ") && strings.Contains(lines.Text(), "/800") {
			interrupted = true
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 75 || !strings.HasSuffix(notes.String(), "mgrpo: stopped before the end, as asked; continue with --resume\n") {
		t.Fatalf("status %d, %s", status, notes.String())
	}
	if !strings.Contains(said.String(), "the cold start was stopped after update ") {
		t.Fatalf("no message about the cold start:\n%s", said.String())
	}
	if isComplete(t, dir) {
		t.Error("the file marks the stopped run as complete")
	}
	resumed := mustRun(t, "", args(dir, "--resume")...)
	if !strings.Contains(resumed, "the cold start continues where it was stopped, of ") || !strings.Contains(resumed, "the cold start continues after update ") {
		t.Errorf("resumed:\n%s", resumed)
	}
	for _, agent := range []string{"planner", "researcher"} {
		for _, file := range []string{"model.safetensors", "optimizer.state"} {
			want, err := os.ReadFile(filepath.Join(archive.CheckpointsOf(whole).AgentDir(0, agent), file))
			got, err2 := os.ReadFile(filepath.Join(archive.CheckpointsOf(dir).AgentDir(0, agent), file))
			if err != nil || err2 != nil || !bytes.Equal(got, want) {
				t.Errorf("%s of %s differs: %v, %v", file, agent, err, err2)
			}
		}
	}
}

// TestListen checks that a training in one process serves its page at the given address, and prints the address.
func TestListen(t *testing.T) {
	cmd := program(t, "", "train", filepath.Join("..", "..", "examples", "quickstart", "team.yaml"), "--listen", "127.0.0.1:0", "--set", "run.dir="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		_, address, found := strings.Cut(lines.Text(), "the page of the run: ")
		if !found {
			continue
		}
		resp, err := http.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(page, []byte("<h1>quickstart</h1>")) {
			t.Errorf("%s answers %s, %v: %s", address, resp.Status, err, page)
		}
		return
	}
	t.Error("it did not print the address of the page")
}
