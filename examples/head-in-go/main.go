// Command head-in-go trains the quickstart's team with a value head on the planner, written with gotch.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/mgrpo/mgrpo/bindings/torch/gotchx"
	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// settings change the quickstart: a shorter cold start, and each trajectory trains once, so the
// head is measured on trajectories that are new to it.
var settings = []string{
	"run.name=head-in-go", "run.dir=run", "run.checkpoint_every=0", "eval.every=0", "grpo.epochs=1", "grpo.minibatches=8",
	"agents.planner.optimizer.decay_steps=30", "agents.researcher.optimizer.decay_steps=30",
	"cold_start.queries=8192", "agents.planner.cold_start.steps=350", "agents.researcher.cold_start.steps=800",
}

func main() {
	trainer.ServeChild() // does not return in processes that a run starts itself
	dir := flag.String("dir", "", "folder for the run; absent: a temporary one")
	steps := flag.Int("steps", 16, "training steps")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dir, *steps); err != nil {
		fmt.Fprintln(os.Stderr, "head-in-go:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, steps int) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "head-in-go-"); err != nil {
			return err
		}
	}
	cfg, err := config.Parse(filepath.Join(dir, "team.yaml"), []byte(config.Example()), append(settings, fmt.Sprintf("run.steps=%d", steps)))
	if err != nil {
		return err
	}
	head := &valueHead{rate: 1e-2}
	opt := trainer.TrainOptions{Terms: map[string]term.Term{"planner": gotchx.NewTerm(head)}, Stop: ctx.Done()}
	if err := trainer.TrainAndReport(context.Background(), cfg, opt, os.Stdout); err != nil {
		return err
	}
	if err := printErrors(cfg.RunDir()); err != nil {
		return err
	}
	file := filepath.Join(cfg.RunDir(), "value-head.gt")
	if err := head.save(file); err != nil {
		return err
	}
	fmt.Println("the head is in", file)
	return nil
}

// printErrors prints the head's error in each of the planner's steps, from the run's records.
func printErrors(dir string) error {
	log, err := metrics.Read(dir)
	if err != nil {
		return err
	}
	for _, r := range log.Records {
		if r.Kind == metrics.KindStep && r.Agent == "planner" {
			fmt.Printf("step %2d: accuracy %.3f, squared error of the head %.4f, of the mean reward %.4f\n",
				r.Step, r.Values[metrics.Accuracy], r.Values[metrics.TermLoss], r.Values[metrics.TermPrefix+"mean"])
		}
	}
	return nil
}
