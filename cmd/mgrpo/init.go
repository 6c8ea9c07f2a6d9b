package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/mgrpo/mgrpo/examples"
)

type initCmd struct {
	File     string `arg:"" optional:"" name:"FILE" default:"team.yaml" help:"Configuration to write (${default}), or its folder. Data files go beside it."`
	Template string `default:"quickstart" enum:"quickstart,own-task,research,program" help:"Template to start from: ${enum}."`
}

func (initCmd) Help() string {
	return `Writes a commented configuration and its data files. All templates except quickstart use a model of the Hub, which
"hf download NAME" fetches.

    quickstart  two small random models and the built-in task; no download
    own-task    questions and answers in JSON lines, prompts, demonstrations
    research    a team that answers questions from a folder of Markdown
    program     a reward of your own, in Python`
}

func (c *initCmd) Run() error {
	if info, err := os.Stat(c.File); filepath.Ext(c.File) == "" && errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
		c.File = filepath.Join(c.File, "team.yaml")
	}
	written, err := examples.Write(c.Template, c.File)
	if err != nil {
		return err
	}
	all := c.File
	if more := len(written) - 1; more > 0 {
		all += fmt.Sprintf(" and %d more files in %s", more, filepath.Dir(c.File))
	}
	fmt.Printf("wrote %s; next:\n  mgrpo doctor %[2]s\n  mgrpo train %[2]s\n", all, shellWord(c.File))
	return nil
}

var plainWord = regexp.MustCompile(`^[\pL\pN_@%+=:,./][\pL\pN_@%+=:,./-]*$`)

// shellWord writes a path as one word of a shell command.
func shellWord(path string) string {
	if plainWord.MatchString(path) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
