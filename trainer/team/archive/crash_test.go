package archive

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// testTeam writes the files of two workers, into one shared folder or two separate ones.
type testTeam struct {
	t      *testing.T
	root   string
	shared bool
	fs     durable.FS
}

var testNames = []string{"planner", "solver"}

func (w testTeam) checkpoints(agent string) Checkpoints {
	dir := filepath.Join(w.root, agent)
	if w.shared {
		dir = filepath.Join(w.root, "run")
	}
	return Checkpoints{Dir: filepath.Join(dir, "checkpoints"), Ledgers: filepath.Join(dir, "ledger"), Agents: []string{agent}, FS: w.fs}
}

func testLine(step int64) LedgerLine {
	return LedgerLine{Step: step - 1, Updates: step, Rollouts: []LedgerRollout{
		{ID: fmt.Sprintf("q-%d/0", step), Trained: []float64{1, 2}}, {ID: fmt.Sprintf("q-%d/1", step), Removed: "failed"}}}
}

// train makes a step: it appends a line to the ledgers, which continue at from, and saves both
// agents' parts of the checkpoint. It returns the manifest's agents.
func (w testTeam) train(step int64, from *Manifest) (parts []AgentFiles) {
	w.t.Helper()
	for i, name := range testNames {
		var at LedgerMark
		if from != nil {
			a, _ := from.Agent(name)
			at = a.Ledger
		}
		c := w.checkpoints(name)
		l, err := openLedger(c.fsys(), c.Ledgers, name, at)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := l.Append(testLine(step)); err != nil {
			w.t.Fatal(err)
		}
		files, err := c.SaveAgent(step, testAgents(step)[i])
		if err != nil {
			w.t.Fatal(err)
		}
		files.Ledger = l.Mark()
		parts = append(parts, files)
		if err := l.Close(); err != nil {
			w.t.Fatal(err)
		}
	}
	return parts
}

// commit commits a step in every worker's folder.
func (w testTeam) commit(step int64, parts []AgentFiles) (m Manifest) {
	w.t.Helper()
	m = testManifest(step)
	m.Agents = parts
	for _, name := range testNames {
		var err error
		if m, err = w.checkpoints(name).Commit(m); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, name := range testNames {
		if err := w.checkpoints(name).At(step).Agree(); err != nil {
			w.t.Fatal(err)
		}
	}
	return m
}

func (w testTeam) setResults(step int64) {
	w.t.Helper()
	for _, name := range testNames {
		if err := w.checkpoints(name).At(step).SetResults(json.RawMessage(`{"next":3}`)); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w testTeam) prune() {
	w.t.Helper()
	for _, name := range testNames {
		if err := w.checkpoints(name).Prune(1); err != nil {
			w.t.Fatal(err)
		}
	}
}

// start returns the newest checkpoint that both workers offer, after checking all its numbers. Without one, its step is -1.
func (w testTeam) start() Manifest {
	w.t.Helper()
	lists := [2][]Manifest{}
	for i, name := range testNames {
		var err error
		if lists[i], _, err = w.checkpoints(name).Offers(); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, m := range lists[0] {
		same := func(o Manifest) bool { return o.Step == m.Step && o.Digest == m.Digest }
		if !slices.ContainsFunc(lists[1], same) {
			continue
		}
		for i, name := range testNames {
			mustHold(w.t, w.checkpoints(name), m.Step, testAgents(m.Step)[i])
			a, _ := m.Agent(name)
			lines, err := readLedger(ledgerPath(w.checkpoints(name).Ledgers, name), a.Ledger)
			if err != nil || int64(len(lines)) != m.Step || lines[m.Step-1].Rollouts[0].ID != testLine(m.Step).Rollouts[0].ID {
				w.t.Fatalf("the ledger of step %d: %v %v", m.Step, lines, err)
			}
		}
		return m
	}
	return Manifest{Step: -1}
}

// goOn continues after a crash and makes all steps after from again.
func (w testTeam) goOn(from Manifest, last int64) {
	w.t.Helper()
	for _, name := range testNames {
		if err := w.checkpoints(name).GoBack(from, inPlace); err != nil {
			w.t.Fatal(err)
		}
		if from.Step >= 0 { // as Begin does
			if err := w.checkpoints(name).At(from.Step).Agree(); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	at := &from
	if from.Step < 0 {
		at = nil
	}
	for step := max(from.Step, 0) + 1; step <= last; step++ {
		m := w.commit(step, w.train(step, at))
		at = &m
	}
	w.prune()
	if m := w.start(); m.Step != last {
		w.t.Fatalf("after the crash the newest step is %d, want %d", m.Step, last)
	}
	for _, name := range testNames {
		left, err := os.ReadDir(w.checkpoints(name).Dir)
		left = slices.DeleteFunc(left, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), "."+asideSuffix+"-1") })
		if err != nil || len(left) != 1 {
			w.t.Fatalf("pruned to %v %v", left, err)
		}
	}
}

// TestCrash cuts the power after every operation of a checkpoint: writing the ledgers' lines, both agents' files, the manifests
// and the results, and removing the previous checkpoint. Operations that are not durable are lost in several ways. The team
// finds either the old or the new checkpoint, intact, and continues. Operations that were reported as complete are never lost.
func TestCrash(t *testing.T) {
	for _, c := range []struct {
		name   string
		shared bool
		before int64 // the newest complete step
	}{{"a folder each", false, 1}, {"one folder", true, 1}, {"the first checkpoint", true, 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			j := &journal{root: root}
			w := testTeam{t, root, c.shared, noSyncFS{}}
			var from *Manifest
			if c.before > 0 {
				m := w.commit(1, w.train(1, nil))
				from = &m
			}
			before := filepath.Join(t.TempDir(), "before")
			if err := os.CopyFS(before, os.DirFS(root)); err != nil {
				t.Fatal(err)
			}
			w.fs = j
			next := c.before + 1
			parts := w.train(next, from)
			trained := len(j.ops)
			m := w.commit(next, parts)
			committed := len(j.ops)
			w.setResults(next)
			evaluated := len(j.ops)
			w.prune()
			sawOld, sawNew := false, false
			j.crashes(t, before, []int{trained, committed, evaluated}, func(crash crash) {
				w, done, how := testTeam{t, crash.dir, c.shared, noSyncFS{}}, crash.done, crash.how
				at := w.start()
				switch {
				case at.Step != c.before && at.Step != next && at.Step != -1, at.Step == -1 && c.before > 0:
					t.Fatalf("%s: the team starts at step %d", how, at.Step)
				case done >= committed && at.Step != next:
					t.Fatalf("%s: a complete checkpoint is lost", how)
				case done >= evaluated && at.Digest == m.Digest:
					t.Fatalf("%s: results are lost", how)
				case done >= trained && done < committed:
					for i, name := range testNames {
						if _, err := readLedger(ledgerPath(w.checkpoints(name).Ledgers, name), parts[i].Ledger); err != nil {
							t.Fatalf("%s: a line of the ledger is lost: %v", how, err)
						}
					}
				}
				sawOld, sawNew = sawOld || at.Step < next, sawNew || at.Step == next
				if t.Failed() {
					t.Fatal(how)
				}
				if crash.goOn {
					w.goOn(at, next)
				}
			})
			if !sawOld || !sawNew || len(j.ops) < 60 {
				t.Errorf("%d operations; old step found: %v, new step found: %v", len(j.ops), sawOld, sawNew)
			}
		})
	}
}

// TestCrashInGoBack cuts the power while newer checkpoints are set aside. The team still goes back to the same checkpoint.
func TestCrashInGoBack(t *testing.T) {
	root := t.TempDir()
	j := &journal{root: root}
	w := testTeam{t, root, true, nil}
	m1 := w.commit(1, w.train(1, nil))
	w.setResults(1)
	w.commit(2, w.train(2, &m1))
	before := filepath.Join(t.TempDir(), "before")
	if err := os.CopyFS(before, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	w.fs = j
	for _, name := range testNames {
		if err := w.checkpoints(name).GoBack(m1, inPlace); err != nil {
			t.Fatal(err)
		}
	}
	j.crashes(t, before, []int{len(j.ops)}, func(c crash) {
		w := testTeam{t, c.dir, true, noSyncFS{}}
		at := w.start()
		if c.done == len(j.ops) && (at.Step != 1 || at.Digest != m1.Digest) || at.Step != 1 && at.Step != 2 {
			t.Fatalf("%s: the team starts at step %d, %s", c.how, at.Step, at.Digest)
		}
		w.goOn(at, 3)
	})
}
