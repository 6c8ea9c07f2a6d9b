package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// optionalConfig names the configuration of a command that also works without one: mgrpo doctor team.yaml.
type optionalConfig struct {
	File string   `arg:"" optional:"" name:"FILE" help:"Configuration file (docs/config.md)."`
	Set  []string `sep:"none" placeholder:"KEY=VALUE" help:"Override a key, such as run.steps=3. May be repeated."`
}

// given reports whether the command line names a configuration.
func (f optionalConfig) given() bool { return f.File != "" }

func (f optionalConfig) load() (*config.Config, error) {
	cfg, err := config.Load(f.File, f.Set)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w; mgrpo init %s writes one to start from", err, shellWord(f.File))
	case errors.Is(err, syscall.EISDIR):
		files, _ := filepath.Glob(filepath.Join(f.File, "*.yaml"))
		err = fmt.Errorf("%w: name the configuration in it, such as %s", err, append(files, filepath.Join(f.File, "team.yaml"))[0])
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
	return nil
}
