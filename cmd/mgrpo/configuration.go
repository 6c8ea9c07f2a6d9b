package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// optionalConfig names the configuration of a command that also works without one: mgrpo doctor team.yaml, or -c
// team.yaml.
type optionalConfig struct {
	File   string   `arg:"" optional:"" name:"FILE" help:"Configuration file (docs/config.md)."`
	Config string   `short:"c" placeholder:"FILE" help:"The configuration, in place of the argument FILE."`
	Set    []string `sep:"none" placeholder:"KEY=VALUE" help:"Override a key, such as run.steps=3. May be repeated."`
}

// Validate checks the options. kong calls it before the command runs.
func (f optionalConfig) Validate() error {
	if f.File != "" && f.Config != "" {
		return errors.New("the configuration is given twice, as FILE and with -c: keep one")
	}
	return nil
}

// given reports whether the command line names a configuration.
func (f optionalConfig) given() bool { return f.File != "" || f.Config != "" }

func (f optionalConfig) load() (*config.Config, error) {
	name := f.File + f.Config
	cfg, err := config.Load(name, f.Set)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w; mgrpo init %s writes one to start from", err, name)
	case errors.Is(err, syscall.EISDIR):
		files, _ := filepath.Glob(filepath.Join(name, "*.yaml"))
		err = fmt.Errorf("%w: name the configuration in it, such as %s", err, append(files, filepath.Join(name, "team.yaml"))[0])
	}
	return cfg, err
}

// requiredConfig names the configuration of a command that needs one: mgrpo train team.yaml.
type requiredConfig struct{ optionalConfig }

// Validate checks the options. kong calls it before the command runs.
func (f requiredConfig) Validate() error {
	if !f.given() {
		return errors.New("name the configuration, such as team.yaml; `mgrpo init` writes one to start from")
	}
	return f.optionalConfig.Validate()
}
