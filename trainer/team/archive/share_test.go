package archive

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// TestUnchangedWeightsAreOneFile checks that equal weights in consecutive checkpoints share one file, which remains when
// the older checkpoint is removed. They are written again if the older file is damaged or the file system has no links.
func TestUnchangedWeightsAreOneFile(t *testing.T) {
	c := Checkpoints{Dir: t.TempDir()}
	save := func(step int64, files Checkpoints) {
		t.Helper()
		agents := testAgents(step)
		agents[1] = testAgents(1)[1] // the solver's weights never change
		if _, err := files.save(testManifest(step), agents); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Verify(step); err != nil {
			t.Fatal(err)
		}
	}
	path := func(step int64, agent string) string {
		return filepath.Join(c.AgentDir(step, agent), "model.safetensors")
	}
	one := func(a, b int64, agent string) bool {
		t.Helper()
		first, err := os.Stat(path(a, agent))
		second, err2 := os.Stat(path(b, agent))
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return os.SameFile(first, second)
	}
	save(1, c)
	save(2, c)
	save(3, c)
	if !one(1, 3, "solver") || one(1, 3, "planner") {
		t.Errorf("shared file: solver %v, want true; planner %v, want false", one(1, 3, "solver"), one(1, 3, "planner"))
	}
	if err := c.Prune(1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Verify(3); err != nil {
		t.Errorf("after the older checkpoints were removed: %v", err)
	}
	data, err := os.ReadFile(path(3, "solver"))
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	writeFile(t, path(3, "solver"), data)
	save(4, c)
	if one(3, 4, "solver") {
		t.Error("a damaged file was reused")
	}
	save(5, Checkpoints{Dir: c.Dir, FS: noLinkFS{}})
	if one(4, 5, "solver") {
		t.Error("the file is linked on a file system without links")
	}
}

// noLinkFS is a file system without hard links.
type noLinkFS struct{ durable.OS }

func (noLinkFS) Link(string, string) error { return syscall.EPERM }
