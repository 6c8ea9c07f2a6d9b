package main

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// configFlags are shared by every command that reads a configuration.
type configFlags struct {
	Config string   `short:"c" required:"" placeholder:"FILE" help:"Configuration (docs/config.md)."`
	Set    []string `sep:"none" placeholder:"KEY=VALUE" help:"Override a key, such as run.steps=3. May be repeated."`
}

func (f configFlags) load() (*config.Config, error) { return config.Load(f.Config, f.Set) }

type trainCmd struct {
	configFlags
	Resume bool `help:"Go on from the newest complete checkpoint of the run."`
}

func (c *trainCmd) Run(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	return train(ctx, cfg, trainer.Options{Resume: c.Resume})
}
