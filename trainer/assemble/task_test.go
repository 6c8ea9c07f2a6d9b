package assemble

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

// modules counts the modules that are open.
type modules struct{ open int }

func (m *modules) Score(context.Context, [][]int32) ([]float32, error) {
	return nil, errors.New("nothing is scored here")
}

func (m *modules) Close() error { m.open--; return nil }

// Where a task cannot be opened, its verifiers hold nothing any more.
func TestVerifiersAreClosed(t *testing.T) {
	dir := t.TempDir()
	if err := tokenizer.WriteWordLevel(dir, tokenizer.WordLevel{Vocab: []string{"<unk>", "</s>"}, Unk: "<unk>", EOS: "</s>"}); err != nil {
		t.Fatal(err)
	}
	rows := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(rows, []byte(`{"question":"what?","answer":"this"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &modules{}
	verify.SetModuleOpener(func(path string) (verify.Module, error) {
		if filepath.Base(path) == "broken.pt" {
			return nil, errors.New("no module")
		}
		m.open++
		return m, nil
	})
	defer verify.SetModuleOpener(nil)
	for _, c := range []struct {
		rows, expert string
		opens        bool
	}{{rows, "scorer.pt", true}, {rows, "broken.pt", false}, {rows + ".not", "scorer.pt", false}} {
		cfg, err := config.Parse("team.yaml", fmt.Appendf(nil, `
run: {name: x}
task:
  {kind: jsonl, train: %q, eval: %q, verifier: {kind: torchscript, path: scorer.pt, tokenizer: %q}, expert: {kind: torchscript, path: %q, tokenizer: %q}}
agents: {writer: {role: main, model: nowhere}}
`, c.rows, c.rows, dir, c.expert, dir), nil)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := Task(cfg)
		if (err == nil) != c.opens {
			t.Errorf("%v: %v", c, err)
		}
		if c.opens {
			if err := task.Close(opened); err != nil {
				t.Error(err)
			}
		}
		if m.open != 0 {
			t.Errorf("%v: %d modules are open", c, m.open)
		}
		m.open = 0
	}
}
