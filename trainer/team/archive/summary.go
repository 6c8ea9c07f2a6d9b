package archive

import (
	"os"
	"path/filepath"
	"slices"
)

// Summary describes a step's folder. The sizes of the files were checked, but not their digests.
type Summary struct {
	Name     string
	Manifest Manifest // with its results, if it was evaluated; empty if it cannot be read (see Fault)
	Fault    error    // reason why the checkpoint is not complete; nil: it is complete
	Agents   []string // agents whose folders exist or, for hosted models, whose ledgers exist
	Bytes    int64    // size of all files
}

// Summaries returns all steps' folders, ascending.
func (c Checkpoints) Summaries() ([]Summary, error) {
	steps, err := c.steps()
	if err != nil {
		return nil, err
	}
	out := make([]Summary, len(steps))
	for i, step := range steps {
		out[i] = c.summary(step)
	}
	return out, nil
}

func (c Checkpoints) summary(step int64) Summary {
	dir := c.StepDir(step)
	s := Summary{Name: stepName(step)}
	if s.Manifest, s.Fault = readManifest(dir); s.Fault == nil {
		s.Fault = s.Manifest.checkSizes(dir, c.Agents)
	}
	if evaluated, err := readResults(dir, s.Manifest); err == nil {
		s.Manifest.Results, s.Manifest.Digest = evaluated.Results, evaluated.Digest
	}
	entries, _ := os.ReadDir(dir) // a folder that cannot be read counts as empty
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.IsDir() && e.Name()[0] != '.' {
			s.Agents = append(s.Agents, e.Name())
		}
	}
	for _, a := range s.Manifest.Agents {
		if _, err := os.Lstat(ledgerPath(c.Ledgers, a.Name)); a.Endpoint != nil && c.Ledgers != "" && err == nil {
			s.Agents = append(s.Agents, a.Name)
		}
	}
	slices.Sort(s.Agents)
	if at, err := filepath.EvalSymlinks(dir); err == nil {
		dir = at // WalkDir does not follow a link
	}
	_ = filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				s.Bytes += info.Size()
			}
		}
		return nil
	})
	return s
}
