package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/failpoint"
)

// Skipped is a step that was passed over, or its results, and why.
type Skipped struct {
	Step   int64
	Reason error
}

// Unfinished says whether the step has no manifest yet: it is being written, or a crash left it.
func (s Skipped) Unfinished() bool { return errors.Is(s.Reason, errUnfinished{}) }

// ErrNoCheckpoint is returned by Latest when no step verifies.
var ErrNoCheckpoint = errors.New("no complete checkpoint")

// Offers verifies every checkpoint, byte for byte, as far as r.Agents are concerned, and returns those from
// which they can go on, the newest first, and what does not verify. Workers whose offers are of equal steps
// and digests have the same checkpoint. A step that was evaluated is offered twice: with its results, whose
// digest is then the manifest's, and without, since another worker may have been killed before it wrote them.
func (c Checkpoints) Offers() ([]Manifest, []Skipped, error) {
	steps, err := c.steps()
	if err != nil {
		return nil, nil, err
	}
	var offers []Manifest
	var skipped []Skipped
	for _, step := range slices.Backward(steps) {
		m, err := c.Verify(step)
		if err != nil {
			skipped = append(skipped, Skipped{step, err})
			continue
		}
		switch evaluated, err := readResults(c.StepDir(step), m); {
		case err == nil:
			with := m
			with.Results, with.Digest = evaluated.Results, evaluated.Digest
			offers = append(offers, with)
		case !errors.Is(err, fs.ErrNotExist):
			skipped = append(skipped, Skipped{step, fmt.Errorf("checkpoint: %s: %w", c.StepDir(step), err)})
		}
		offers = append(offers, m)
	}
	return offers, skipped, nil
}

// Latest returns the first of the offers, and what newer was passed over.
func (c Checkpoints) Latest() (Manifest, []Skipped, error) {
	offers, skipped, err := c.Offers()
	if err != nil {
		return Manifest{}, skipped, err
	}
	if len(offers) == 0 {
		return Manifest{}, skipped, fmt.Errorf("checkpoint: %s: %w", c.Dir, ErrNoCheckpoint)
	}
	newer := slices.DeleteFunc(skipped, func(s Skipped) bool { return s.Step < offers[0].Step })
	return offers[0], newer, nil
}

// GoBack takes out of the way what is newer than the offer from which all agents go on, or than step -1:
// its steps are about to be made again. Complete checkpoints get another name, step-N.aside, under which
// Prune finds them; of the offer's own step it removes results that the offer is without. Workers that
// share the folder may all do it.
func (c Checkpoints) GoBack(to Manifest) error {
	steps, err := c.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, step := range steps {
		if step > to.Step {
			errs = append(errs, c.setAside(step))
		}
	}
	if dir := c.StepDir(to.Step); slices.Contains(steps, to.Step) {
		if m, err := readManifest(dir); err == nil && m.Digest == to.Digest {
			errs = append(errs, c.fsys().RemoveAll(filepath.Join(dir, resultsFile)), c.fsys().SyncDir(dir))
		}
	}
	if len(steps) > 0 {
		errs = append(errs, c.fsys().SyncDir(c.Dir))
	}
	return errors.Join(errs...)
}

const asideSuffix = "aside"

// setAside renames a checkpoint to the first name that is free. Of several workers that try, one succeeds.
func (c Checkpoints) setAside(step int64) error {
	const most = 100
	var err error
	for n := 1; n <= most; n++ {
		to := fmt.Sprintf("%s.%s-%d", c.StepDir(step), asideSuffix, n)
		failpoint.Here("join.aside")
		if err = c.fsys().Rename(c.StepDir(step), to); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("checkpoint: %s cannot be set aside: %w", c.StepDir(step), err)
}
