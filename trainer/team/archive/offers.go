package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// SkippedStep is a step whose checkpoint or results cannot be used, and the reason.
type SkippedStep struct {
	Step   int64
	Reason error
}

// Unfinished reports whether the step has no manifest: it is being written, or a crash interrupted the writing.
func (s SkippedStep) Unfinished() bool { return errors.Is(s.Reason, errUnfinished{}) }

// ErrNoCheckpoint is returned by Latest if no step can be verified.
var ErrNoCheckpoint = errors.New("no complete checkpoint: mgrpo train writes one every run.checkpoint_every steps and when it ends")

// Offers verifies the files of c.Agents in every checkpoint, byte for byte. It returns the checkpoints from which these
// agents can continue, the newest first, and the steps that fail verification. If offers of two workers have equal steps
// and digests, they are the same checkpoint. An evaluated step is offered twice: first with its results and the digest of
// results.json, and then without results, because another worker may have been killed before it wrote them.
func (c Checkpoints) Offers() ([]Manifest, []SkippedStep, error) {
	steps, err := c.steps()
	if err != nil {
		return nil, nil, err
	}
	var offers []Manifest
	var skipped []SkippedStep
	for _, step := range slices.Backward(steps) {
		m, err := c.Verify(step)
		if err != nil {
			skipped = append(skipped, SkippedStep{step, err})
			continue
		}
		m.Agreed = c.At(step).agreed()
		switch evaluated, err := readResults(c.StepDir(step), m); {
		case err == nil:
			with := m
			with.Results, with.Digest = evaluated.Results, evaluated.Digest
			offers = append(offers, with)
		case !errors.Is(err, fs.ErrNotExist):
			skipped = append(skipped, SkippedStep{step, fmt.Errorf("checkpoint: %s: %w", c.StepDir(step), err)})
		}
		offers = append(offers, m)
	}
	return offers, skipped, nil
}

// Latest returns the newest checkpoint that can be verified, with its results if it has them.
func (c Checkpoints) Latest() (Manifest, error) {
	offers, skipped, err := c.Offers()
	if err != nil {
		return Manifest{}, err
	}
	if len(offers) > 0 {
		return offers[0], nil
	}
	err = fmt.Errorf("checkpoint: %s: %w", c.Dir, ErrNoCheckpoint)
	for _, s := range skipped {
		err = fmt.Errorf("%w\nstep %d: %w", err, s.Step, s.Reason)
	}
	return Manifest{}, err
}

// GoBack renames the checkpoints that are newer than `to`, the offer from which all agents continue (step -1: all
// checkpoints), because their steps will be made again. The new name is step-N.aside-M; Prune removes such folders later. GoBack also
// removes the results of the offer's own step if the offer has no results. Workers that share the folder may all call it.
// confirm is called before each change; it returns an error if the checkpoints may already belong to a successor.
func (c Checkpoints) GoBack(to Manifest, confirm func() error) error {
	steps, err := c.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, step := range steps {
		if step > to.Step {
			errs = append(errs, c.At(step).setAside(confirm))
		}
	}
	if dir := c.StepDir(to.Step); slices.Contains(steps, to.Step) {
		if m, err := readManifest(dir); err == nil && m.Digest == to.Digest {
			if err := confirm(); err != nil {
				return errors.Join(append(errs, err)...)
			}
			errs = append(errs, c.fsys().RemoveAll(filepath.Join(dir, resultsFile)), c.fsys().SyncDir(dir))
		}
	}
	if len(steps) > 0 {
		errs = append(errs, c.fsys().SyncDir(c.Dir))
	}
	return errors.Join(errs...)
}

const asideSuffix = "aside"

// Usable returns the checkpoints from which a run can continue, the newest first. The observer receives a note for each
// checkpoint that cannot be used. It is an error if there are checkpoints but none of them can be used.
func (c Checkpoints) Usable(observer metrics.Observer) ([]Manifest, error) {
	steps, err := c.List()
	if err != nil {
		return nil, err
	}
	points, skipped, err := c.Offers()
	if err != nil {
		return nil, fmt.Errorf("resuming: %w", err)
	}
	for _, s := range skipped {
		observer.Note(metrics.Warnf("", metrics.TopicStart, "checkpoint of step %d cannot be used: %v", s.Step, s.Reason))
	}
	if len(points) == 0 && len(steps) > 0 {
		return nil, fmt.Errorf("resuming: none of the checkpoints of steps %v in %s is complete and undamaged; restore one, or choose another run.dir",
			steps, c.Dir)
	}
	return points, nil
}

// maxStoreOffers is the largest number of states that a worker offers. The store accepts only a few times as many.
const maxStoreOffers = 200

// StoreOffers returns the states that a worker with these checkpoints can offer: the newest ones. A worker
// with a checkpoint of at most one step also offers to begin the run from the start, unless all workers had
// that checkpoint. The other workers may have been killed before they completed it. date is the run's date.
func StoreOffers(points []Manifest, date string) []store.Offer {
	var out []store.Offer
	for _, m := range points[:min(len(points), maxStoreOffers)] {
		out = append(out, store.Offer{Version: m.Step, Digest: m.Digest, Date: date})
	}
	if len(points) == 0 || points[0].Step == points[len(points)-1].Step && !points[0].Agreed {
		out = append(out, store.Offer{Version: store.FromStart, Date: date})
	}
	return out
}
