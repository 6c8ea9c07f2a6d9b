package main

import (
	"errors"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// fileFlag is the configuration of a command: mgrpo train team.yaml, or mgrpo train -c team.yaml.
type fileFlag struct {
	File   string   `arg:"" optional:"" name:"FILE" help:"Configuration (docs/config.md)."`
	Config string   `short:"c" placeholder:"FILE" help:"The same as a flag."`
	Set    []string `sep:"none" placeholder:"KEY=VALUE" help:"Override a key, such as run.steps=3. May be repeated."`
}

// Validate is called by kong before the command runs.
func (f fileFlag) Validate() error {
	if f.File != "" && f.Config != "" {
		return errors.New("the configuration is given twice, as FILE and with -c: keep one")
	}
	return nil
}

// given says whether the command line names a configuration.
func (f fileFlag) given() bool { return f.File != "" || f.Config != "" }

func (f fileFlag) load() (*config.Config, error) { return config.Load(f.File+f.Config, f.Set) }

// configFlags are shared by every command that cannot do without a configuration.
type configFlags struct{ fileFlag }

// Validate is called by kong before the command runs.
func (f configFlags) Validate() error {
	if !f.given() {
		return errors.New("name the configuration, such as team.yaml; `mgrpo init` writes one to start from")
	}
	return f.fileFlag.Validate()
}
