// Package examples holds the templates of `mgrpo init`: configurations of this folder with their data.
package examples

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/config"
)

//go:embed own-task research-qwen3 reward-in-python
var files embed.FS

// folders maps the name of a template to its example. quickstart has no data: it is config.Example.
var folders = map[string]string{"own-task": "own-task", "research": "research-qwen3", "program": "reward-in-python"}

// moved rewrites the paths in an example for a folder of the user's. An example's runs are at the root of the repository,
// two folders up. Tests put the tokenizer of Qwen3 there, without the model's weights.
var moved = strings.NewReplacer("../../build/qwen3-tokenizer", "Qwen/Qwen3-0.6B", "../../", "")

// Write writes a template's configuration to file and its other files into the same folder, and returns the paths of the
// written files. If one of the files exists, Write returns an error and writes none.
func Write(template, file string) (written []string, err error) {
	contents, err := contents(template, file)
	if err != nil {
		return nil, err
	}
	name, err := nameOf(template, file)
	if err != nil {
		return nil, err
	}
	contents[file] = named(contents[file], name)
	for name := range contents {
		if _, err := os.Lstat(name); err == nil {
			return nil, fmt.Errorf("%s is there already and is left as it is: name another file, in a folder of its own", name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for name, text := range contents {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return written, err
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return written, err
		}
		written = append(written, name)
	}
	return written, nil
}

// validName matches the values that run.name may have.
var validName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}$`)

// nameOf returns the name for the run of a configuration file: the name of its folder, or the template's name if a run
// cannot have the folder's name.
func nameOf(template, file string) (string, error) {
	whole, err := filepath.Abs(file)
	if folder := filepath.Base(filepath.Dir(whole)); err == nil && validName.MatchString(folder) {
		return folder, nil
	}
	return template, err
}

// runName matches the name of the run in a configuration, and the folder with that name.
var runName = regexp.MustCompile(`(?m)^(  name: |  dir: runs/)([\w-]+)( +#|$)`)

// named returns a configuration with the run's name replaced. Comments on the same line keep their column.
func named(text []byte, name string) []byte {
	return runName.ReplaceAllFunc(text, func(line []byte) []byte {
		m := runName.FindSubmatch(line)
		if len(m[3]) == 0 {
			return append(slices.Clone(m[1]), name...)
		}
		return fmt.Appendf(nil, "%s%-*s #", m[1], len(m[2])+len(m[3])-2, name)
	})
}

// contents returns a template's files by the paths that Write gives them.
func contents(template, file string) (map[string][]byte, error) {
	if template == "quickstart" {
		return map[string][]byte{file: []byte(config.Example())}, nil
	}
	folder, ok := folders[template]
	if !ok {
		return nil, fmt.Errorf("there is no template %q", template)
	}
	out := map[string][]byte{}
	err := fs.WalkDir(files, folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Base(name) == "README.md" {
			return err
		}
		text, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		below := strings.TrimPrefix(name, folder+"/")
		if below == "team.yaml" {
			out[file] = []byte(moved.Replace(string(text)))
			return nil
		}
		out[filepath.Join(filepath.Dir(file), filepath.FromSlash(below))] = text
		return nil
	})
	return out, err
}
