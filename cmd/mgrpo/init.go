package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mgrpo/mgrpo/trainer/config"
)

type initCmd struct {
	File string `arg:"" optional:"" default:"team.yaml" help:"File to write (${default})."`
}

func (c *initCmd) Run() (err error) {
	f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already and is left as it is: name another file", c.File)
	}
	if err != nil {
		return err
	}
	if _, err = f.WriteString(config.Example()); err != nil {
		return errors.Join(err, f.Close())
	}
	if err = f.Close(); err != nil {
		return err
	}
	fmt.Printf("wrote %s; next: mgrpo doctor %s && mgrpo train %s\n", c.File, c.File, c.File)
	return nil
}
