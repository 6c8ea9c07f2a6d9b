package main

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer"
)

type workerCmd struct {
	configFlags
	Agent  string `required:"" help:"Name of the agent to train here."`
	Resume bool   `help:"Go on from the newest complete checkpoint of the run."`
}

func (c *workerCmd) Run(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	return train(ctx, cfg, trainer.Options{Resume: c.Resume, Agents: []string{c.Agent}})
}
