// Package hub finds models in the local cache of the Hugging Face Hub, where `hf download` puts them. It downloads
// nothing.
//
// The cache has a folder models--ORG--NAME for each model: refs/REVISION has the name of a branch's or tag's commit, main unless
// another is named, and snapshots/COMMIT has the files (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
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
	nameForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._/+-]*)?$`)
	commitForm = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// IsName reports whether text has the form of a model's name on the Hub: ORG/NAME, or ORG/NAME@REVISION with a branch, a tag or a
// commit of 40 digits.
func IsName(text string) bool {
	model, _, _ := strings.Cut(text, "@")
	return len(text) <= 200 && nameForm.MatchString(text) && !strings.Contains(model, "--") && !strings.Contains(text, "..")
}

// Split returns the model and the revision of a name, "" if it has none.
func Split(name string) (model, revision string) {
	model, revision, _ = strings.Cut(name, "@")
	return model, revision
}

// Find returns the folder or file of a model: path if it exists, else the snapshot of the Hub's model name, of main unless the
// name has a revision. The error says how to download it.
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
	model, revision := Split(name)
	pinned := revision != ""
	if !pinned {
		revision = "main"
	}
	snapshot, err := snapshotOf(filepath.Join(cache, "models--"+strings.ReplaceAll(model, "/", "--")), revision)
	if errors.Is(err, fs.ErrNotExist) {
		download := "hf download " + model
		if pinned {
			download += " --revision " + revision
		}
		return "", missing(fmt.Sprintf("%s is neither a folder nor a file (%s) nor in the Hugging Face cache (%s); download it with: %s", name, path, cache, download))
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

// snapshotOf is the snapshot of a commit, or of the one that refs has for a branch or tag.
func snapshotOf(model, revision string) (string, error) {
	commit := revision
	if !commitForm.MatchString(revision) {
		var err error
		if commit, err = commitOf(filepath.Join(model, "refs", filepath.FromSlash(revision))); err != nil {
			return "", err
		}
	}
	snapshot := filepath.Join(model, "snapshots", commit)
	_, err := os.Stat(snapshot)
	return snapshot, err
}

// commitOf reads the name of a commit from a file of refs.
func commitOf(ref string) (string, error) {
	const longest = 100 // bytes to read: a commit's name and white space
	f, err := os.Open(ref)
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
		return "", fmt.Errorf("%s: %.40q is not the name of a commit", ref, commit)
	}
	return commit, nil
}
