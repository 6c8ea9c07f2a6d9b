package assemble

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// InputFiles returns a digest of each file and model that the training reads and no checkpoint contains, by key. The file of
// held-out questions is left out (see HeldOutDigest), and so is what does not exist on this machine.
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

// sampleDigest returns a digest of the sizes and of samples of a file or, for a folder, of the weights and JSON files in it. It
// is "" if there is none. Files of up to a MiB are read completely.
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
		if err := sample(h, name, info.Size()); err != nil {
			return "", err
		}
	}
	if !found {
		return "", nil
	}
	return hex.EncodeToString(h.Sum(nil))[:digestLength], nil
}

// sample writes blocks of a file at equal distances, from the first to the last.
func sample(w io.Writer, name string, size int64) error {
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
