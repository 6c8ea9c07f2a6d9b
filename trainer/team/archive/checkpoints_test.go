package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// testAgents returns a trained and a frozen agent whose weights depend on the step.
func testAgents(step int64) []AgentState {
	var agents []AgentState
	for i, name := range []string{"planner", "solver"} {
		cfg := tinyConfig([]string{arch.Qwen3, arch.Llama}[i])
		read := randomWeights(cfg, uint64(step)+uint64(i)<<32)
		agents = append(agents, AgentState{Name: name, Files: weights.HF{Config: cfg, Read: read}, DType: weights.F32,
			Extra: map[string][]byte{"tokenizer.json": []byte("{}")}, State: json.RawMessage(fmt.Sprintf(`{"version":%d}`, step))})
	}
	n := tinyConfig(arch.Qwen3).Parameters()
	buffer := func(scale float32) func(int64, []float32) error {
		return func(from int64, dst []float32) error {
			for i := range dst {
				dst[i] = scale * float32(from+int64(i)+step)
			}
			return nil
		}
	}
	agents[0].Optimizer = &Optimizer{Step: step, Len: n, Buffers: map[string]func(int64, []float32) error{"m": buffer(1), "v": buffer(-2)}}
	return agents
}

func testManifest(step int64) Manifest {
	return Manifest{Run: "test", Step: step, ConfigDigest: "abc", Results: json.RawMessage(`{"next":[1,2]}`)}
}

// save writes all agents' folders and commits m with their files.
func (c Checkpoints) save(m Manifest, agents []AgentState) (Manifest, error) {
	for _, a := range agents {
		files, err := c.SaveAgent(m.Step, a)
		if err != nil {
			return Manifest{}, err
		}
		m.Agents = append(m.Agents, files)
	}
	return c.Commit(m)
}

func mustSave(t *testing.T, c Checkpoints, steps ...int64) {
	t.Helper()
	for _, step := range steps {
		if _, err := c.save(testManifest(step), testAgents(step)); err != nil {
			t.Fatal(err)
		}
	}
}

// wantNewest fails unless the newest valid checkpoint is the one of step, with all its weights.
func wantNewest(t *testing.T, c Checkpoints, step int64) {
	t.Helper()
	m, err := c.Latest()
	if err != nil || m.Step != step {
		t.Fatalf("latest is %d (%v), want %d", m.Step, err, step)
	}
	for _, want := range testAgents(step) {
		mustHold(t, c, step, want)
	}
}

// mustHold fails unless a step's folder contains an agent's weights.
func mustHold(t *testing.T, c Checkpoints, step int64, want AgentState) {
	t.Helper()
	s, err := weights.Open(c.AgentDir(step, want.Name))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	model := want.Files.(weights.HF)
	for _, spec := range model.Config.Layout().Tensors() {
		saved, values := make([]float32, spec.Numel()), make([]float32, spec.Numel())
		if err := errors.Join(s.Read(spec.Name, 0, spec.Shape[0], saved), model.Read(spec.Name, values)); err != nil || !slices.Equal(values, saved) {
			t.Fatalf("step %d: %s of %s differs (%v)", step, spec.Name, want.Name, err)
		}
	}
}

func TestSaveAndLoad(t *testing.T) {
	c := Checkpoints{Dir: filepath.Join(t.TempDir(), "runs", "x")}
	if _, err := c.Latest(); !errors.Is(err, ErrNoCheckpoint) {
		t.Errorf("without a run: %v", err)
	}
	mustSave(t, c, 5, 20)
	wantNewest(t, c, 20)
	m, _ := c.Latest()
	want := testManifest(20)
	var results any
	if err := json.Unmarshal(m.Results, &results); err != nil || m.Run != want.Run || m.ConfigDigest != want.ConfigDigest ||
		!reflect.DeepEqual(results, map[string]any{"next": []any{1.0, 2.0}}) {
		t.Errorf("%+v", m)
	}
	planner, ok := m.Agent("planner")
	if !ok || len(planner.Files) != 6 {
		t.Errorf("%+v", planner)
	}
	if _, ok := m.Agent("x"); ok {
		t.Error("the manifest has an agent x")
	}
	state, err := ReadState(c.AgentDir(20, "planner"))
	if err != nil || string(state) != `{"version":20}` {
		t.Errorf("%s %v", state, err)
	}
	if steps, err := c.List(); err != nil || !slices.Equal(steps, []int64{5, 20}) {
		t.Errorf("%v %v", steps, err)
	}
	_, err = c.save(testManifest(20), testAgents(20))
	golden.WantError(t, err, "step 20", "already complete")
	bad := testAgents(21)
	bad[0].Name = "../../x"
	_, err = c.save(testManifest(21), bad)
	golden.WantError(t, err, "name")
	bad = testAgents(21)
	bad[1].State = json.RawMessage("{")
	_, err = c.save(testManifest(21), bad)
	golden.WantError(t, err, "solver", "JSON")
	wantNewest(t, c, 20)
}

// TestLinkedSteps checks that checkpoints which were moved to another disk and linked count, and that a link to nowhere, of a step or of
// all checkpoints, is an error and not an empty folder.
func TestLinkedSteps(t *testing.T) {
	elsewhere := t.TempDir()
	c := Checkpoints{Dir: filepath.Join(t.TempDir(), "checkpoints")}
	mustSave(t, c, 5, 20)
	whole, err := c.Summaries()
	if err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(elsewhere, "moved")
	if err := errors.Join(os.Rename(c.StepDir(20), moved), os.Symlink(moved, c.StepDir(20))); err != nil {
		t.Fatal(err)
	}
	wantNewest(t, c, 20)
	if linked, err := c.Summaries(); err != nil || !reflect.DeepEqual(linked, whole) {
		t.Errorf("summaries %+v, %v; want %+v", linked, err, whole)
	}
	_, err = c.save(testManifest(20), testAgents(20))
	golden.WantError(t, err, "step 20", "already complete")
	all := filepath.Join(elsewhere, "all")
	if err := errors.Join(os.Rename(c.Dir, all), os.Symlink(all, c.Dir)); err != nil {
		t.Fatal(err)
	}
	wantNewest(t, c, 20)
	for _, gone := range []string{moved, all} {
		if err := os.Rename(gone, gone+"-unmounted"); err != nil {
			t.Fatal(err)
		}
		_, err = c.List()
		golden.WantError(t, err, "is a link to a folder that cannot be reached", "mount its disk")
	}
}

func TestOptimizerRoundTrip(t *testing.T) {
	c := Checkpoints{Dir: t.TempDir()}
	mustSave(t, c, 9)
	o, err := OpenOptimizer(c.AgentDir(9, "planner"))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	want := testAgents(9)[0].Optimizer
	if o.Step() != 9 || o.Len() != want.Len {
		t.Errorf("step %d, length %d", o.Step(), o.Len())
	}
	for name, fill := range want.Buffers {
		got, exact := make([]float32, 50), make([]float32, 50)
		if err := o.Read(name, 17, got); err != nil {
			t.Fatal(err)
		}
		if _ = fill(17, exact); !slices.Equal(got, exact) {
			t.Errorf("%s differs", name)
		}
		golden.WantError(t, o.Read(name, o.Len()-49, got), name)
	}
	golden.WantError(t, o.Read("x", 0, nil), "x")
	_, err = OpenOptimizer(c.AgentDir(9, "solver"))
	golden.WantError(t, err, optimizerFile)
}

func TestPrune(t *testing.T) {
	c := Checkpoints{Dir: t.TempDir()}
	mustSave(t, c, 0, 1, 2, 3, 4, 5)
	for step := range int64(6) {
		if err := c.At(step).Agree(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(c.StepDir(4), manifestFile)); err != nil { // unfinished and older than 5
		t.Fatal(err)
	}
	if _, err := c.SaveAgent(6, testAgents(6)[0]); err != nil { // still being written
		t.Fatal(err)
	}
	if err := c.Prune(2, 1); err != nil {
		t.Fatal(err)
	}
	if steps, _ := c.steps(); !slices.Equal(steps, []int64{0, 1, 3, 5, 6}) {
		t.Errorf("left %v", steps)
	}
	golden.WantError(t, c.Prune(0), "remove all")
}

// TestPruneKeepsTheTeamsNewest: checkpoints that another worker does not have do not count.
func TestPruneKeepsTheTeamsNewest(t *testing.T) {
	c := Checkpoints{Dir: t.TempDir()}
	mustSave(t, c, 20, 40)
	if err := c.At(20).Agree(); err != nil {
		t.Fatal(err)
	}
	if err := c.Prune(1); err != nil {
		t.Fatal(err)
	}
	if steps, _ := c.steps(); !slices.Equal(steps, []int64{20, 40}) {
		t.Errorf("left %v", steps)
	}
}

func TestManifestPaths(t *testing.T) {
	c := Checkpoints{Dir: t.TempDir()}
	for _, m := range []Manifest{
		{Agents: []AgentFiles{{Name: "a", Files: []durable.File{{Path: "../../x", Size: 1}}}}},
		{Agents: []AgentFiles{{Name: ".."}}},
		{Agents: []AgentFiles{{Name: "a"}, {Name: "a"}}},
		{Agents: []AgentFiles{{Name: "a", Ledger: LedgerMark{-1, ""}}}},
		{Agents: []AgentFiles{{Name: "a", Ledger: LedgerMark{1, "12"}}}},
		{Agents: []AgentFiles{{Name: "a", Files: []durable.File{{Path: "x", Size: 1}}}}},
	} {
		_, data, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(c.Dir, manifestFile), data)
		_, err = Verify(c.Dir)
		golden.WantError(t, err, manifestFile)
		_, err = c.Commit(m) // manifests of other workers may contain anything
		golden.WantError(t, err, "committing step 0", manifestFile)
	}
}

// The manifest of a suspended worker does not prevent others from writing the step again.
func TestReopen(t *testing.T) {
	c := Checkpoints{Dir: t.TempDir()}
	if err := c.At(3).reopen(); err != nil {
		t.Fatal(err)
	}
	dir := c.StepDir(3)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{manifestFile, resultsFile, agreedFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.At(3).reopen(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
