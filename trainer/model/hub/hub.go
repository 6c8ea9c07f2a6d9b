// Package hub finds models in the local cache of the Hugging Face Hub, where `hf download` puts them. It downloads nothing.
//
// The cache has a folder models--ORG--NAME for each model. Its file refs/REVISION holds the commit of a branch or tag; the
// default is main. Its folder snapshots/COMMIT holds the files
// (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
//
// This package is private and changes without notice; docs/library.md lists the public ones.
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

// Split returns the model and the revision of a name; the revision is "" if the name has none.
func Split(name string) (model, revision string) {
	model, revision, _ = strings.Cut(name, "@")
	return model, revision
}

// Find returns the folder or file of a model: path if it exists, otherwise the cached snapshot of the Hub's model name. The
// snapshot is of main unless the name has a revision. The error contains the command that downloads the model.
func Find(path, name string) (string, error) {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if !IsName(name) || strings.HasSuffix(name, ".gguf") {
		return "", notFoundError(path + ": there is no such folder or file")
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
		return "", notFoundError(fmt.Sprintf("%s is neither a folder nor a file (%s) nor in the Hugging Face cache (%s); download it with: %s", name, path,
			cache, download))
	}
	return snapshot, err
}

// notFoundError is the error text for a model that was not found. It states how to download the model.
type notFoundError string

func (m notFoundError) Error() string { return string(m) }

func (notFoundError) Is(target error) bool { return target == fs.ErrNotExist }

// cacheDir returns the cache folder of huggingface_hub, with the priority of environment variables that it uses. A value may begin with ~
// and name other variables, as in huggingface_hub.
func cacheDir() (string, error) {
	home, homeless := os.UserHomeDir()
	for _, v := range []struct{ name, below string }{{"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", ""}, {"HF_HOME", "hub"},
		{"XDG_CACHE_HOME", "huggingface/hub"}} {
		if dir := os.ExpandEnv(os.Getenv(v.name)); dir != "" {
			if rest, ok := strings.CutPrefix(dir, "~"); ok && (rest == "" || rest[0] == '/') && homeless == nil {
				dir = home + rest
			}
			return filepath.Join(dir, v.below), nil
		}
	}
	return filepath.Join(home, ".cache", "huggingface", "hub"), homeless
}

// snapshotOf returns the snapshot of a commit, or of the commit that refs holds for a branch or tag.
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

// commitOf reads the name of a commit from a file below refs.
func commitOf(ref string) (string, error) {
	const maxSize = 100 // bytes to read: a commit's name and white space
	f, err := os.Open(ref)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize))
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(text))
	if !commitForm.MatchString(commit) {
		return "", fmt.Errorf("%s holds %.40q, which is not the name of a commit", ref, commit)
	}
	return commit, nil
}
