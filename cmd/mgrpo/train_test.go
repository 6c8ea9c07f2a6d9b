package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// The end of a resumed run tells of all its steps, and a run that is finished is no failure, whichever command is told
// to go on with it.
func TestEndOfResumedRun(t *testing.T) {
	set := []string{"-c", filepath.Join("..", "..", "examples", "quickstart", "team.yaml")}
	for _, s := range []string{"run.dir=" + t.TempDir(), "run.checkpoint_every=1", "eval.every=1", "task.queries_per_step=2", "grpo.rollouts=2", "eval.queries=3",
		"eval.samples=1", "cold_start.demonstrations=none"} {
		set = append(set, "--set", s)
	}
	train := func(more ...string) string {
		return succeed(t, "", append(append([]string{"train"}, set...), more...)...)
	}
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
	if !strings.Contains(again, "nothing is left to train") || !strings.HasPrefix(steps, "3 steps") || tokens != all {
		t.Errorf("finished:\n%s", again)
	}
}
