package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/doctor"
	"github.com/mgrpo/mgrpo/trainer/show/console"
)

type workerCmd struct {
	requiredConfig
	Agent   string `required:"" placeholder:"NAME" help:"The agent to train here."`
	Machine int    `default:"0" placeholder:"N" help:"Number of this machine, if the agent has several. Machine 0 runs the worker; the others serve devices."`
	Resume  bool   `help:"Continue from the newest complete checkpoint of the run."`
}

func (workerCmd) Help() string {
	return `Exit status:

    0    the run is complete
    1    error
    75   stopped before the end; --resume continues from the newest checkpoint
    130  a second Ctrl-C or SIGTERM ended the worker at once

Causes of 75 are Ctrl-C, SIGTERM, a worker of the run that was stopped, and a GPU that needs a new process. Others are a
worker, a further machine or a server that samples that did not answer in time, and a lost process of a further device.
The scripts in deploy/ start a worker again if a signal killed it.`
}

func (c *workerCmd) Run(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if c.Machine != 0 {
		return serveMachine(ctx, cfg, c.Agent, c.Machine)
	}
	if cfg.Store.URL == "" && len(cfg.AgentNames()) > 1 { // reported before a memory plan is printed
		return errors.New("store.url is not set: agents in separate processes communicate through a Redis; mgrpo train runs all agents in one process")
	}
	return train(ctx, cfg, trainer.TrainOptions{Resume: c.Resume, Agents: []string{c.Agent}})
}

// serveMachine offers this machine's devices to the worker of an agent on several machines.
func serveMachine(ctx context.Context, cfg *config.Config, agent string, machine int) error {
	plan, err := doctor.PreflightMachine(cfg, agent, machine)
	fmt.Print(plan)
	if err != nil {
		return err
	}
	ctx, stop, done := handleSignals(ctx)
	defer done()
	return trainer.ServeMachine(ctx, cfg, trainer.MachineOptions{Agent: agent, Machine: machine, Stop: stop,
		Observer: console.New(os.Stdout, cfg, []string{agent})})
}
