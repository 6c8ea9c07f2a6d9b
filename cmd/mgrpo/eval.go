package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/show/console"
)

type evalCmd struct {
	requiredConfig
	Agent      string `placeholder:"NAME" help:"Run only this agent here, and the others on their servers with the same command and the run's Redis."`
	Checkpoint string `placeholder:"DIR" help:"Folder of a step, such as runs/NAME/checkpoints/step-000030; absent: the run's newest."`
	JSON       bool   `help:"Print the evaluation as JSON instead of tables."`
	Against    string `placeholder:"FILE" help:"Evaluation of the same questions (from --json). The difference is shown with its interval, paired by question."`
}

func (evalCmd) Help() string {
	return `Repeats the run's own evaluation of the checkpoint: the same rollouts with the same random numbers, and therefore the
same scores. Use --set for other questions and sampling, such as --set eval.queries=50 --set eval.temperature=0.

If each agent has its own server, run this command on each with --agent. The main agent's command prints the scores. The
run's own data in Redis does not change.`
}

func (c *evalCmd) Run(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	var against []score.Answers
	if c.Against != "" {
		if against, err = score.ReadAnswers(c.Against); err != nil {
			return err
		}
	}
	e, err := c.evaluate(ctx, cfg, against)
	if err != nil {
		return err
	}
	if !c.JSON {
		fmt.Print(e)
		return e.Err()
	}
	text, err := e.JSON()
	fmt.Printf("%s", text)
	return errors.Join(e.Err(), err)
}

func (c *evalCmd) evaluate(ctx context.Context, cfg *config.Config, against []score.Answers) (e trainer.Evaluation, err error) {
	progress := os.Stdout
	if c.JSON {
		progress = os.Stderr
	}
	var here []string
	if c.Agent != "" {
		here = []string{c.Agent}
	}
	terminal := console.New(progress, cfg, here)
	opt := trainer.EvaluateOptions{CheckpointOptions: trainer.CheckpointOptions{Checkpoint: c.Checkpoint, Observer: terminal}, Agents: here, Against: against}
	e, err = trainer.Evaluate(ctx, cfg, opt)
	terminal.Summary(nil) // without records it only clears the progress line
	return e, err
}
