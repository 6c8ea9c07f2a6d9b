package assemble

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// TestHeldOutDigest: the digest depends on the held-out questions and on the settings of evaluations, and not on the training questions
// or on the place of the files.
func TestHeldOutDigest(t *testing.T) {
	digest := func(train, eval string, sets ...string) string {
		t.Helper()
		dir := t.TempDir()
		for name, text := range map[string]string{"t.jsonl": train, "e.jsonl": eval, "more.jsonl": eval,
			"f.yaml": "run: {name: t}\ntask: {kind: jsonl, train: t.jsonl, eval: e.jsonl, eval_sets: {more: {path: more.jsonl}}}\n" +
				"agents: {a: {role: main, model: m}, b: {role: sub, model: m}}\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cfg, err := config.Load(filepath.Join(dir, "f.yaml"), sets)
		if err != nil {
			t.Fatal(err)
		}
		files, err := TaskFiles(cfg)
		if err != nil || len(files) != 3 {
			t.Fatalf("%v, %v", files, err)
		}
		out, err := HeldOutDigest(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	same := digest("a", "b")
	if got := digest("c", "b", "eval.every=7"); got != same {
		t.Errorf("other training questions: %s, want %s", got, same)
	}
	if got := digest("a", "b", "task.eval_sets.more.path=t.jsonl"); got != same {
		t.Errorf("another further set, which does not decide which version is best: %s, want %s", got, same)
	}
	for _, got := range []string{digest("a", "c"), digest("a", "b", "eval.temperature=0"), digest("a", "b", "eval.queries=3")} {
		if got == same {
			t.Error("other questions or settings have the same digest")
		}
	}
}
