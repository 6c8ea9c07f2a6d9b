package check

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// manifest is the manifest of a checkpoint.
type manifest struct {
	Step   int64       `json:"step"`
	Agents []agentPart `json:"agents"`
}

type agentPart struct {
	Name   string     `json:"name"`
	Files  []file     `json:"files"`
	Ledger ledgerMark `json:"ledger"`
}

type file struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

type ledgerMark struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

func stepDir(dir string, step int64) string {
	return filepath.Join(dir, "checkpoints", fmt.Sprintf("step-%06d", step))
}

// manifests checks the last checkpoint of every agent. All agents must have the same manifest.
// The files must have the manifest's digests and equal the uninterrupted run's files.
func (f *Findings) manifests(s Settings) {
	_, want, err := readManifest(s.Whole, s.Steps)
	if err != nil {
		f.void("the uninterrupted run: %v", err)
		return
	}
	f.Equal = true
	var first []byte
	for _, agent := range s.Agents {
		data, m, err := readManifest(s.Dirs[agent], s.Steps)
		if err != nil {
			f.Equal = false
			f.broken("%s: %v", agent, err)
			continue
		}
		if first == nil {
			first = data
		}
		if !bytes.Equal(first, data) {
			f.broken("%s: its manifest differs from %s's", agent, s.Agents[0])
		}
		part, expected := m.part(agent), want.part(agent)
		f.onDisk(s.Dirs[agent], agent, m.Step, part)
		if why := differ(part, expected); why != "" {
			f.Equal = false
			f.broken("%s: %s", agent, why)
		}
	}
}

// differ compares an agent's part of two checkpoints.
func differ(got, want agentPart) string {
	if len(want.Files) == 0 || len(got.Files) != len(want.Files) {
		return fmt.Sprintf("its checkpoint has %d files, the uninterrupted run's %d", len(got.Files), len(want.Files))
	}
	tensors := 0
	for i, w := range want.Files {
		if got.Files[i] != w {
			return fmt.Sprintf("%s is not the uninterrupted run's %s", got.Files[i].Path, w.Path)
		}
		if strings.HasSuffix(w.Path, ".safetensors") || w.Path == "optimizer.state" {
			tensors++
		}
	}
	if tensors < 2 {
		return "its checkpoint has no weights or no optimizer"
	}
	if got.Ledger != want.Ledger {
		return "its ledger is not the uninterrupted run's"
	}
	return ""
}

// onDisk compares an agent's files with the manifest.
func (f *Findings) onDisk(dir, agent string, step int64, part agentPart) {
	for _, x := range part.Files {
		path := filepath.Join(stepDir(dir, step), agent, filepath.FromSlash(x.Path))
		if size, sum, err := digest(path); err != nil || size != x.Size || sum != x.SHA256 {
			f.broken("%s: the size or digest of %s differs from the manifest (%v)", agent, path, err)
		}
	}
	path := ledgerPath(dir, agent)
	if size, sum, err := digest(path); err != nil || size != part.Ledger.Size || sum != part.Ledger.SHA256 {
		f.broken("%s: the size or digest of %s differs from the manifest (%v)", agent, path, err)
	}
}

func (m manifest) part(agent string) agentPart {
	for _, a := range m.Agents {
		if a.Name == agent {
			return a
		}
	}
	return agentPart{}
}

func readManifest(dir string, step int64) ([]byte, manifest, error) {
	data, err := os.ReadFile(filepath.Join(stepDir(dir, step), "manifest.json"))
	if err != nil {
		return nil, manifest{}, err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, m, fmt.Errorf("the manifest of step %d: %w", step, err)
	}
	if m.Step != step {
		return nil, m, fmt.Errorf("the manifest of step %d is of step %d", step, m.Step)
	}
	return data, m, nil
}

func digest(path string) (size int64, sum string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, "", err
	}
	s := sha256.Sum256(data)
	return int64(len(data)), hex.EncodeToString(s[:]), nil
}
