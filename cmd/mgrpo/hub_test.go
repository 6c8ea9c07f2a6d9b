package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// onHub creates a model's files in the layout of `hf download org/talker`: links from a snapshot to blobs.
func onHub(t *testing.T, files string) {
	t.Helper()
	const commit = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	model := filepath.Join(cache, "models--org--talker")
	snapshot := filepath.Join(model, "snapshots", commit)
	for _, dir := range []string{snapshot, filepath.Join(model, "blobs"), filepath.Join(model, "refs")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	names, err := os.ReadDir(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range names {
		if err := os.Rename(filepath.Join(files, f.Name()), filepath.Join(model, "blobs", f.Name())); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("..", "..", "blobs", f.Name()), filepath.Join(snapshot, f.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(model, "refs", "main"), []byte(commit), 0o644); err != nil {
		t.Fatal(err)
	}
}

const onHubTeam = `run: {name: hub, dir: run, steps: 1, seed: 3}
task: {kind: jsonl, train: rows.jsonl, eval: rows.jsonl, queries_per_step: 1}
grpo: {rollouts: 2}
eval: {before: false, queries: 1, samples: 1}
agents:
  boss:
    role: main
    model: org/talker
    limits: {max_new_tokens: 4, max_tokens: 64}
  help:
    role: sub
    model: org/talker
    limits: {max_new_tokens: 4, max_tokens: 64}
`

func TestModelsOfTheHub(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "team.yaml")
	for path, text := range map[string]string{file: onHubTeam, filepath.Join(dir, "rows.jsonl"): `{"question": "w5 w6", "answer": "w7"}`} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	for _, command := range []string{"doctor", "train"} {
		stdout, stderr, status := run(t, "", command, file, "--set", "agents.help.model=missing-folder")
		said := strings.Join(strings.Fields(stdout+stderr), " ")
		for _, want := range []string{file + ":8:5: agents.boss.model: org/talker is neither", "hf download org/talker", "agents.help.model: " + filepath.Join(dir, "missing-folder") + ": there is no such folder or file"} {
			if status != 1 || !strings.Contains(said, want) {
				t.Errorf("%s: status %d, no %q in %s", command, status, want, said)
			}
		}
	}
	if _, stderr, status := run(t, `{"text": "w5"}`, "generate", "--model", "org/talker"); status != 1 || !strings.Contains(stderr, "hf download org/talker") {
		t.Errorf("generate: status %d, %s", status, stderr)
	}

	onHub(t, writeChatModel(t, "w2"))
	mustRun(t, `{"text": "w5"}`, "generate", "--model", "org/talker", "--max-new", "2")
	mustRun(t, `{"text": "w5"}`, "tokenize", "--model", "org/talker")
	trainToEnd(t, file)
	again := filepath.Join(dir, "run", "config.yaml") // in another folder, with the same models
	mustRun(t, "", "doctor", again)
	if text, _ := os.ReadFile(again); strings.Count(string(text), "model: org/talker\n") != 2 {
		t.Errorf("the run's configuration names different models:\n%s", text)
	}
	mustRun(t, "", "eval", again)
}
