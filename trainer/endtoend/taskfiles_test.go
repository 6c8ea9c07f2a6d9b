package endtoend

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
)

// TestWorkersHaveEqualQuestions: workers look questions up by their number, so a worker with another file of questions is refused.
func TestWorkersHaveEqualQuestions(t *testing.T) {
	url := startRedis(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	for name, answer := range map[string]string{"planner": "4", "researcher": "5"} {
		dir := t.TempDir()
		for file, answer := range map[string]string{"train": answer, "eval": "6"} {
			row := `{"question": "What is 2 + 2?", "answer": "` + answer + `"}` + "\n"
			if err := os.WriteFile(filepath.Join(dir, file+".jsonl"), []byte(row), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cfg := load(t, dir, append(noColdStart, "store.url="+url, "task.kind=jsonl", "task.train="+dir+"/train.jsonl", "task.eval="+dir+"/eval.jsonl")...)
		go func() { ended <- trainer.Train(ctx, cfg, trainer.TrainOptions{Agents: []string{name}}) }()
	}
	err := <-ended
	if err == nil || !strings.Contains(err.Error(), "contents of task.train") || strings.Contains(err.Error(), "contents of task.eval") {
		t.Errorf("got %v", err)
	}
	cancel()
	<-ended
}
