package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/run/doctor"
)

type doctorCmd struct {
	optionalConfig
	Agent   []string `placeholder:"NAME" help:"Check only the needs of this agent's worker on this machine. May be repeated."`
	Kernels bool     `help:"Instead, compare every kernel with float64, on every instruction set and GPU of this machine."`
}

func (doctorCmd) Help() string {
	return `Checks LibTorch, CPU, memory, GPUs, Redis and disk. With a configuration it also checks the task, the models and the
memory that each agent will need. With --agent it checks only the needs of one worker on its machine.

With --kernels it prints, for each kernel, instruction set and GPU, the largest difference from float64 as a fraction
of the largest value. It also prints the speed on small inputs in millions of values a second.

The exit status is 1 if a problem would stop a run.`
}

func (c *doctorCmd) Run(ctx context.Context) (err error) {
	if c.Kernels {
		failed, err := doctor.Kernels(ctx, os.Stdout)
		if err == nil && failed {
			err = errors.New("the kernels marked FAIL are wrong on this machine")
		}
		return err
	}
	o := doctor.Options{CPUOnly: cpuOnly}
	if c.given() {
		if o.Config, err = c.load(); err != nil {
			return err
		}
		for _, name := range c.Agent {
			if o.Config.Agent(name) == nil {
				return fmt.Errorf("--agent %s: the configuration has %s", name, strings.Join(o.Config.AgentNames(), ", "))
			}
		}
		o.Agents = c.Agent
	} else if len(c.Agent) > 0 {
		return errors.New("--agent names an agent of a configuration: name the configuration, too")
	}
	if doctor.Write(os.Stdout, doctor.Examine(ctx, o)) {
		return errors.New("a run would stop at the lines marked fail above")
	}
	return nil
}
