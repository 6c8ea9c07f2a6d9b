package track

import (
	"context"
	"os"
	"path/filepath"
)

// TensorBoard returns an Opener that writes event files below dir, in a folder with the name of the run's folder. python
// is the name or path of a Python that has the package tensorboard.
func TensorBoard(dir, python string) Opener {
	return func(ctx context.Context, run Run) (Tracker, error) {
		from, err := filepath.Abs(run.Dir)
		if err != nil {
			return nil, err
		}
		to := filepath.Join(dir, filepath.Base(from))
		return open(ctx, "tensorboard", python, os.Environ(), map[string]any{"dir": to, "began": float64(run.Began.UnixMicro()) / 1e6})
	}
}
