package endtoend

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// trainOn trains a new team whose checkpoints and ledgers are written through fsys. It returns the versions that the agents published.
func trainOn(t *testing.T, cfg *config.Config, seen *recorder, fsys durable.FS) (versions map[string]int64, err error) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Run: cfg.Run.Name})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cfg.Run.Date = time.Now().Format(time.DateOnly)
	request := store.JoinRequest{Agents: cfg.AgentNames(), Offers: archive.StoreOffers(nil, cfg.Run.Date), Deterministic: true}
	var members []*store.Member
	for _, name := range cfg.AgentNames() {
		m, err := s.Join(t.Context(), name, request, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
	}
	options := worker.Options{Config: cfg, Dir: cfg.RunDir(), Task: openTask(t, cfg), Observer: seen, Process: &assemble.Process{Agents: cfg.AgentNames()}, FS: fsys}
	var workers []*worker.Worker
	for _, m := range members {
		if _, err := m.Round.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w, err := worker.Open(t.Context(), options, m)
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
	}
	if err := os.WriteFile(filepath.Join(cfg.RunDir(), "config.yaml"), cfg.Dump(cfg.RunDir()), 0o644); err != nil {
		t.Fatal(err)
	}
	g, ctx := errgroup.WithContext(t.Context())
	for i, w := range workers {
		g.Go(func() error { return errors.Join(w.Run(ctx), members[i].Leave(t.Context())) })
	}
	err = g.Wait()
	versions, unknown := members[0].Versions.All(t.Context())
	err = errors.Join(err, unknown)
	for _, w := range workers {
		err = errors.Join(err, w.Close(t.Context()))
	}
	return versions, err
}

// gate is a file system that creates no file of the checkpoint of version 2 before it is opened.
type gate struct {
	durable.OS
	open chan struct{}
}

func (g gate) Create(path string) (durable.WriteFile, error) {
	if !strings.Contains(path, "step-000002") {
		return g.OS.Create(path)
	}
	const patience = time.Hour // until a failing test gives up
	select {
	case <-g.open:
		return g.OS.Create(path)
	case <-time.After(patience):
		return nil, errors.New("the run waits for its checkpoint")
	}
}

// TestStepsContinueDuringCheckpoint delays the files of a checkpoint until the next one is due.
// The steps do not wait for them, and the files contain the weights of the checkpoint's version.
func TestStepsContinueDuringCheckpoint(t *testing.T) {
	wholeDir, _ := whole(t)
	seen, g := &recorder{}, gate{open: make(chan struct{})}
	var once sync.Once
	seen.on = func(_, phase string, _ int) {
		if phase == "checkpoint-4" {
			once.Do(func() { close(g.open) })
		}
	}
	cfg := load(t, t.TempDir(), "run.steps=4")
	if _, err := trainOn(t, cfg, seen, g); err != nil {
		t.Fatal(err)
	}
	for _, step := range []int64{2, 4} {
		sameWeights(t, digests(t, cfg.RunDir(), step), digests(t, wholeDir, step))
		if got, want := readResults(t, cfg.RunDir(), step), readResults(t, wholeDir, step); got != want {
			t.Errorf("results of step %d: %s, want %s", step, got, want)
		}
	}
	for _, name := range []string{"planner", "researcher"} {
		if v := seen.find(t, "step", 3, name).Values; v["checkpoint_wait_seconds"] <= 0 {
			t.Errorf("step 3 of %s does not report its wait for a copy: %v", name, v)
		}
	}
}

// TestCheckpointOutlivesAnError delays the files of a checkpoint until a later step has failed
// the run. The checkpoint is completed nevertheless.
func TestCheckpointOutlivesAnError(t *testing.T) {
	seen, g := &recorder{}, gate{open: make(chan struct{})}
	updates := 0
	seen.on = func(agent, phase string, _ int) {
		if agent != "planner" || phase != "learn" {
			return
		}
		if updates++; updates == 4*3 { // the last update before the error
			time.AfterFunc(300*time.Millisecond, func() { close(g.open) })
		}
	}
	cfg := load(t, t.TempDir(), append(noColdStart, "run.steps=9", "run.checkpoint_every=2", "grpo.entropy_coef=1e42")...)
	_, err := trainOn(t, cfg, seen, g)
	if err == nil || !strings.Contains(err.Error(), "updates were refused in 3 consecutive steps") {
		t.Fatalf("%v", err)
	}
	if got := stepsIn(t, cfg.RunDir()); !slices.Equal(got, []int64{2}) {
		t.Errorf("checkpoints %v", got)
	}
}

// fullFrom is a file system whose disk is full when it reaches a step's folder.
type fullFrom struct {
	durable.OS
	step string
}

func (d fullFrom) Create(path string) (durable.WriteFile, error) {
	f, err := d.OS.Create(path)
	if err != nil || !strings.Contains(path, d.step) || !strings.Contains(path, "model.safetensors") {
		return f, err
	}
	return fullFile{f}, nil
}

type fullFile struct{ durable.WriteFile }

func (f fullFile) Write(p []byte) (int, error) {
	n, _ := f.WriteFile.Write(p[:len(p)/2])
	return n, syscall.ENOSPC
}

// TestFullDisk checks that a checkpoint for which the disk has no space ends the run. The error names the
// file, the folder and the key. The previous checkpoint is intact, and the resumed run has the same result.
func TestFullDisk(t *testing.T) {
	wholeDir, _ := whole(t)
	cfg := load(t, t.TempDir(), "run.steps=4")
	_, err := trainOn(t, cfg, &recorder{}, fullFrom{step: "step-000004"})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"model.safetensors", "checkpoint 4", "run.dir, " + cfg.RunDir(), "checkpoint prune --keep 1", "resume the run"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if got := stepsIn(t, cfg.RunDir()); got[len(got)-1] != 2 {
		t.Fatalf("checkpoints %v", got)
	}
	mustTrain(t, cfg, trainer.TrainOptions{Resume: true})
	sameWeights(t, digests(t, cfg.RunDir(), 4), digests(t, wholeDir, 4))
}

// ledgerLines returns the lines of a ledger up to a mark.
func ledgerLines(t *testing.T, path string, at archive.LedgerMark) (lines []archive.LedgerLine) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || int64(len(text)) < at.Size {
		t.Fatalf("the ledger has %d bytes, the mark %d: %v", len(text), at.Size, err)
	}
	if sum := sha256.Sum256(text[:at.Size]); hex.EncodeToString(sum[:]) != at.SHA256 {
		t.Fatalf("%s does not match the mark %+v", path, at)
	}
	for text := range bytes.Lines(text[:at.Size]) {
		var line archive.LedgerLine
		if err := json.Unmarshal(text, &line); err != nil {
			t.Fatalf("%s: line %d: %v", path, len(lines)+1, err)
		}
		lines = append(lines, line)
	}
	return lines
}

// TestLedger checks that each agent's ledger contains every rollout of every step once, with the weights of its
// trajectories or the reason for its removal. A run that goes back has the same ledger as one that does not.
func TestLedger(t *testing.T) {
	dir, _ := whole(t)
	offers, _, err := archive.CheckpointsOf(dir).Offers()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"planner", "researcher"} {
		part, _ := offers[0].Agent(name)
		path := filepath.Join(dir, "ledger", name+".jsonl")
		lines := ledgerLines(t, path, part.Ledger)
		if len(lines) != 4 {
			t.Fatalf("%d lines", len(lines))
		}
		for n, line := range lines {
			weights := map[string]float64{}
			for _, l := range readTrajectories(t, dir, fmt.Sprintf("step-%d", n), name) {
				weights[l.ID] = l.Weight
			}
			if line.Step != int64(n) || len(line.Rollouts) != 16 {
				t.Errorf("%s: line %d has step %d and %d rollouts", name, n, line.Step, len(line.Rollouts))
			}
			seen, trained := map[string]bool{}, 0
			for _, r := range line.Rollouts {
				if seen[r.ID] || (r.Trained == nil) == (r.Removed == "") {
					t.Errorf("%s, step %d: %+v", name, n, r)
				}
				seen[r.ID] = true
				for i, weight := range r.Trained {
					id := r.ID
					if name != "planner" {
						id = fmt.Sprintf("%s/%s/%d", r.ID, name, i)
					}
					if said, ok := weights[id]; !ok || said != weight {
						t.Errorf("step %d: %s was trained with weight %v, but its trajectory has %v (%v)", n, id, weight, said, ok)
					}
					trained++
				}
			}
			if trained != len(weights) || trained == 0 {
				t.Errorf("%s, step %d: %d trajectories in the ledger, but %d were written", name, n, trained, len(weights))
			}
		}
		last := lines[len(lines)-1]
		if data, err := archive.ReadState(archive.CheckpointsOf(dir).AgentDir(4, name)); err != nil || !strings.Contains(string(data), fmt.Sprintf(`"updates":%d`, last.Updates)) || last.Updates < 3 {
			t.Errorf("%s: %d updates in the ledger, but the state is %s (%v)", name, last.Updates, data, err)
		}
	}
	again := copyRun(t, dir)
	if err := os.RemoveAll(archive.CheckpointsOf(again).StepDir(4)); err != nil {
		t.Fatal(err)
	}
	mustTrain(t, load(t, again, "run.steps=4"), trainer.TrainOptions{Resume: true})
	for _, name := range []string{"planner", "researcher"} {
		file := filepath.Join("ledger", name+".jsonl")
		want, err := os.ReadFile(filepath.Join(dir, file))
		got, againErr := os.ReadFile(filepath.Join(again, file))
		if err = errors.Join(err, againErr); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the ledger of %s after going back: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
}

// fullLedger is a file system whose ledgers have space for one line.
type fullLedger struct{ durable.OS }

func (d fullLedger) Create(path string) (durable.WriteFile, error) {
	f, err := d.OS.Create(path)
	if !strings.Contains(path, ".jsonl.") {
		return f, err
	}
	return &oneLine{WriteFile: f}, err
}

type oneLine struct {
	durable.WriteFile
	full bool
}

func (f *oneLine) Write(p []byte) (int, error) {
	if f.full {
		return 0, syscall.ENOSPC
	}
	f.full = true
	return f.WriteFile.Write(p)
}

// TestLedgerBeforeVersion checks that a step is not published if the ledger lacks its line.
func TestLedgerBeforeVersion(t *testing.T) {
	cfg := load(t, t.TempDir(), noColdStart...)
	versions, err := trainOn(t, cfg, &recorder{}, fullLedger{})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	if versions["planner"] != 1 || versions["researcher"] != 1 {
		t.Errorf("versions %v; want 1 for both", versions)
	}
}

// TestFolderOnEachServer trains two agents that share only a Redis, interrupts one and resumes both. Then one of them loses its newest
// checkpoint. Both go back to the previous checkpoint, which both have, and each ends with the weights of the uninterrupted run.
func TestFolderOnEachServer(t *testing.T) {
	wholeDir, _ := whole(t)
	want := digests(t, wholeDir, 4)
	url, names := startRedis(t), []string{"planner", "researcher"}
	dirs := map[string]string{"planner": t.TempDir(), "researcher": t.TempDir()}
	last := "run.steps=4"
	both := func(seen *recorder, resume bool, ctxOf func(name string) context.Context) map[string]error {
		errs := map[string]error{}
		var mu sync.Mutex
		var g sync.WaitGroup
		for _, name := range names {
			g.Go(func() {
				cfg := load(t, dirs[name], last, "run.threads=1", "store.url="+url)
				err := trainer.Train(ctxOf(name), cfg, trainer.TrainOptions{Agents: []string{name}, Observer: seen, Resume: resume})
				mu.Lock()
				defer mu.Unlock()
				errs[name] = err
			})
		}
		g.Wait()
		return errs
	}
	mustEnd := func() *recorder {
		t.Helper()
		seen := &recorder{}
		for name, err := range both(seen, true, func(string) context.Context { return t.Context() }) {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		var manifests []archive.Manifest
		for _, name := range names {
			m, err := archive.CheckpointsOf(dirs[name], name).Verify(4)
			if err != nil {
				t.Fatal(err)
			}
			manifests = append(manifests, m)
			part, _ := m.Agent(name)
			for _, f := range part.Files {
				if ext := filepath.Ext(f.Path); (ext == ".safetensors" || ext == ".state") && f.SHA256 != want[name+"/"+f.Path] {
					t.Errorf("%s of %s differs", f.Path, name)
				}
			}
			if others, _ := filepath.Glob(filepath.Join(archive.CheckpointsOf(dirs[name]).StepDir(4), "*", "config.json")); len(others) != 1 {
				t.Errorf("the folder of %s contains %v", name, others)
			}
		}
		if manifests[0].Digest != manifests[1].Digest {
			t.Error("the manifests differ")
		}
		return seen
	}
	seen := &recorder{}
	interrupted := interrupt(t, seen, "researcher", "step-3", dirs["researcher"])
	errs := both(seen, false, func(name string) context.Context {
		if name == "researcher" {
			return interrupted
		}
		return t.Context()
	})
	if !errors.Is(errs["researcher"], context.Canceled) || errs["planner"] == nil {
		t.Fatalf("interrupted: %v", errs)
	}
	mustEnd()
	last = "run.steps=6" // both agents have steps left to do
	if err := os.Remove(filepath.Join(archive.CheckpointsOf(dirs["researcher"]).StepDir(4), "manifest.json")); err != nil {
		t.Fatal(err)
	}
	if notes := mustEnd().String(); !strings.Contains(notes, "step 4 cannot be used") || !strings.Contains(notes, "step 2 of 6") {
		t.Errorf("notes: %s", notes)
	}
	if aside, _ := filepath.Glob(filepath.Join(archive.CheckpointsOf(dirs["planner"]).Dir, "*.aside-1")); len(aside) != 1 {
		t.Errorf("the planner set aside %v", aside)
	}
}
