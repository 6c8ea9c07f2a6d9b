package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// TestResumeComparesFiles checks that a resumed run accepts its folder in another place, names a prompt whose contents have changed, and
// refuses other training questions. A run that saved no digests is resumed without a comparison.
func TestResumeComparesFiles(t *testing.T) {
	dir := t.TempDir()
	tokens, err := filepath.Abs("../../testdata/tokenizer/smollm2")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("train.jsonl", `{"question": "What is 2 + 2?", "answer": "4"}`+"\n")
	write("eval.jsonl", `{"question": "What is 2 + 3?", "answer": "5"}`+"\n")
	write("prompt.txt", "Answer.")
	write("team.yaml", strings.ReplaceAll(`
run: {name: files, dir: runs/files, threads: 1}
task: {kind: jsonl, train: train.jsonl, eval: eval.jsonl, queries_per_step: 1}
grpo: {rollouts: 2}
agents:
  planner:
    role: main
    prompt: prompt.txt
    model: {width: 32, layers: 1, heads: 2, ffn: 64, max_positions: 512, tokenizer: TOKENS}
    limits: {max_new_tokens: 8, max_tokens: 512}
  researcher:
    role: sub
    model: {width: 32, layers: 1, heads: 2, ffn: 64, max_positions: 512, tokenizer: TOKENS}
    limits: {max_new_tokens: 8, max_tokens: 512}
`, "TOKENS", tokens))
	train := func(steps, at string) (string, error) {
		t.Helper()
		cfg, err := config.Load(filepath.Join(dir, "team.yaml"), []string{"run.steps=" + steps, "run.dir=" + at})
		if err != nil {
			t.Fatal(err)
		}
		seen := &recorder{}
		err = toTheEnd(trainer.Train(t.Context(), cfg, trainer.TrainOptions{Resume: steps != "1", Observer: seen}))
		return seen.String(), err
	}
	if _, err := train("1", "runs/files"); err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(t.TempDir(), "far", "files")
	if err := errors.Join(os.Mkdir(filepath.Dir(moved), 0o777), os.Rename(filepath.Join(dir, "runs", "files"), moved)); err != nil {
		t.Fatal(err)
	}
	if notes, err := train("2", moved); err != nil || strings.Contains(notes, "other contents") {
		t.Fatalf("the run's folder was moved: %v, notes %s", err, notes)
	}
	write("prompt.txt", "Answer in one word.")
	if notes, err := train("3", moved); err != nil || !strings.Contains(notes, "the run continues with other contents of: agents.planner.prompt") {
		t.Errorf("the prompt has changed: %v, notes %s", err, notes)
	}
	write("train.jsonl", `{"question": "What is 2 + 4?", "answer": "6"}`+"\n")
	if _, err := train("4", moved); err == nil || !strings.Contains(err.Error(), "the contents of task.train have changed") {
		t.Errorf("the questions have changed: %v", err)
	}
	if err := os.Remove(filepath.Join(moved, "inputs.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := train("4", moved); err != nil {
		t.Errorf("without digests: %v", err)
	}
}
