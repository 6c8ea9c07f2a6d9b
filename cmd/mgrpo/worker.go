package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/doctor"
)

type workerCmd struct {
	requiredConfig
	Agent   string `required:"" help:"Name of the agent to train here."`
	Machine int    `default:"0" placeholder:"N" help:"Number of this machine, if the agent has several. Machine 0 runs the worker, and the others lend it their devices."`
	Resume  bool   `help:"Go on from the newest complete checkpoint of the run."`
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
	if c.Machine != 0 {
		return serveMachine(ctx, cfg, c.Agent, c.Machine)
	}
	if cfg.Store.URL == "" && len(cfg.AgentNames()) > 1 { // reported before a memory plan is printed
		return errors.New("store.url is not set: agents in separate processes need a Redis to meet in; mgrpo train runs all of them in one process")
	}
	return train(ctx, cfg, trainer.Options{Resume: c.Resume, Agents: []string{c.Agent}})
}

// serveMachine offers this machine's devices to the worker of an agent on several machines.
func serveMachine(ctx context.Context, cfg *config.Config, agent string, machine int) error {
	plan, err := doctor.PreflightMachine(cfg, agent, machine)
	fmt.Print(plan)
	if err != nil {
		return err
	}
	ctx, stop, done := untilStopped(ctx)
	defer done()
	return trainer.ServeMachine(ctx, cfg, trainer.MachineOptions{Agent: agent, Machine: machine, Observer: newConsole(os.Stdout, cfg, []string{agent}), Stop: stop})
}
