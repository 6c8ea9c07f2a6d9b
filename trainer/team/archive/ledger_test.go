package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

func TestLedger(t *testing.T) {
	c := Checkpoints{Ledgers: filepath.Join(t.TempDir(), "run", "ledger")}
	l := mustOpenLedger(t, c, LedgerMark{})
	if l.Mark() != (LedgerMark{}) {
		t.Errorf("the mark of an empty ledger is %+v", l.Mark())
	}
	var marks []LedgerMark
	for step := range int64(3) {
		if err := l.Append(testLine(step + 1)); err != nil {
			t.Fatal(err)
		}
		marks = append(marks, l.Mark())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	path := ledgerPath(c.Ledgers, "planner")
	text, err := os.ReadFile(path)
	const first = `{"step":0,"rollouts":[{"id":"q-1/0","trained":[1,2]},{"id":"q-1/1","removed":"failed"}],"updates":1}` + "\n"
	if err != nil || string(text[:marks[0].Size]) != first || int64(len(text)) != marks[2].Size {
		t.Errorf("%s %v", text, err)
	}
	l = mustOpenLedger(t, c, marks[1]) // makes the third step again
	if l.Mark() != marks[1] {
		t.Errorf("reopened at %+v, want %+v", l.Mark(), marks[1])
	}
	if err := errors.Join(l.Append(testLine(3)), l.Close()); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(text) || l.Mark() != marks[2] {
		t.Errorf("after the repeated step: %s (%v), want %s", again, err, text)
	}
	lines, err := readLedger(path, marks[1])
	if want := []LedgerLine{testLine(1), testLine(2)}; err != nil || !reflect.DeepEqual(lines, want) {
		t.Errorf("%+v %v, want %+v", lines, err, want)
	}
	_, err = openLedger(c.fsys(), c.Ledgers, "planner", LedgerMark{marks[0].Size, marks[1].SHA256})
	golden.WantError(t, err, "ledger planner.jsonl was changed")
	_, err = openLedger(c.fsys(), c.Ledgers, "../../x", LedgerMark{})
	golden.WantError(t, err, "not the name of an agent")
	if l = mustOpenLedger(t, c, LedgerMark{}); l.Close() != nil { // from the beginning
		t.Error("closing failed")
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Errorf("%v %v", info, err)
	}
}

func mustOpenLedger(t *testing.T, c Checkpoints, at LedgerMark) *Ledger {
	t.Helper()
	l, err := openLedger(c.fsys(), c.Ledgers, "planner", at)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLedgerOfSleeper checks that a suspended worker whose place was taken cannot write to the
// ledger after it resumes. The ledger matches the new worker's mark.
func TestLedgerOfSleeper(t *testing.T) {
	c := Checkpoints{Ledgers: t.TempDir()}
	sleeper := mustOpenLedger(t, c, LedgerMark{})
	if err := sleeper.Append(testLine(1)); err != nil {
		t.Fatal(err)
	}
	mark := sleeper.Mark()
	other := mustOpenLedger(t, c, mark)
	if err := errors.Join(sleeper.Append(testLine(2)), other.Append(testLine(7)), sleeper.Append(testLine(3)), other.Append(testLine(8))); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sleeper.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	lines, err := readLedger(ledgerPath(c.Ledgers, "planner"), other.Mark())
	if want := []LedgerLine{testLine(1), testLine(7), testLine(8)}; err != nil || !reflect.DeepEqual(lines, want) {
		t.Errorf("%+v %v, want %+v", lines, err, want)
	}
	if left, _ := os.ReadDir(c.Ledgers); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// TestUntrainedTrajectories checks that a rollout is not marked as removed if the agent has no trajectory in it, or does not train on any.
func TestUntrainedTrajectories(t *testing.T) {
	c := Checkpoints{Ledgers: t.TempDir()}
	l := mustOpenLedger(t, c, LedgerMark{})
	want := LedgerLine{Step: 0, Rollouts: []LedgerRollout{{ID: "q/0", Trained: []float64{}}}}
	if err := errors.Join(l.Append(want), l.Close()); err != nil {
		t.Fatal(err)
	}
	lines, err := readLedger(ledgerPath(c.Ledgers, "planner"), l.Mark())
	if err != nil || !reflect.DeepEqual(lines, []LedgerLine{want}) {
		t.Errorf("%+v %v", lines, err)
	}
}

// TestLedgerOnFullDisk checks that a line that does not fit the disk is an error that names the
// file, as is every later line. Earlier lines remain readable.
func TestLedgerOnFullDisk(t *testing.T) {
	c := Checkpoints{Ledgers: t.TempDir(), FS: &fullDisk{room: 150}}
	l := mustOpenLedger(t, c, LedgerMark{})
	if err := l.Append(testLine(1)); err != nil {
		t.Fatal(err)
	}
	mark := l.Mark()
	for range 2 {
		if err := l.Append(testLine(2)); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%v", err)
		} else {
			golden.WantError(t, err, "planner.jsonl: step 1")
		}
		if err := l.Append(testLine(3)); err == nil {
			t.Fatal("a line was appended after a missing one")
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(ledgerPath(c.Ledgers, "planner")); err != nil || info.Size() != 150 {
		t.Fatalf("%v %v", info, err)
	}
	c.FS = nil
	l = mustOpenLedger(t, c, mark)
	if err := errors.Join(l.Append(testLine(2)), l.Close()); err != nil {
		t.Fatal(err)
	}
	if lines, err := readLedger(ledgerPath(c.Ledgers, "planner"), l.Mark()); err != nil || len(lines) != 2 {
		t.Errorf("%v %v", lines, err)
	}
}

// fullDisk is a file system with room for a limited number of bytes.
type fullDisk struct {
	durable.OS
	room int
}

func (d *fullDisk) Create(path string) (durable.WriteFile, error) {
	f, err := d.OS.Create(path)
	return fullFile{f, d}, err
}

type fullFile struct {
	durable.WriteFile
	disk *fullDisk
}

func (f fullFile) Write(p []byte) (int, error) {
	n, err := f.WriteFile.Write(p[:min(len(p), f.disk.room)])
	f.disk.room -= n
	if err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

// TestSaveOnFullDisk fills the disk at every kilobyte of a save. The error reports that and names
// the file, the previous checkpoint is intact, and no file of the new one remains on the disk.
func TestSaveOnFullDisk(t *testing.T) {
	for room := 0; ; room += 1000 {
		c := Checkpoints{Dir: t.TempDir(), FS: noSyncFS{}}
		mustSave(t, c, 1)
		full := c
		full.FS = &fullDisk{room: room}
		_, err := full.save(testManifest(2), testAgents(2))
		if err == nil {
			if room < 5000 {
				t.Errorf("%d bytes are enough, so the test is useless", room)
			}
			return
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%v", err)
		}
		golden.WantError(t, err, "step 2")
		if !regexp.MustCompile(`[a-z]\.(safetensors|state|json): .*no space left`).MatchString(err.Error()) {
			t.Errorf("the error does not name the file: %v", err)
		}
		wantNewest(t, c, 1)
		if left, _ := filepath.Glob(filepath.Join(c.StepDir(2), ".*")); len(left) != 0 {
			t.Errorf("files remain on the full disk: %v", left)
		}
		if steps, _ := c.List(); !slices.Equal(steps, []int64{1}) {
			t.Errorf("complete steps: %v", steps)
		}
		mustSave(t, c, 2)
		wantNewest(t, c, 2)
	}
}

// readLedger reads and verifies the lines of a ledger up to a mark.
func readLedger(path string, at LedgerMark) (lines []LedgerLine, err error) {
	if _, err := at.copy(path, io.Discard); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil || at.Size == 0 {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text[:at.Size]))
	decoder.DisallowUnknownFields()
	for decoder.More() {
		var line LedgerLine
		if err := decoder.Decode(&line); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, len(lines)+1, err)
		}
		lines = append(lines, line)
	}
	return lines, nil
}
