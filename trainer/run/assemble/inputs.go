package assemble

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// Files that a run reads: their checks, their digests and their paths.

// CheckFiles checks the files and programs that an agent's worker opens only after it has loaded its
// weights: the prompt, corpora of tools, demonstrations, and the program that holds the
// conversations. The error names every missing file or program.
func CheckFiles(cfg *config.Config, a *config.Agent) error {
	var missing config.Errors
	files := agentFiles(cfg, a)
	for _, key := range slices.Sorted(maps.Keys(files)) {
		if files[key] == "" {
			continue
		}
		if _, err := os.Stat(files[key]); err != nil {
			missing = append(missing, cfg.Fault(key, err))
		}
	}
	if p := cfg.Task.Program; a.IsMain() && len(p.Command) > 0 {
		if _, err := gateway.NewPrograms(gateway.ProgramOptions{Command: p.Command, Dir: cfg.Resolve(p.Dir)}); err != nil {
			missing = append(missing, cfg.Fault("task.program.command", err))
		}
	}
	return missing.Err()
}

// TaskFiles returns a digest of each of the task's files of questions, by key. Workers must have equal files: they look questions up
// by their number. Files that do not exist are left out, because a program may bring the task.
func TaskFiles(cfg *config.Config) (map[string]string, error) {
	return fileDigests(cfg, taskPaths(cfg))
}

// InputFiles returns a digest of each file and model that the training reads and no checkpoint contains, by key. It leaves out
// the file of held-out questions (see HeldOutDigest), and files that do not exist on this machine.
func InputFiles(cfg *config.Config) (map[string]string, error) {
	questions := taskPaths(cfg)
	delete(questions, "task.eval")
	digests, err := fileDigests(cfg, questions)
	if err != nil {
		return nil, err
	}
	for key, path := range inputPaths(cfg) {
		digest, err := sampleDigest(path)
		if err != nil {
			return nil, cfg.Fault(key, err)
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
	if questionsInFiles(cfg) {
		var err error
		if questions, err = fileDigest(cfg, "task.eval", cfg.Task.Eval); err != nil {
			return "", err
		}
	}
	h, e := sha256.New(), cfg.Eval
	fmt.Fprintln(h, e.Queries, e.Samples, e.Temperature, e.TopK, e.TopP, e.MinP, questions)
	return hex.EncodeToString(h.Sum(nil))[:digestLength], nil
}

// taskPaths returns the paths of the task's files of questions, by key.
func taskPaths(cfg *config.Config) map[string]config.Path {
	if !questionsInFiles(cfg) {
		return nil
	}
	paths := map[string]config.Path{"task.train": cfg.Task.Train, "task.eval": cfg.Task.Eval}
	for _, s := range cfg.Task.EvalSets {
		paths["task.eval_sets."+s.Name+".path"] = s.Path
	}
	return paths
}

// questionsInFiles reports whether the task's questions are in files.
func questionsInFiles(cfg *config.Config) bool {
	return cfg.Task.Kind == "jsonl" || cfg.Task.Kind == "gsm8k"
}

// agentFiles returns the paths of the files that an agent reads in addition to its model, by key: its prompt, the corpora of its tools,
// and the demonstrations of its cold start. A path that is not configured may be "".
func agentFiles(cfg *config.Config, a *config.Agent) map[string]string {
	files := map[string]string{"agents." + a.Name + ".prompt": cfg.Resolve(a.Prompt)}
	for _, name := range cfg.ToolsOf(a) {
		if search, ok := cfg.Tool(name).(*config.Search); ok {
			files["tools."+name+".corpus"] = cfg.Resolve(search.Corpus)
		}
	}
	if from := cfg.ColdStart.Demonstrations; cfg.ColdStarts(a) && from != "task" {
		files["cold_start.demonstrations"] = cfg.Resolve(from)
	}
	return files
}

// inputPaths returns the paths of the inputs by key; "" if a model is missing.
func inputPaths(cfg *config.Config) map[string]string {
	paths := map[string]string{"task.judge.prompt": cfg.Resolve(cfg.Task.Judge.Prompt)}
	for _, name := range cfg.AgentNames() {
		a := cfg.Agent(name)
		key := "agents." + name
		maps.Copy(paths, agentFiles(cfg, a))
		if m := a.Model.Module; m != nil {
			paths[key+".model.torchscript"] = cfg.Resolve(m.TorchScript)
		}
		if a.Adapts() || cfg.HasKL(a) && a.Reference == "" { // otherwise the weights come from the checkpoint
			paths[key+".model"], _ = cfg.Find(a.Model.Path)
		}
		paths[key+".reference"], _ = cfg.Find(a.Reference)
	}
	return paths
}

const digestLength = 16 // enough to distinguish the files of one run

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

// fileDigest returns the digest of the file at path, or "" if it does not exist. key is the configuration key for errors.
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

// sampleDigest returns a digest of the name, the size and samples of a file. For a folder, it includes its .safetensors, .json
// and .jinja files. The digest is "" if there is no file. Files of up to a MiB are read completely.
func sampleDigest(path string) (string, error) {
	files := []string{path}
	if entries, err := os.ReadDir(path); err == nil {
		files = nil
		for _, e := range entries {
			if slices.Contains([]string{".safetensors", ".json", ".jinja"}, filepath.Ext(e.Name())) {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	h := sha256.New()
	found := false
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		found = true
		fmt.Fprintln(h, filepath.Base(name), info.Size())
		if err := writeSample(h, name, info.Size()); err != nil {
			return "", err
		}
	}
	if !found {
		return "", nil
	}
	return hex.EncodeToString(h.Sum(nil))[:digestLength], nil
}

// writeSample writes blocks of a file at equal distances, from the first to the last.
func writeSample(w io.Writer, name string, size int64) error {
	const blocks, length = 256, 4096
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if size <= blocks*length {
		_, err = io.Copy(w, f)
		return err
	}
	for i := range int64(blocks) {
		at := (size - length) / (blocks - 1) * i
		if i == blocks-1 {
			at = size - length
		}
		if _, err := io.Copy(w, io.NewSectionReader(f, at, length)); err != nil {
			return err
		}
	}
	return nil
}
