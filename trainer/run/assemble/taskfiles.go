package assemble

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// TaskFiles returns a digest of each of the task's files of questions, by key. Workers must have equal files: they look questions up
// by their number. Files that do not exist are left out, because a program may bring the task.
func TaskFiles(cfg *config.Config) (map[string]string, error) {
	digests := map[string]string{}
	if cfg.Task.Kind != "jsonl" && cfg.Task.Kind != "gsm8k" {
		return digests, nil
	}
	files := map[string]config.Path{"task.train": cfg.Task.Train, "task.eval": cfg.Task.Eval}
	for _, s := range cfg.Task.EvalSets {
		files["task.eval_sets."+s.Name+".path"] = s.Path
	}
	for key, path := range files {
		switch digest, err := fileDigest(cfg.Resolve(path)); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, cfg.Fault(key, err)
		default:
			digests[key] = digest
		}
	}
	return digests, nil
}

// HeldOut returns a digest of the held-out questions that decide which version is best, and of the settings of evaluations.
func HeldOut(cfg *config.Config) (string, error) {
	files, err := TaskFiles(cfg)
	if err != nil {
		return "", err
	}
	h, e := sha256.New(), cfg.Eval
	fmt.Fprintln(h, e.Queries, e.Samples, e.Temperature, e.TopK, e.TopP, e.MinP, files["task.eval"])
	return hex.EncodeToString(h.Sum(nil)[:digestBytes]), nil
}

const digestBytes = 8 // digests tell files of one run apart

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:digestBytes]), nil
}
