package metrics

import (
	"os"
	"path/filepath"
	"testing"
)

// Lines that a full disk could not take are written later, because steps before a checkpoint are never reported again.
func TestLinesOutliveAnOutage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file with the folder's name makes writes fail
		t.Fatal(err)
	}
	j := NewJSONL(dir)
	j.Report(Record{Kind: KindStep, Step: 1, Agent: "a"})
	j.Note(Warnf("a", TopicFiles, "the disk is full"))
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	j.Report(Record{Kind: KindStep, Step: 2, Agent: "a"})
	if err := j.file.Close(); err != nil { // simulates a lost disk
		t.Fatal(err)
	}
	j.Report(Record{Kind: KindStep, Step: 3, Agent: "a"})
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	log, err := Read(dir)
	if err != nil || len(log.Records) != 3 {
		t.Errorf("%d records, %v", len(log.Records), err)
	}
}
