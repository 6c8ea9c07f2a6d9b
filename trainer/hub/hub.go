// Package hub finds models in the local cache of the Hugging Face Hub, where `hf download` puts them. It downloads
// nothing.
//
// The cache has a folder models--ORG--NAME for each model: refs/main has the name of a commit, and snapshots/COMMIT has
// the files (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
package hub

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	nameForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)
	commitForm = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// IsName says whether text has the form of a model's name on the Hub, ORG/NAME.
func IsName(text string) bool {
	return len(text) <= 200 && nameForm.MatchString(text) && !strings.Contains(text, "--") && !strings.Contains(text, "..")
}

// Find returns the folder or file of a model: path if it exists, else the newest snapshot of the Hub's model name. The
// error says how to download it.
func Find(path, name string) (string, error) {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if !IsName(name) || strings.HasSuffix(name, ".gguf") {
		return "", missing(path + ": there is no such folder or file")
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	snapshot, err := newest(filepath.Join(cache, "models--"+strings.ReplaceAll(name, "/", "--")))
	if errors.Is(err, fs.ErrNotExist) {
		return "", missing(fmt.Sprintf("%s is neither a folder nor a file (%s) nor in the Hugging Face cache (%s); download it with: hf download %s", name, path, cache, name))
	}
	return snapshot, err
}

// missing is a model that is not there, in words that say what to do.
type missing string

func (m missing) Error() string { return string(m) }

func (missing) Is(target error) bool { return target == fs.ErrNotExist }

// cacheDir is the cache of huggingface_hub. The environment variables have the same priority as there.
func cacheDir() (string, error) {
	for _, v := range []struct{ name, below string }{{"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", ""}, {"HF_HOME", "hub"}, {"XDG_CACHE_HOME", "huggingface/hub"}} {
		if dir := os.Getenv(v.name); dir != "" {
			return filepath.Join(dir, v.below), nil
		}
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".cache", "huggingface", "hub"), err
}

// newest is the snapshot whose commit is in refs/main.
func newest(model string) (string, error) {
	const longest = 100 // bytes to read: a commit's name and white space
	f, err := os.Open(filepath.Join(model, "refs", "main"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, longest))
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(text))
	if !commitForm.MatchString(commit) {
		return "", fmt.Errorf("%s: %.40q is not the name of a commit", f.Name(), commit)
	}
	snapshot := filepath.Join(model, "snapshots", commit)
	_, err = os.Stat(snapshot)
	return snapshot, err
}
