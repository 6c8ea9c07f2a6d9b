package main

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer"
)

type trainCmd struct {
	requiredConfig
	Resume bool   `help:"Continue from the newest complete checkpoint of the run."`
	Listen string `placeholder:"[HOST:]PORT" help:"Show the run at http://HOST:PORT/live while it lasts. Without HOST: 127.0.0.1. The same as --set health.address."`
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
	return train(ctx, cfg, trainer.Options{Resume: c.Resume})
}
