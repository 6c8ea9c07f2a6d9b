package assemble

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// TestFewRows counts the rows of the whole training and of each stage of a curriculum, and finds stages that never begin.
func TestFewRows(t *testing.T) {
	dir := t.TempDir()
	var rows strings.Builder
	for i := range 6 {
		fmt.Fprintf(&rows, "{\"question\": \"%d?\", \"answer\": \"1\", \"kind\": %q}\n", i, []string{"easy", "easy", "hard"}[i%3])
	}
	if err := os.WriteFile(filepath.Join(dir, "rows.jsonl"), []byte(rows.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ set, want string }{
		{"task.queries_per_step=6", ""},
		{"task.queries_per_step=7", "the 7 queries of a step are made from only 6 rows of the task, so"},
		{"task.curriculum={first: {steps: 2, kinds: [easy]}, then: {steps: 2, kinds: [hard]}}", "the 3 queries of a step are made from only 2 rows of the task in the stage then, so"},
		{"task.curriculum={first: {steps: 4}, then: {steps: 2, kinds: [hard]}, last: {steps: 1}}", "run.steps is 4, so these stages of task.curriculum never begin (then, last): raise"},
	} {
		cfg, err := config.Parse(filepath.Join(dir, "team.yaml"), []byte(`
run: {name: x, steps: 4}
task: {kind: jsonl, train: rows.jsonl, eval: rows.jsonl, queries_per_step: 3}
agents: {writer: {role: main, model: nowhere}}
`), []string{c.set})
		if err != nil {
			t.Fatal(err)
		}
		opened, err := OpenTask(cfg, 1)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(RowWarnings(cfg, opened), "\n")
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") || strings.Contains(got, "\n") {
			t.Errorf("%s: %q, want %q", c.set, got, c.want)
		}
		if err := task.Close(opened); err != nil {
			t.Error(err)
		}
	}
}
