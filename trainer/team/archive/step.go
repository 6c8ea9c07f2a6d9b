package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// StepFolder is the folder of a step's checkpoint, which may not exist yet.
type StepFolder struct {
	step int64
	path string
	fs   durable.FS
}

// At returns the folder of a step.
func (c Checkpoints) At(step int64) StepFolder { return StepFolder{step, c.StepDir(step), c.fsys()} }

// prepare makes the folder if it does not exist.
func (f StepFolder) prepare() error {
	if f.step < 0 {
		return errors.New("negative step")
	}
	parent := filepath.Dir(f.path)
	if err := durable.MkdirAll(f.fs, parent); err != nil {
		return err
	}
	if err := f.fs.Mkdir(f.path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return f.fs.SyncDir(parent)
}

// reopen removes the manifest of a step that is about to be written. Such a manifest was written by a worker that was
// suspended while the team went back to an earlier step.
func (f StepFolder) reopen() error {
	if _, err := os.Lstat(filepath.Join(f.path, manifestFile)); err != nil {
		return nil
	}
	for _, name := range []string{manifestFile, resultsFile, agreedFile} {
		if err := f.fs.RemoveAll(filepath.Join(f.path, name)); err != nil {
			return fmt.Errorf("checkpoint: step %d: %w", f.step, err)
		}
	}
	return f.fs.SyncDir(f.path)
}

// SetResults writes the results of evaluating a complete step. All workers write the same results, either in a shared
// folder or each in its own.
func (f StepFolder) SetResults(value json.RawMessage) error {
	fail := func(err error) error { return fmt.Errorf("checkpoint: the results of step %d: %w", f.step, err) }
	m, err := readManifest(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(fmt.Errorf("%s has no manifest", f.path))
	}
	if err != nil {
		return fail(err)
	}
	data, err := results{Manifest: m.Digest, Results: value}.encode()
	if err != nil {
		return fail(err)
	}
	defer failpoint.Around("checkpoint.results")()
	if err := durable.Replace(f.fs, filepath.Join(f.path, resultsFile), data); err != nil {
		return fail(err)
	}
	return nil
}

// Agree records that all workers have the step's manifest. A worker that has such a checkpoint no longer offers to begin the
// run from the start (see StoreOffers).
func (f StepFolder) Agree() error {
	if f.agreed() {
		return nil
	}
	return durable.Replace(f.fs, filepath.Join(f.path, agreedFile), nil)
}

func (f StepFolder) agreed() bool {
	_, err := os.Lstat(filepath.Join(f.path, agreedFile))
	return err == nil
}

// setAside renames a checkpoint to the first free name. If several workers share the folder, only one of them renames it.
func (f StepFolder) setAside(confirm func() error) error {
	const maxNames = 100
	var err error
	for n := 1; n <= maxNames; n++ {
		to := fmt.Sprintf("%s.%s-%d", f.path, asideSuffix, n)
		failpoint.Here("join.aside")
		if err := confirm(); err != nil {
			return err
		}
		if err = f.fs.Rename(f.path, to); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("checkpoint: %s cannot be set aside: %w", f.path, err)
}
