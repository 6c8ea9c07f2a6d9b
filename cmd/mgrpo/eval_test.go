package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An evaluation of a checkpoint is the run's own evaluation of that version, token by token.
func TestEvalRepeatsTheRun(t *testing.T) {
	dir := t.TempDir()
	set := []string{"-c", filepath.Join("..", "..", "examples", "quickstart", "team.yaml")}
	for _, s := range []string{"run.dir=" + dir, "run.steps=1", "task.queries_per_step=2", "grpo.rollouts=4", "eval.queries=9", "eval.samples=2",
		"eval.before=false", "cold_start.queries=64", "agents.planner.cold_start.steps=60", "agents.researcher.cold_start.steps=60"} {
		set = append(set, "--set", s)
	}
	plan := succeed(t, "", append([]string{"train"}, set...)...)
	if !strings.HasPrefix(strings.TrimSpace(plan), "memory") || !strings.Contains(plan, "KV cache") {
		t.Errorf("train does not begin with the memory plan: %.200q", plan)
	}
	table := succeed(t, "", append([]string{"eval"}, set...)...)
	for _, agent := range []string{"planner", "researcher"} {
		own, err := os.ReadFile(one(t, filepath.Join(dir, "trajectories", "eval*", agent+".jsonl")))
		if err != nil {
			t.Fatal(err)
		}
		again, err := os.ReadFile(one(t, filepath.Join(dir, "eval", "step-000001-9x2", "trajectories", "eval*", agent+".jsonl")))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(own, again) || agent == "planner" && bytes.Count(own, []byte("\n")) != 18 {
			t.Errorf("%s: the run's %d trajectories are not those of mgrpo eval", agent, bytes.Count(own, []byte("\n")))
		}
	}
	step := filepath.Join(dir, "checkpoints", "step-000001")
	named := succeed(t, "", append([]string{"eval", "--checkpoint", step, "--samples", "3"}, set...)...)
	for _, want := range []string{"9 queries x 2 samples", "accuracy ", "pass@1 ", "pass@2 ", "planner ", "researcher ", "step-000001-9x2"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if !strings.Contains(named, "9 queries x 3 samples") || !strings.Contains(named, "pass@3 ") {
		t.Errorf("with 3 samples:\n%s", named)
	}

	refused(t, "", append([]string{"eval", "--checkpoint", filepath.Join(dir, "checkpoints", "step-000009")}, set...), "step-000009")
	model := filepath.Join(step, "planner", "model.safetensors")
	data, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(model, data, 0o644); err != nil {
		t.Fatal(err)
	}
	refused(t, "", append([]string{"eval", "--checkpoint", step}, set...), "planner/model.safetensors")
}

// one is the only file of a pattern.
func one(t *testing.T, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) != 1 {
		t.Fatalf("%s: %v, %v", pattern, paths, err)
	}
	return paths[0]
}
