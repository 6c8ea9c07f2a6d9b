package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestMistakesComeFirst checks that a mistake in the configuration is reported once, with its position, before any other output.
func TestMistakesComeFirst(t *testing.T) {
	smol, err := filepath.Abs(filepath.Join(testdata, "tokenizer", "smollm2"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mine", "team.yaml")
	mustRun(t, "", "init", "--template", "own-task", file)
	shape := "{family: llama, width: 32, layers: 1, heads: 2, ffn: 64, tokenizer: " + smol + "}"
	spoken := "{family: llama, width: 32, layers: 1, heads: 2, ffn: 64}"
	for _, c := range []struct{ name, set, want string }{
		{"no training rows", "task.train=missing.jsonl", "task.train: stat "},
		{"no prompt", "agents.solver.prompt=missing.txt", "agents.solver.prompt: stat "},
		{"no demonstrations", "cold_start.demonstrations=missing.jsonl", "cold_start.demonstrations: stat "},
		{"no verifier", "task.verifier={kind: program, command: [missing-program]}", "task.verifier: verifier: program command: "},
		{"no GPU", "agents.planner.device=cuda:200", "agents.planner.device: "},
		{"no vocabulary", "agents.planner.model=" + spoken, "the task jsonl does not have a vocabulary"},
	} {
		args := []string{"train", file, "--set", "run.dir=" + t.TempDir(), "--set", "agents.planner.model=" + shape, "--set", "agents.solver.model=" + shape, "--set", c.set}
		stdout, stderr, status := run(t, "", args...)
		if status != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || strings.Count(stderr, c.want) != 1 {
			t.Errorf("%s: status %d, output %q, errors %q; want only %q", c.name, status, stdout, stderr, c.want)
		}
	}
	// Neither model needs the task, and its file is missing.
	wantRefusal(t, "", []string{"train", file, "--set", "task.train=missing.jsonl", "--set", "agents.planner.model=" + spoken, "--set", "agents.solver.model=" + shape}, "vocabulary")
}
