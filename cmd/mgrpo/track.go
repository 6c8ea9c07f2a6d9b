package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/metrics/track"
)

type trackCmd struct {
	Dir    string `arg:"" name:"RUNDIR" help:"Folder of the run, such as runs/NAME."`
	WandB  string `name:"wandb" placeholder:"PROJECT" required:"" xor:"tracker" help:"A project of Weights & Biases. One of --wandb and --mlflow is required."`
	MLflow string `name:"mlflow" placeholder:"EXPERIMENT" required:"" xor:"tracker" help:"An experiment on the MLflow server of MLFLOW_TRACKING_URI."`
	Follow bool   `short:"f" help:"Wait for further records until the run is complete."`
	Python string `default:"python3" help:"The Python that has the package wandb or mlflow."`
}

func (trackCmd) Help() string {
	return `Forwards the records of a run, while it lasts or afterwards, and nothing twice: the same command goes on where it was.
docs/tracking.md says what arrives, and which environment variables the trackers read.`
}

// Run forwards the records and prints their number.
func (c *trackCmd) Run(ctx context.Context) error {
	say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, "mgrpo: "+format+"\n", args...) }
	open := track.MLflow(c.MLflow, c.Python)
	if c.WandB != "" {
		open = track.WandB(c.WandB, c.Python)
	}
	if _, err := os.Stat(filepath.Join(c.Dir, metrics.FileName)); err != nil && c.Follow {
		say("waiting for the run: %v", err)
	}
	sum, err := track.Forward(ctx, c.Dir, c.Follow, open)
	if sum.Repeated > 0 {
		say("%d records repeat earlier steps because the run went back: the tracker keeps the first of each", sum.Repeated)
	}
	if sum.Damaged > 0 {
		say("%d damaged lines were left out", sum.Damaged)
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d records forwarded\n", sum.Rows)
	return nil
}
