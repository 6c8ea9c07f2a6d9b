package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/mgrpo/golden"
	"github.com/mgrpo/mgrpo/trainer/team/durable"
)

func TestLedger(t *testing.T) {
	c := Checkpoints{Ledgers: filepath.Join(t.TempDir(), "run", "ledger")}
	l := mustOpenLedger(t, c, LedgerMark{})
	if l.Mark() != (LedgerMark{}) {
		t.Errorf("an empty ledger's mark is %+v", l.Mark())
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
	const first = `{"step":0,"rollouts":[{"id":"q-1/0","trained":[1,2]},{"id":"q-1/1","removed":"not verified"}],"updates":1}` + "\n"
	if err != nil || string(text[:marks[0].Size]) != first || int64(len(text)) != marks[2].Size {
		t.Errorf("%s %v", text, err)
	}
	l = mustOpenLedger(t, c, marks[1]) // the third step is made again
	if l.Mark() != marks[1] {
		t.Errorf("reopened at %+v, want %+v", l.Mark(), marks[1])
	}
	if err := errors.Join(l.Append(testLine(3)), l.Close()); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(text) || l.Mark() != marks[2] {
		t.Errorf("made again it is %s (%v), want %s", again, err, text)
	}
	lines, err := readLedger(path, marks[1])
	if want := []LedgerLine{testLine(1), testLine(2)}; err != nil || !reflect.DeepEqual(lines, want) {
		t.Errorf("%+v %v, want %+v", lines, err, want)
	}
	_, err = c.openLedger("planner", LedgerMark{marks[0].Size, marks[1].SHA256})
	golden.WantError(t, err, "ledger planner.jsonl was changed")
	_, err = c.openLedger("../../x", LedgerMark{})
	golden.WantError(t, err, "not the name of an agent")
	if l = mustOpenLedger(t, c, LedgerMark{}); l.Close() != nil { // afresh
		t.Error("closing")
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Errorf("%v %v", info, err)
	}
}

func mustOpenLedger(t *testing.T, c Checkpoints, at LedgerMark) *Ledger {
	t.Helper()
	l, err := c.openLedger("planner", at)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLedgerOfSleeper: a worker that was asleep when another took its place goes on to write: the ledger is
// the other's, as that one has marked it.
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

// TestUntrainedTrajectories: a rollout that an agent has no trajectory in, or trains on none of, is not one
// that was removed.
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

// TestLedgerOnFullDisk: a line that the disk has no room for is an error that names the file, and so is every
// line after it; the lines before it are found again.
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
			t.Fatal("a line after one that is missing")
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

// fullDisk is a file system that has room for so many bytes.
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

// TestSaveOnFullDisk lets the disk fill up at every kilobyte of a save: the error says so and names the file,
// the checkpoint before is whole, and nothing of the new one is left to fill the disk.
func TestSaveOnFullDisk(t *testing.T) {
	for room := 0; ; room += 1000 {
		c := Checkpoints{Dir: t.TempDir(), FS: unsynced{}}
		mustSave(t, c, 1)
		full := c
		full.FS = &fullDisk{room: room}
		_, err := full.Save(testManifest(2), testAgents(2))
		if err == nil {
			if room < 5000 {
				t.Errorf("%d bytes are enough: nothing is tested", room)
			}
			return
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%v", err)
		}
		golden.WantError(t, err, "step 2")
		if !regexp.MustCompile(`[a-z]\.(safetensors|state|json): .*no space left`).MatchString(err.Error()) {
			t.Errorf("which file? %v", err)
		}
		mustBe(t, c, 1)
		if left, _ := filepath.Glob(filepath.Join(c.StepDir(2), ".*")); len(left) != 0 {
			t.Errorf("left on the full disk: %v", left)
		}
		if steps, _ := c.List(); !slices.Equal(steps, []int64{1}) {
			t.Errorf("complete are %v", steps)
		}
		mustSave(t, c, 2)
		mustBe(t, c, 2)
	}
}

// readLedger reads the lines of a ledger that a mark describes, and verifies them.
func readLedger(path string, at LedgerMark) (lines []LedgerLine, err error) {
	if err := at.verify(path); err != nil {
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
