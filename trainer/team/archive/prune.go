package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// Prune removes all checkpoints except the newest `keep` complete ones, the checkpoint of step 0,
// and the steps in `also`, for example the best. Step 0 has the weights after the cold start. Prune
// also removes older checkpoints that GoBack renamed, and incomplete ones that are older than the
// newest complete one. A checkpoint counts as complete if all workers have its manifest (StepFolder.Agree), and
// the files of c.Agents have the sizes that the manifest lists. Prune does not compute digests. Workers that share the folder
// may all call it.
func (c Checkpoints) Prune(keep int, also ...int64) error {
	doomed, err := c.Prunable(keep, also...)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range doomed {
		errs = append(errs, remove(c.fsys(), c.Dir, name))
	}
	return errors.Join(append(errs, removeLeftovers(c.fsys(), c.Dir))...)
}

// Prunable returns the names of the folders in c.Dir that Prune would remove, the newest first.
func (c Checkpoints) Prunable(keep int, also ...int64) ([]string, error) {
	if keep < 1 {
		return nil, fmt.Errorf("checkpoint: pruning to %d checkpoints would remove all of them: keep at least 1", keep)
	}
	steps, err := c.steps()
	if err != nil {
		return nil, err
	}
	var doomed []string
	kept, oldest := 0, int64(0)
	for _, step := range slices.Backward(steps) {
		m, err := readManifest(c.StepDir(step))
		complete := err == nil && c.At(step).agreed() && m.checkSizes(c.StepDir(step), c.Agents) == nil
		switch {
		case complete && kept < keep:
			kept, oldest = kept+1, step
		case complete && step == 0:
		case kept == 0 || slices.Contains(also, step): // the newest step may be incomplete because it is being written
		default:
			doomed = append(doomed, stepName(step))
		}
	}
	if kept < keep {
		return doomed, nil
	}
	aside, err := setAsideNames(c.Dir)
	for _, name := range slices.Backward(aside) {
		if step, _, _ := parseStep(name); step < oldest {
			doomed = append(doomed, name)
		}
	}
	return doomed, err
}

// setAsideNames returns the names of the checkpoints in a folder that GoBack renamed.
func setAsideNames(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(durable.GlobQuote(dir), "step-*."+asideSuffix+"-*"))
	var names []string
	for _, path := range paths {
		if _, _, ok := parseStep(filepath.Base(path)); ok {
			names = append(names, filepath.Base(path))
		}
	}
	return names, err
}

// remove renames the folder before it deletes the files, so that a crash never leaves a partly deleted checkpoint under its
// original name.
func remove(fsys durable.FS, dir, name string) error {
	doomed := filepath.Join(dir, removedPrefix+name)
	if err := fsys.RemoveAll(doomed); err != nil {
		return err
	}
	failpoint.Here("checkpoint.prune.before")
	if err := fsys.Rename(filepath.Join(dir, name), doomed); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	failpoint.Here("checkpoint.prune.renamed")
	return errors.Join(fsys.SyncDir(dir), fsys.RemoveAll(doomed))
}

const removedPrefix = ".removed-"

// removeLeftovers deletes folders that remove had renamed before a crash.
func removeLeftovers(fsys durable.FS, dir string) error {
	doomed, err := filepath.Glob(filepath.Join(durable.GlobQuote(dir), removedPrefix+"step-*"))
	for _, path := range doomed {
		err = errors.Join(err, fsys.RemoveAll(path))
	}
	return err
}
