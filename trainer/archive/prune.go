package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/durable"
	"github.com/mgrpo/mgrpo/trainer/failpoint"
)

// Prune removes all checkpoints but the newest keep complete ones and the steps in also (the best, say),
// what was set aside before those, and what crashes left of unfinished ones older than the newest complete
// one. A checkpoint counts as complete if the files of r.Agents are there in their sizes; digests are not
// read. Workers that share the folder may all prune it.
func (c Checkpoints) Prune(keep int, also ...int64) error {
	doomed, err := c.Prunable(keep, also...)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range doomed {
		errs = append(errs, c.remove(name))
	}
	return errors.Join(append(errs, c.removeLeftovers())...)
}

// Prunable returns the names of the folders in r.Dir that Prune would remove, the newest first.
func (c Checkpoints) Prunable(keep int, also ...int64) ([]string, error) {
	if keep < 1 {
		return nil, fmt.Errorf("checkpoint: pruning to %d checkpoints would remove all", keep)
	}
	steps, err := c.steps()
	if err != nil {
		return nil, err
	}
	var doomed []string
	kept, oldest := 0, int64(0)
	for _, step := range slices.Backward(steps) {
		m, err := readManifest(c.StepDir(step))
		complete := err == nil && m.checkSizes(c.StepDir(step), c.Agents) == nil
		switch {
		case complete && kept < keep:
			kept, oldest = kept+1, step
		case kept == 0 || slices.Contains(also, step): // an unfinished newest step may be in the making
		default:
			doomed = append(doomed, stepName(step))
		}
	}
	if kept < keep {
		return doomed, nil
	}
	aside, err := c.aside()
	for _, name := range slices.Backward(aside) {
		if step, _, _ := parseStep(name); step < oldest {
			doomed = append(doomed, name)
		}
	}
	return doomed, err
}

// aside returns the names of what GoBack set aside.
func (c Checkpoints) aside() ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(durable.GlobQuote(c.Dir), "step-*."+asideSuffix+"-*"))
	var names []string
	for _, path := range paths {
		if _, _, ok := parseStep(filepath.Base(path)); ok {
			names = append(names, filepath.Base(path))
		}
	}
	return names, err
}

// remove takes the folder's name away first: a half-deleted checkpoint is never seen under it.
func (c Checkpoints) remove(name string) error {
	doomed := filepath.Join(c.Dir, removedPrefix+name)
	if err := c.fsys().RemoveAll(doomed); err != nil {
		return err
	}
	failpoint.Here("checkpoint.prune.before")
	if err := c.fsys().Rename(filepath.Join(c.Dir, name), doomed); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	failpoint.Here("checkpoint.prune.renamed")
	return errors.Join(c.fsys().SyncDir(c.Dir), c.fsys().RemoveAll(doomed))
}

const removedPrefix = ".removed-"

func (c Checkpoints) removeLeftovers() error {
	doomed, err := filepath.Glob(filepath.Join(durable.GlobQuote(c.Dir), removedPrefix+"step-*"))
	for _, path := range doomed {
		err = errors.Join(err, c.fsys().RemoveAll(path))
	}
	return err
}
