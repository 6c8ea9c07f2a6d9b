package main

import (
	"context"
	"fmt"
	"os"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
)

type trainCmd struct {
	requiredConfig
	Resume bool   `help:"Continue from the newest complete checkpoint of the run."`
	Listen string `placeholder:"[HOST:]PORT" help:"Show the run at http://HOST:PORT/live while it lasts. Without HOST: 127.0.0.1. Like --set health.address."`
}

func (c *trainCmd) Run(ctx context.Context) error {
	if c.Listen != "" {
		address, err := hostPort(c.Listen)
		if err != nil {
			return err
		}
		c.Set = append(c.Set, "health.address="+address)
	}
	cfg, err := c.load()
	if err != nil {
		return err
	}
	return train(ctx, cfg, trainer.TrainOptions{Resume: c.Resume})
}

// train trains agents, reports the run to the terminal and to the run's files, and lets signals stop it.
func train(ctx context.Context, cfg *config.Config, opt trainer.TrainOptions) error {
	ctx, stop, done := handleSignals(ctx)
	defer done()
	opt.Stop = stop
	err := trainer.TrainAndReport(ctx, cfg, opt, os.Stdout)
	if trainer.Resumable(err) {
		return fmt.Errorf("%w; continue with --resume", err)
	}
	return err
}
