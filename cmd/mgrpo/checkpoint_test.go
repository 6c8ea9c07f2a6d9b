package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// saveSteps writes checkpoints of two tiny agents. Step 1 has the best evaluation.
func saveSteps(t *testing.T, dir string, steps ...int64) {
	t.Helper()
	cfg := arch.Config{Family: arch.Llama, VocabSize: 11, Hidden: 8, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 4, FFN: 6, MaxPosition: 32}.WithDefaults()
	var agents []archive.AgentState
	for _, name := range []string{"planner", "researcher"} {
		agents = append(agents, archive.AgentState{Name: name, DType: weights.F32,
			Files: weights.HF{Config: cfg, Read: func(string, []float32) error { return nil }}})
	}
	r := archive.CheckpointsOf(dir)
	for _, step := range steps {
		m := archive.Manifest{Run: "x", Step: step}
		for _, a := range agents {
			files, err := r.SaveAgent(step, a)
			if err != nil {
				t.Fatal(err)
			}
			m.Agents = append(m.Agents, files)
		}
		if _, err := r.Commit(m); err != nil {
			t.Fatal(err)
		}
		if err := r.At(step).SetResults(json.RawMessage(`{"evaluated":1,"best":{"version":1,"accuracy":0.5}}`)); err != nil {
			t.Fatal(err)
		}
		if err := r.At(step).Agree(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCheckpoint(t *testing.T) {
	dir := t.TempDir()
	saveSteps(t, dir, 1, 2, 3, 4)
	list := strings.Split(mustRun(t, "", "checkpoint", "list", dir), "\n")
	if len(list) != 6 || !strings.HasPrefix(list[1], "step-000001  ") || !strings.HasSuffix(list[1], "complete, best") ||
		!strings.Contains(list[4], "planner,researcher") || !strings.HasSuffix(list[4], "complete") {
		t.Errorf("%s", strings.Join(list, "\n"))
	}
	if got := mustRun(t, "", "checkpoint", "verify", filepath.Join(dir, "checkpoints")); got != "step 4: whole\nstep 3: whole\nstep 2: whole\nstep 1: whole\n" {
		t.Errorf("%s", got)
	}
	if got := mustRun(t, "", "checkpoint", "prune", dir, "--dry-run"); got != "would remove "+filepath.Join(dir, "checkpoints", "step-000002")+"\n" {
		t.Errorf("%q", got)
	}
	set := []string{filepath.Join("..", "..", "examples", "quickstart", "team.yaml"), "--set", "run.dir=" + dir, "--set", "run.keep=3"}
	if got := mustRun(t, "", append([]string{"checkpoint", "prune"}, set...)...); got != "" {
		t.Errorf("%q was pruned although run.keep is 3", got)
	}
	mustRun(t, "", append([]string{"checkpoint", "prune", "--keep", "1"}, set...)...)
	if left, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*")); len(left) != 2 || filepath.Base(left[0]) != "step-000001" || filepath.Base(left[1]) != "step-000004" {
		t.Errorf("remaining: %v, want the best and the newest", left)
	}
	wantRefusal(t, "", []string{"checkpoint", "prune", "--keep", "0", dir}, "would remove all")

	// One agent's files are here; the other agent has its own server.
	if err := os.RemoveAll(filepath.Join(dir, "checkpoints", "step-000004", "researcher")); err != nil {
		t.Fatal(err)
	}
	if got := mustRun(t, "", "checkpoint", "verify", dir, "--agent", "planner"); !strings.Contains(got, "step 4: whole") {
		t.Errorf("%s", got)
	}
	state := filepath.Join(dir, "checkpoints", "step-000001", "planner", "state.json")
	if err := os.WriteFile(state, []byte("{ "), 0o644); err != nil {
		t.Fatal(err)
	}
	faults, stderr, status := run(t, "", "checkpoint", "verify", dir)
	for _, want := range []string{"step 1: ", "planner/state.json: was changed", "step 4: ", "researcher/config.json: is missing", "researcher/model.safetensors: is missing"} {
		if !strings.Contains(faults, want) {
			t.Errorf("no %q in %s", want, faults)
		}
	}
	if status != 1 || !strings.Contains(stderr, "2 of the checkpoints") {
		t.Errorf("status %d, %s", status, stderr)
	}
	if got := mustRun(t, "", "checkpoint", "list", dir); !strings.Contains(got, "researcher/model.safetensors is missing") {
		t.Errorf("%s", got)
	}

	// One agent has no files here, because it has its own folder.
	if err := os.RemoveAll(filepath.Join(dir, "checkpoints", "step-000001")); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"list", "verify", "prune"} {
		if _, stderr, status := run(t, "", "checkpoint", command, dir); status != 0 || !strings.Contains(stderr, "of planner only: of researcher there is nothing in") {
			t.Errorf("%s: status %d, %s", command, status, stderr)
		}
	}
	// A step that is being written is not an error.
	if err := os.Mkdir(filepath.Join(dir, "checkpoints", "step-000009"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := mustRun(t, "", "checkpoint", "verify", dir); !strings.HasPrefix(got, "step 9: unfinished") {
		t.Errorf("%s", got)
	}
	if _, errs, status := run(t, "", "checkpoint", "list"); status != exitUsage || !strings.Contains(errs, "<RUN>") {
		t.Errorf("without a run: status %d: %s", status, errs)
	}
	for _, wrong := range []string{t.TempDir(), filepath.Join(dir, "nowhere")} {
		wantRefusal(t, "", []string{"checkpoint", "verify", wrong}, wrong, "want a run's folder", "folder checkpoints")
	}
}
