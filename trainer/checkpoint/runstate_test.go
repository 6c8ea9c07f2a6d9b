package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var errCrash = errors.New("crash")

// crashFS fails every operation from the crashAt-th on, as a process that died would; a file that was not
// synced by then is cut to half, as after a power cut.
type crashFS struct {
	crashAt, done int
	unsynced      map[string]bool
}

func newCrashFS(crashAt int) *crashFS { return &crashFS{crashAt: crashAt, unsynced: map[string]bool{}} }

func (c *crashFS) do(f func() error) error {
	if c.done++; c.done > c.crashAt {
		return errCrash
	}
	return f()
}

func (c *crashFS) Mkdir(path string) error { return c.do(func() error { return OS{}.Mkdir(path) }) }
func (c *crashFS) Rename(from, to string) error {
	return c.do(func() error { return OS{}.Rename(from, to) })
}
func (c *crashFS) RemoveAll(path string) error {
	return c.do(func() error { return OS{}.RemoveAll(path) })
}
func (c *crashFS) SyncDir(path string) error { return c.do(func() error { return OS{}.SyncDir(path) }) }

func (c *crashFS) Create(path string) (file WriteFile, err error) {
	err = c.do(func() error {
		file, err = OS{}.Create(path)
		c.unsynced[path] = true
		return err
	})
	return crashFile{file, path, c}, err
}

// powerCut truncates what was not synced.
func (c *crashFS) powerCut() {
	for path := range c.unsynced {
		if info, err := os.Stat(path); err == nil {
			_ = os.Truncate(path, info.Size()/2)
		}
	}
}

type crashFile struct {
	WriteFile
	path string
	fs   *crashFS
}

func (f crashFile) Write(p []byte) (n int, err error) {
	err = f.fs.do(func() error { n, err = f.WriteFile.Write(p); return err })
	return n, err
}

func (f crashFile) Sync() error {
	return f.fs.do(func() error { delete(f.fs.unsynced, f.path); return f.WriteFile.Sync() })
}

func (f crashFile) Close() error {
	return errors.Join(f.WriteFile.Close(), f.fs.do(func() error { return nil }))
}

// testAgents are a trained and a frozen agent whose weights depend on the step.
func testAgents(step int64) []AgentState {
	var agents []AgentState
	for i, name := range []string{"planner", "solver"} {
		cfg := tinyConfig([]string{Qwen3, Llama}[i])
		_, read := randomWeights(cfg, uint64(step)+uint64(i)<<32)
		agents = append(agents, AgentState{Name: name, Config: cfg, Tensors: ExpectedTensors(cfg), Read: read, DType: F32,
			Extra: map[string][]byte{"tokenizer.json": []byte("{}")}, State: json.RawMessage(fmt.Sprintf(`{"version":%d}`, step))})
	}
	n := agents[0].Config.Parameters()
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
	return Manifest{Run: "test", Step: step, ConfigDigest: "abc", CPUFeatures: "avx2", Ledger: json.RawMessage(`{"next":[1,2]}`)}
}

func mustSave(t *testing.T, r Run, steps ...int64) {
	t.Helper()
	for _, step := range steps {
		if _, err := r.Save(testManifest(step), testAgents(step)); err != nil {
			t.Fatal(err)
		}
	}
}

// mustBe fails unless the newest checkpoint that verifies is that of step, whole.
func mustBe(t *testing.T, r Run, step int64) {
	t.Helper()
	m, _, err := r.Latest()
	if err != nil || m.Step != step {
		t.Fatalf("latest is %d (%v), want %d", m.Step, err, step)
	}
	for _, want := range testAgents(step) {
		s := openChecked(t, r.AgentDir(step, want.Name))
		for _, spec := range want.Tensors {
			values := make([]float32, spec.Numel())
			if err := want.Read(spec.Name, values); err != nil || !slices.Equal(values, readAll(t, s, spec.Name)) {
				t.Fatalf("step %d: %s of %s differs (%v)", step, spec.Name, want.Name, err)
			}
		}
		s.Close()
	}
}

func TestSaveAndLoad(t *testing.T) {
	r := Run{Dir: filepath.Join(t.TempDir(), "runs", "x")}
	if _, _, err := r.Latest(); !errors.Is(err, ErrNoCheckpoint) {
		t.Errorf("no run: %v", err)
	}
	mustSave(t, r, 5, 20)
	mustBe(t, r, 20)
	m, _, _ := r.Latest()
	want := testManifest(20)
	var ledger any
	if err := json.Unmarshal(m.Ledger, &ledger); err != nil || m.Run != want.Run || m.ConfigDigest != want.ConfigDigest || m.CPUFeatures != want.CPUFeatures ||
		!reflect.DeepEqual(ledger, map[string]any{"next": []any{1.0, 2.0}}) {
		t.Errorf("%+v", m)
	}
	planner, ok := m.Agent("planner")
	if !ok || len(planner.Files) != 6 {
		t.Errorf("%+v", planner)
	}
	if _, ok := m.Agent("x"); ok {
		t.Error("agent x")
	}
	state, err := ReadState(r.AgentDir(20, "planner"))
	if err != nil || string(state) != `{"version":20}` {
		t.Errorf("%s %v", state, err)
	}
	if steps, err := r.List(); err != nil || !slices.Equal(steps, []int64{5, 20}) {
		t.Errorf("%v %v", steps, err)
	}
	_, err = r.Save(testManifest(20), testAgents(20))
	wantError(t, err, "step 20", "already complete")
	bad := testAgents(21)
	bad[0].Name = "../x"
	_, err = r.Save(testManifest(21), bad)
	wantError(t, err, "name")
	bad = testAgents(21)
	bad[1].State = json.RawMessage("{")
	_, err = r.Save(testManifest(21), bad)
	wantError(t, err, "solver", "JSON")
	mustBe(t, r, 20)
}

func TestOptimizerRoundTrip(t *testing.T) {
	r := Run{Dir: t.TempDir()}
	mustSave(t, r, 9)
	o, err := OpenOptimizer(r.AgentDir(9, "planner"))
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
		wantError(t, o.Read(name, o.Len()-49, got), name)
	}
	wantError(t, o.Read("x", 0, nil), "x")
	_, err = OpenOptimizer(r.AgentDir(9, "solver"))
	wantError(t, err, optimizerFile)
}

// TestCrash ends the process after every operation of a save in turn: what is there is the old step or the
// new one, and saving again works.
func TestCrash(t *testing.T) {
	base := t.TempDir()
	mustSave(t, Run{Dir: filepath.Join(base, "0")}, 1)
	crashes, sawNew := 0, false
	for crashAt := 0; ; crashAt++ {
		dir := filepath.Join(base, fmt.Sprint(crashAt+1))
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(base, "0"))); err != nil {
			t.Fatal(err)
		}
		dying := newCrashFS(crashAt)
		_, err := Run{dir, dying}.Save(testManifest(2), testAgents(2))
		if err == nil {
			break
		}
		if !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		crashes++
		dying.powerCut()
		r := Run{Dir: dir}
		m, skipped, err := r.Latest()
		if err != nil {
			t.Fatalf("crash %d: %v %v", crashAt, err, skipped)
		}
		mustBe(t, r, m.Step)
		if m.Step == 2 {
			sawNew = true
			continue
		}
		if err := r.Prune(1); err != nil {
			t.Fatal(err)
		}
		mustSave(t, r, 2)
		mustBe(t, r, 2)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if crashes < 40 || !sawNew {
		t.Errorf("%d crashes, new step seen: %v", crashes, sawNew)
	}
}

// TestSetLedger ends the process after every operation of a change of ledger: the step is complete with the
// old ledger or the new one.
func TestSetLedger(t *testing.T) {
	for crashAt := 0; ; crashAt++ {
		r := Run{Dir: filepath.Join(t.TempDir(), "run")}
		mustSave(t, r, 1)
		dying := newCrashFS(crashAt)
		err := Run{r.Dir, dying}.SetLedger(1, json.RawMessage(`{"next":3}`))
		dying.powerCut()
		mustBe(t, r, 1)
		m, verifyErr := Verify(r.StepDir(1))
		if verifyErr != nil {
			t.Fatal(verifyErr)
		}
		var ledger struct{ Next any }
		if jsonErr := json.Unmarshal(m.Ledger, &ledger); jsonErr != nil {
			t.Fatal(jsonErr)
		}
		if err == nil {
			if ledger.Next != 3.0 {
				t.Errorf("ledger %s", m.Ledger)
			}
			wantError(t, r.SetLedger(2, nil), "the ledger of step 2: unfinished")
			return
		}
	}
}

// TestCrashInPrune ends the process after every operation of a prune.
func TestCrashInPrune(t *testing.T) {
	for crashAt := 0; ; crashAt++ {
		r := Run{Dir: filepath.Join(t.TempDir(), "run")}
		mustSave(t, r, 1, 2, 3)
		err := Run{r.Dir, newCrashFS(crashAt)}.Prune(1)
		mustBe(t, r, 3)
		steps, listErr := r.List()
		if listErr != nil {
			t.Fatal(listErr)
		}
		for _, step := range steps {
			mustVerify(t, r, step)
		}
		if err == nil {
			return
		}
		if err := r.Prune(1); err != nil {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(r.Dir); len(left) != 1 {
			t.Errorf("crash %d: left %v", crashAt, left)
		}
	}
}

func mustVerify(t *testing.T, r Run, step int64) {
	t.Helper()
	if _, err := Verify(r.StepDir(step)); err != nil {
		t.Error(err)
	}
}

func TestPrune(t *testing.T) {
	r := Run{Dir: t.TempDir()}
	mustSave(t, r, 1, 2, 3, 4, 5)
	if err := os.Remove(filepath.Join(r.StepDir(4), manifestFile)); err != nil { // unfinished, older than 5
		t.Fatal(err)
	}
	if _, err := r.SaveAgent(6, testAgents(6)[0]); err != nil { // in the making
		t.Fatal(err)
	}
	if err := r.Prune(2, 1); err != nil {
		t.Fatal(err)
	}
	if steps, _ := r.steps(); !slices.Equal(steps, []int64{1, 3, 5, 6}) {
		t.Errorf("left %v", steps)
	}
	wantError(t, r.Prune(0), "remove all")
}

// TestVerifyDamage alters every file: one flipped bit at the start, middle and end, one byte less, gone.
func TestVerifyDamage(t *testing.T) {
	r := Run{Dir: t.TempDir()}
	mustSave(t, r, 1, 2)
	m, err := Verify(r.StepDir(2))
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{manifestFile}
	for _, a := range m.Agents {
		for _, f := range a.Files {
			paths = append(paths, a.Name+"/"+f.Path)
		}
	}
	for _, path := range paths {
		full := filepath.Join(r.StepDir(2), path)
		original, err := os.ReadFile(full)
		if err != nil {
			t.Fatal(err)
		}
		damaged := func() {
			t.Helper()
			_, err := Verify(r.StepDir(2))
			wantError(t, err, path, r.StepDir(2))
			latest, skipped, err := r.Latest()
			if err != nil || latest.Step != 1 || len(skipped) != 1 || skipped[0].Step != 2 || !strings.Contains(skipped[0].Reason.Error(), path) {
				t.Errorf("%s: latest %d, skipped %v, %v", path, latest.Step, skipped, err)
			}
		}
		positions := []int{0, len(original) / 2, len(original) - 1}
		if path == manifestFile { // every byte
			positions = positions[:0]
			for i := range original {
				positions = append(positions, i)
			}
		}
		for _, at := range positions {
			flipped := slices.Clone(original)
			flipped[at] ^= 1
			writeFile(t, full, flipped)
			damaged()
		}
		writeFile(t, full, original[:len(original)-1])
		damaged()
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
		damaged()
		writeFile(t, full, original)
	}
	mustBe(t, r, 2)
}

func TestManifestPaths(t *testing.T) {
	r := Run{Dir: t.TempDir()}
	for _, m := range []Manifest{
		{Agents: []AgentFiles{{"a", []File{{"../../x", 1, ""}}}}},
		{Agents: []AgentFiles{{"..", nil}}},
	} {
		data, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(r.Dir, manifestFile), data)
		_, err = Verify(r.Dir)
		wantError(t, err, manifestFile)
	}
}
