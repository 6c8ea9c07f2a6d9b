package main

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer"
)

type trainCmd struct {
	requiredConfig
	Resume bool `help:"Go on from the newest complete checkpoint of the run."`
}

func (c *trainCmd) Run(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	return train(ctx, cfg, trainer.Options{Resume: c.Resume})
}
