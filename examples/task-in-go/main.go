// Command task-in-go trains a team on a task written in Go, with mgrpo as a library. It imports only the public packages,
// which docs/library.md lists.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

//go:embed team.yaml
var team []byte

func main() {
	trainer.ServeChild() // does not return in processes that a run starts itself
	dir := flag.String("dir", "", "folder for the run; absent: a temporary one")
	steps := flag.Int64("steps", 0, "training steps; 0: as many as team.yaml has")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dir, *steps); err != nil {
		fmt.Fprintln(os.Stderr, "task-in-go:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, steps int64) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "task-in-go-"); err != nil {
			return err
		}
	}
	if err := tokenizer.WriteWordLevel(filepath.Join(dir, "tokenizer"), words()); err != nil {
		return err
	}
	file := filepath.Join(dir, "team.yaml") // paths in the configuration start from its folder
	cfg, err := config.Parse(file, team, nil)
	if err != nil {
		return err
	}
	t, err := newMeasures(cfg.Run.Seed, cfg.Eval.Queries)
	if err != nil {
		return err
	}
	steps = cmp.Or(steps, cfg.Run.Steps)
	before, err := train(ctx, file, t, 0) // the cold start alone
	if err != nil {
		return err
	}
	after, err := train(ctx, file, t, steps)
	if err != nil {
		return err
	}
	fmt.Printf("the run is in %s\nheld-out accuracy %.3f -> %.3f\n", cfg.RunDir(), before, after)
	return nil
}

// train continues the run up to a step and returns the team's held-out accuracy after it.
func train(ctx context.Context, file string, t *measures, steps int64) (accuracy float64, err error) {
	cfg, err := config.Parse(file, team, []string{fmt.Sprintf("run.steps=%d", steps)})
	if err != nil {
		return 0, err
	}
	if err := trainer.Train(context.Background(), cfg, trainer.TrainOptions{Task: t, Observer: progress{}, Resume: steps > 0, Stop: ctx.Done()}); err != nil {
		return 0, err
	}
	e, err := trainer.Evaluate(ctx, cfg, trainer.EvaluateOptions{CheckpointOptions: trainer.CheckpointOptions{Task: t}})
	if err != nil {
		return 0, err
	}
	return e.Accuracy()
}

// progress is an observer that prints one line for each step.
type progress struct{ metrics.Observers }

func (progress) Note(n metrics.Note) {
	if n.Severity == metrics.Warning {
		fmt.Println("warning:", n.Agent, n.Text)
	}
}

func (progress) Report(r metrics.Record) {
	switch r.Kind {
	case metrics.KindColdStart:
		fmt.Printf("%-8s cold start: loss %.3f\n", r.Agent, r.Values[metrics.Loss])
	case metrics.KindStep:
		fmt.Printf("%-8s step %2d: mean reward %.3f\n", r.Agent, r.Step, r.Values[metrics.RewardMean])
	}
}
