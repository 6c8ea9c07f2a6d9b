package archive

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/durable"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// KeepReference writes the weights as they are now, in float32, into the run's folder: those that the agent's KL term
// compares with from here on. Every checkpoint names the files by size and digest.
func (a *Archive) KeepReference(ctx context.Context) error {
	if err := a.place.ConfirmPlace(ctx); err != nil { // a successor may train against other weights
		return err
	}
	folder := a.referenceDir()
	err := durable.MkdirAll(a.checkpoints.fsys(), filepath.Dir(folder))
	if err == nil {
		a.reference, err = durable.WriteFolder(a.checkpoints.fsys(), folder, func(f *durable.Folder) error {
			return weights.WriteInto(f, a.parameters.Config(), a.reader(ctx), weights.F32, nil)
		})
	}
	if err != nil {
		return a.diskFull(fmt.Errorf("weights of the KL term: %w", err))
	}
	return nil
}

// Reference is the folder of what KeepReference wrote, in this process or before the checkpoint that was restored. It
// reads every byte: an error says what is not as it was, and what can be done.
func (a *Archive) Reference() (folder string, err error) {
	folder = a.referenceDir()
	if len(a.reference) == 0 {
		return "", fmt.Errorf("the checkpoint of step %d names no weights for the KL term, which compares with those after the cold start: begin the run again in another run.dir, or with grpo.reference: start", a.saved)
	}
	var faults []error
	for _, f := range a.reference {
		if err := verifyFile(folder, f); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", f.Path, err))
		}
	}
	if len(faults) > 0 {
		return "", fmt.Errorf("weights of the KL term, %s, are not those of the checkpoint of step %d: %w; put the folder back from a copy of the run's, or begin the run again in another run.dir",
			folder, a.saved, errors.Join(faults...))
	}
	return folder, nil
}

func (a *Archive) referenceDir() string { return filepath.Join(a.Dir, referenceFolder, a.Agent) }

// reader reads the tensors of a checkpoint off the weights as they are when it is called.
func (a *Archive) reader(ctx context.Context) func(name string, dst []float32) error {
	return a.parameters.Reader(ctx, func(from int64, dst []float32) error { return a.parameters.Read(ctx, from, dst) })
}
