package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// planTolerance is the share of the plan by which a training may take more or less.
const planTolerance = 0.2

// The memory that a training takes at its peak, beside what the same program takes without a model, is what the plan
// says.
func TestPlanIsWhatTrainingTakes(t *testing.T) {
	smol, err := filepath.Abs(filepath.Join(testdata, "tokenizer", "smollm2"))
	if err != nil {
		t.Fatal(err)
	}
	shape := "={family: llama, width: 384, layers: 6, heads: 6, kv_heads: 2, ffn: 1024, tokenizer: " + smol + "}"
	args := []string{filepath.Join("..", "..", "examples", "own-task", "team.yaml")}
	for _, s := range []string{"run.dir=" + t.TempDir(), "run.steps=1", "run.threads=2", "task.queries_per_step=2", "grpo.rollouts=2", "eval.queries=1", "eval.samples=1", "eval.before=false",
		"cold_start.steps=1", "cold_start.batch=8", "agents.planner.model" + shape, "agents.solver.model" + shape,
		"agents.planner.limits.max_new_tokens=16", "agents.solver.limits.max_new_tokens=16"} {
		args = append(args, "--set", s)
	}
	peak := func(command string) (bytes int64, stdout string) {
		cmd := program(t, "", append([]string{command}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		return cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10, string(out)
	}
	without, _ := peak("doctor")
	with, said := peak("train")
	var planned float64
	_, line, ok := strings.Cut(said, "planner and solver on cpu: ")
	if _, err := fmt.Sscanf(line, "%f GiB of memory needed", &planned); !ok || err != nil {
		t.Fatalf("no plan in %.300q: %v", said, err)
	}
	took := float64(with-without) / (1 << 30)
	t.Logf("planned %.1f GiB, took %.2f GiB", planned, took)
	if took > planned*(1+planTolerance) || took < planned*(1-planTolerance) {
		t.Errorf("training takes %.2f GiB at its peak, and %.1f GiB are planned", took, planned)
	}
}
