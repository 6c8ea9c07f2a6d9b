package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/score"
)

type evalCmd struct {
	requiredConfig
	Agent      string `placeholder:"NAME" help:"The only agent here. The others are evaluated elsewhere by this command, as workers are: all meet in the run's Redis. Absent: all agents are here."`
	Checkpoint string `placeholder:"DIR" help:"Folder of a step, such as runs/NAME/checkpoints/step-000030; absent: the run's newest."`
	Queries    int    `placeholder:"N" help:"Held-out queries, in place of eval.queries."`
	JSON       bool   `help:"Print the evaluation as JSON, in place of tables."`
	Samples    int    `placeholder:"N" help:"Rollouts of each, in place of eval.samples."`
	Against    string `placeholder:"FILE" help:"An evaluation of the same questions, as --json prints it: the difference is shown, with its interval, paired by question."`
}

func (evalCmd) Help() string {
	return `Plays the rollouts that the run itself plays when it evaluates this version, with the same random numbers, and so
gives the same figures. Other sampling than the run's: --set eval.temperature=0 and the like.

Where each agent has a server, run it on each with --agent. The main agent's prints the scores; what the run itself has
in the Redis stays as it is.`
}

func (c *evalCmd) Run(ctx context.Context) error {
	for key, n := range map[string]int{"queries": c.Queries, "samples": c.Samples} {
		if n != 0 {
			c.Set = append(c.Set, "eval."+key+"="+strconv.Itoa(n))
		}
	}
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
	console := newConsole(progress, cfg, here)
	opt := trainer.CheckpointOptions{Agents: here, Checkpoint: c.Checkpoint, Observer: console, Against: against}
	if cfg.HasGateway() {
		server, err := serveHealth(cfg, here)
		if err != nil {
			return e, err
		}
		defer server.Close()
		if opt.Gateway, err = mountGateway(cfg, server); err != nil {
			return e, err
		}
	}
	e, err = trainer.Evaluate(ctx, cfg, opt)
	console.Summary(nil) // without records it only clears the progress line
	return e, err
}
