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

// TestKLWarning: a KL term without a weight, or with a gradient of 0, gives a warning.
func TestKLWarning(t *testing.T) {
	for _, c := range []struct{ kl, coef, want string }{
		{"none", "0", ""},
		{"k3", "0.1", ""},
		{"k3", "0", "grpo.kl k3 has the weight 0 (grpo.kl_coef)"},
		{"k1", "0.1", "the gradient of grpo.kl k1"},
	} {
		cfg, err := config.Load("../../../examples/quickstart/team.yaml", []string{"grpo.kl=" + c.kl, "grpo.kl_coef=" + c.coef})
		if err != nil {
			t.Fatal(err)
		}
		if got := KLWarning(cfg); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s with weight %s: %q, want %q", c.kl, c.coef, got, c.want)
		}
	}
}

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
