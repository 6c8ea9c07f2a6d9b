package assemble

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// TaskFiles returns a digest of each of the task's files of questions, by key. Workers must have equal files: they look questions up
// by their number. Files that do not exist are left out, because a program may bring the task.
func TaskFiles(cfg *config.Config) (map[string]string, error) {
	return fileDigests(cfg, taskPaths(cfg))
}

// taskPaths returns the paths of the task's files of questions, by key.
func taskPaths(cfg *config.Config) map[string]config.Path {
	if !inFiles(cfg) {
		return nil
	}
	paths := map[string]config.Path{"task.train": cfg.Task.Train, "task.eval": cfg.Task.Eval}
	for _, s := range cfg.Task.EvalSets {
		paths["task.eval_sets."+s.Name+".path"] = s.Path
	}
	return paths
}

// fileDigests returns the digests of the existing files among paths.
func fileDigests(cfg *config.Config, paths map[string]config.Path) (map[string]string, error) {
	digests := map[string]string{}
	for key, path := range paths {
		digest, err := fileDigest(cfg, key, path)
		if err != nil {
			return nil, err
		}
		if digest != "" {
			digests[key] = digest
		}
	}
	return digests, nil
}

// HeldOutDigest returns a digest of the held-out questions that decide which version is best, and of the settings of evaluations.
func HeldOutDigest(cfg *config.Config) (string, error) {
	questions := ""
	if inFiles(cfg) {
		var err error
		if questions, err = fileDigest(cfg, "task.eval", cfg.Task.Eval); err != nil {
			return "", err
		}
	}
	h, e := sha256.New(), cfg.Eval
	fmt.Fprintln(h, e.Queries, e.Samples, e.Temperature, e.TopK, e.TopP, e.MinP, questions)
	return hex.EncodeToString(h.Sum(nil))[:digestLength], nil
}

// inFiles reports whether the task's questions are in files.
func inFiles(cfg *config.Config) bool { return cfg.Task.Kind == "jsonl" || cfg.Task.Kind == "gsm8k" }

const digestLength = 16 // digests tell files of one run apart

// fileDigest returns the digest of the file that a key names, or "" if the file does not exist.
func fileDigest(cfg *config.Config, key string, path config.Path) (string, error) {
	f, err := durable.Digest(cfg.Resolve(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", cfg.Fault(key, err)
	}
	return f.SHA256[:digestLength], nil
}
