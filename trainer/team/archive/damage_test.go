package archive

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// TestDamage damages every file of a checkpoint: it flips one bit anywhere, removes one byte, or removes the file.
// The damage is found before the checkpoint is loaded, the error names the file, and the previous checkpoint is used.
func TestDamage(t *testing.T) {
	w := testTeam{t, t.TempDir(), true, noSyncFS{}}
	m1 := w.commit(1, w.train(1, nil))
	m := w.commit(2, w.train(2, &m1))
	w.setResults(2)
	c := w.checkpoints("planner")
	c.Agents = nil
	if _, err := c.Verify(2); err != nil {
		t.Fatal(err)
	}
	paths := []string{manifestFile, resultsFile}
	for _, a := range m.Agents {
		for _, f := range a.Files {
			paths = append(paths, a.Name+"/"+f.Path)
		}
	}
	for _, path := range paths {
		times := 0
		for how := range eachDamage(t, filepath.Join(c.StepDir(2), path)) {
			_, err := c.Verify(2)
			if path != resultsFile {
				golden.WantError(t, err, path, c.StepDir(2))
			} else if err != nil { // the step itself is intact
				t.Errorf("%s, %s: %v", path, how, err)
			}
			if times++; how == flippedBit && times%20 != 1 && path != resultsFile {
				continue // the checks below also read the other steps
			}
			offers, skipped, err := c.Offers()
			if err != nil || len(skipped) != 1 || skipped[0].Step != 2 || !strings.Contains(skipped[0].Reason.Error(), path) {
				t.Fatalf("%s, %s: skipped %v, %v", path, how, skipped, err)
			}
			if newest := offers[0]; path == resultsFile && newest.Digest != m.Digest || path != resultsFile && newest.Step != 1 {
				t.Fatalf("%s, %s: step %d is offered, %s", path, how, newest.Step, newest.Digest)
			}
		}
	}
	if err := os.Remove(filepath.Join(c.StepDir(2), resultsFile)); err != nil {
		t.Fatal(err)
	}
	if _, skipped, _ := c.Offers(); len(skipped) != 0 {
		t.Errorf("a step without results: %v", skipped)
	}
	wantNewest(t, c, 2)
}

const flippedBit = "a bit flipped"

// eachDamage damages a file in one way after another, yields the name of each, and finally restores
// the file. It flips a bit in each byte of a small file, and in some bytes of others.
func eachDamage(t *testing.T, path string) func(yield func(how string) bool) {
	return func(yield func(string) bool) {
		original, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer writeFile(t, path, original)
		random := rand.New(rand.NewPCG(uint64(len(path)), 1))
		positions := random.Perm(len(original))
		if name := filepath.Base(path); name != manifestFile && name != resultsFile && name != stateFile {
			positions = positions[:min(len(positions), 20)]
		}
		for _, at := range positions {
			flipped := slices.Clone(original)
			flipped[at] ^= 1 << random.IntN(8)
			writeFile(t, path, flipped)
			if !yield(flippedBit) {
				return
			}
		}
		writeFile(t, path, original[:len(original)-1])
		if !yield("a byte less") {
			return
		}
		writeFile(t, path, append(slices.Clone(original), '\n'))
		if !yield("a byte more") || filepath.Base(path) == resultsFile { // a step without results is valid
			return
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		yield("gone")
	}
}

// TestDamagedLedger damages a ledger. Only damage before a checkpoint's mark matters.
func TestDamagedLedger(t *testing.T) {
	w := testTeam{t, t.TempDir(), true, noSyncFS{}}
	m1 := w.commit(1, w.train(1, nil))
	w.commit(2, w.train(2, &m1))
	c := w.checkpoints("solver")
	path := ledgerPath(c.Ledgers, "solver")
	part, _ := m1.Agent("solver")
	intact := func() {
		if offers, skipped, err := c.Offers(); err != nil || len(offers) != 2 || len(skipped) != 0 {
			t.Fatalf("%v %v %v", offers, skipped, err)
		}
	}
	intact()
	original, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := range original {
		flipped := slices.Clone(original)
		flipped[at] ^= 4
		writeFile(t, path, flipped)
		offers, skipped, err := c.Offers()
		want := []int64{2, 1}
		if int64(at) >= part.Ledger.Size {
			want = want[:1]
		}
		if err != nil || len(offers) != 2-len(want) || len(skipped) != len(want) || !strings.Contains(skipped[0].Reason.Error(), "ledger solver.jsonl was changed") {
			t.Fatalf("byte %d of %d: %v %v %v", at, len(original), offers, skipped, err)
		}
	}
	writeFile(t, path, append(slices.Clone(original), "{torn"...))
	intact()
	writeFile(t, path, original[:len(original)-1])
	_, skipped, _ := c.Offers()
	if len(skipped) != 1 {
		t.Fatalf("truncated ledger: %v", skipped)
	}
	golden.WantError(t, skipped[0].Reason, "ledger solver.jsonl has", "but the manifest requires")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, err = c.Verify(1)
	golden.WantError(t, err, "ledger solver.jsonl is missing")
	_, err = c.Latest()
	if !errors.Is(err, ErrNoCheckpoint) {
		t.Errorf("without a ledger: %v", err)
	}
	golden.WantError(t, err, "no complete checkpoint: mgrpo train writes one", "\nstep 1: ", "ledger solver.jsonl is missing")
}
