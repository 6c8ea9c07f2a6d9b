package archive

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// KeepReference writes the current weights, in float32, to the run's folder. From then on they are the agent's KL
// reference. Every checkpoint contains the sizes and digests of the files.
func (a *Archive) KeepReference(ctx context.Context) error {
	if err := a.member.ConfirmPlace(ctx); err != nil { // a successor may train against other weights
		return err
	}
	folder := referenceDir(a.opt.Dir, a.opt.Agent)
	err := durable.MkdirAll(a.checkpoints.fsys(), filepath.Dir(folder))
	if err == nil {
		a.reference, err = durable.WriteFolder(a.checkpoints.fsys(), folder, func(f *durable.Folder) error {
			master := func(from int64, dst []float32) error { return a.parameters.Read(ctx, from, dst) }
			return a.parameters.Files(ctx, master).Write(f, weights.F32, nil)
		})
	}
	if err != nil {
		return a.diskFull(fmt.Errorf("weights of the KL reference: %w", err))
	}
	return nil
}

// Reference returns the folder that KeepReference wrote, in this process or before the restored checkpoint. It verifies
// every byte. The error names the files that differ, and states what to do.
func (a *Archive) Reference() (folder string, err error) {
	folder = referenceDir(a.opt.Dir, a.opt.Agent)
	if len(a.reference) == 0 {
		return "", fmt.Errorf("the checkpoint of step %d does not have the weights of the KL reference, which is the policy after the cold start: "+
			"begin the run again in another run.dir, or set grpo.reference: start", a.saved)
	}
	var faults []error
	for _, f := range a.reference {
		if err := f.Verify(folder); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", f.Path, err))
		}
	}
	if len(faults) > 0 {
		return "", fmt.Errorf("the weights of the KL reference in %s differ from the digests in the checkpoint of step %d: %w; restore the folder "+
			"from a copy of the run's folder, or begin the run again in another run.dir",
			folder, a.saved, errors.Join(faults...))
	}
	return folder, nil
}

func referenceDir(dir, agent string) string { return filepath.Join(dir, referenceFolder, agent) }
