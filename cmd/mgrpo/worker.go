package main

import (
	"context"
	"errors"

	"github.com/mgrpo/mgrpo/trainer"
)

type workerCmd struct {
	requiredConfig
	Agent  string `required:"" help:"Name of the agent to train here."`
	Resume bool   `help:"Go on from the newest complete checkpoint of the run."`
}

func (workerCmd) Help() string {
	return `Exit status: 0 when the run is complete; 75 when it was stopped, by Ctrl-C, SIGTERM or another worker that was
told to stop, when a worker that it waited for did not come, or when its GPU needs a new process: --resume goes on
from the newest checkpoint; 130 when a second signal broke it off; 1 for an error. A worker that dies of a signal is
started again by whoever started it: deploy/ has such scripts.`
}

func (c *workerCmd) Run(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if cfg.Store.URL == "" && len(cfg.AgentNames()) > 1 { // said before a memory plan is printed
		return errors.New("store.url is not set: agents in processes of their own need a Redis to meet in; mgrpo train runs all of them in one process")
	}
	return train(ctx, cfg, trainer.Options{Resume: c.Resume, Agents: []string{c.Agent}})
}
