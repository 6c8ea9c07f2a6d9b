package main

import (
	"context"
	"errors"
	"os"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/doctor"
)

type doctorCmd struct {
	Config string   `short:"c" placeholder:"FILE" help:"Configuration to check this machine for."`
	Set    []string `sep:"none" placeholder:"KEY=VALUE" help:"Override a key. May be repeated."`
}

func (doctorCmd) Help() string {
	return `Looks at LibTorch, CPU, memory, GPUs, Redis and disk and, with a configuration, at its task, its models and the
memory each agent will need. Exit status 1 if something would stop a run.`
}

func (c *doctorCmd) Run(ctx context.Context) (err error) {
	o := doctor.Options{CPUOnly: cpuOnly}
	if c.Config != "" {
		if o.Config, err = config.Load(c.Config, c.Set); err != nil {
			return err
		}
	}
	if doctor.Write(os.Stdout, doctor.Examine(ctx, o)) {
		return errors.New("what is marked fail above would stop a run")
	}
	return nil
}
