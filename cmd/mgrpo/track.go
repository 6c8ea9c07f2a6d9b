package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/track"
)

type trackCmd struct {
	Dir         string `arg:"" name:"RUNDIR" help:"Folder of the run, such as runs/NAME."`
	WandB       string `name:"wandb" placeholder:"NAME" required:"" xor:"tracker" help:"Project of Weights & Biases. One tracker is required."`
	MLflow      string `name:"mlflow" placeholder:"NAME" required:"" xor:"tracker" help:"Experiment on the MLflow server of MLFLOW_TRACKING_URI."`
	TensorBoard string `name:"tensorboard" placeholder:"DIR" required:"" xor:"tracker" help:"Folder for TensorBoard, which may have several runs."`
	Follow      bool   `short:"f" help:"Wait for further records until the run is complete."`
	Python      string `default:"python3" help:"Python interpreter that has the package wandb, mlflow or tensorboard."`
}

func (trackCmd) Help() string {
	return `Forwards the records of a run, during the run or after it. With W&B and MLflow the same command continues where it
stopped. TensorBoard's files are written again, and W&B takes an offline run only once.
docs/tracking.md lists the forwarded records and the environment variables of the trackers.`
}

// Run forwards the records and prints their number.
func (c *trackCmd) Run(ctx context.Context) error {
	say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, "mgrpo: "+format+"\n", args...) }
	to := track.Tracker{Package: "mlflow", To: c.MLflow, Python: c.Python}
	switch {
	case c.WandB != "":
		to.Package, to.To = "wandb", c.WandB
	case c.TensorBoard != "":
		to.Package, to.To = "tensorboard", c.TensorBoard
	}
	if _, err := os.Stat(filepath.Join(c.Dir, metrics.FileName)); err != nil && c.Follow {
		say("waiting for the run: %v", err)
	}
	sum, err := track.Forward(ctx, c.Dir, c.Follow, to)
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
