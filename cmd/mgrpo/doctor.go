package main

import (
	"context"
	"errors"
	"os"

	"github.com/mgrpo/mgrpo/trainer/doctor"
)

type doctorCmd struct{ optionalConfig }

func (doctorCmd) Help() string {
	return `Looks at LibTorch, CPU, memory, GPUs, Redis and disk and, with a configuration, at its task, its models and the
memory each agent will need. Exit status 1 if something would stop a run.`
}

func (c *doctorCmd) Run(ctx context.Context) (err error) {
	o := doctor.Options{CPUOnly: cpuOnly}
	if c.given() {
		if o.Config, err = c.load(); err != nil {
			return err
		}
	}
	if doctor.Write(os.Stdout, doctor.Examine(ctx, o)) {
		return errors.New("a run would stop at the lines marked fail above")
	}
	return nil
}
