package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer"
)

type evalCmd struct {
	requiredConfig
	Checkpoint string `placeholder:"DIR" help:"Folder of a step, such as runs/NAME/checkpoints/step-000030; absent: the run's newest."`
	Queries    int    `placeholder:"N" help:"Held-out queries, in place of eval.queries."`
	JSON       bool   `help:"Print the evaluation as JSON, in place of tables."`
	Samples    int    `placeholder:"N" help:"Rollouts of each, in place of eval.samples."`
}

func (evalCmd) Help() string {
	return `Plays the rollouts that the run itself plays when it evaluates this version, with the same random numbers, and so
gives the same figures. Other sampling than the run's: --set eval.temperature=0 and the like.`
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
	progress := os.Stdout
	if c.JSON {
		progress = os.Stderr
	}
	console := newConsole(progress, cfg, nil)
	opt := trainer.EvalOptions{Checkpoint: c.Checkpoint, Observer: console}
	if cfg.HasGateway() {
		server, err := serveHealth(cfg, nil)
		if err != nil {
			return err
		}
		defer server.Close()
		if opt.Gateway, err = mountGateway(cfg, server); err != nil {
			return err
		}
	}
	e, err := trainer.Evaluate(ctx, cfg, opt)
	console.Summary() // it has no records: this clears the progress line
	if err != nil {
		return err
	}
	if !c.JSON {
		fmt.Print(e)
		return e.Unknown()
	}
	text, err := e.JSON()
	if err != nil {
		return err
	}
	fmt.Printf("%s", text)
	return e.Unknown()
}
