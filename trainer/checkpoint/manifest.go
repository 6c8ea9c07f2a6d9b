package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Manifest names everything a step's checkpoint consists of.
type Manifest struct {
	Run          string          `json:"run"`
	Step         int64           `json:"step"`
	ConfigDigest string          `json:"config_digest"`          // of the run's configuration
	CPUFeatures  string          `json:"cpu_features,omitempty"` // bit-equality is promised for equal ones
	Agents       []AgentFiles    `json:"agents"`
	Ledger       json.RawMessage `json:"ledger,omitempty"` // where the run stood, as JSON
	Digest       string          `json:"digest"`           // SHA-256 of this file with an empty digest; set when written
}

// AgentFiles lists the files in one agent's folder.
type AgentFiles struct {
	Name  string `json:"name"`
	Files []File `json:"files"`
}

const maxManifestBytes = 16 << 20

// encode returns the file's bytes, digest included.
func (m Manifest) encode() ([]byte, error) {
	m.Digest = ""
	plain, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(plain)
	m.Digest = hex.EncodeToString(sum[:])
	data, err := json.MarshalIndent(m, "", "  ")
	return append(data, '\n'), err
}

// readManifest reads and checks manifest.json itself: encoding it anew must give the same bytes.
func readManifest(stepDir string) (Manifest, error) {
	data, err := readSmallFile(filepath.Join(stepDir, manifestFile), maxManifestBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, errors.New("unfinished: it has no manifest.json")
	}
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, fmt.Errorf("%s is damaged: %w", manifestFile, err)
	}
	if again, err := m.encode(); err != nil || !bytes.Equal(again, data) {
		return Manifest{}, fmt.Errorf("%s is damaged: its digest does not match", manifestFile)
	}
	for _, a := range m.Agents {
		if !agentName.MatchString(a.Name) {
			return Manifest{}, fmt.Errorf("%s: agent name %q", manifestFile, a.Name)
		}
		for _, f := range a.Files {
			if !filepath.IsLocal(f.Path) || f.Size < 0 {
				return Manifest{}, fmt.Errorf("%s: file %q leaves the folder", manifestFile, f.Path)
			}
		}
	}
	return m, nil
}

// checkSizes compares the sizes of all files with the manifest.
func (m Manifest) checkSizes(stepDir string) error {
	for _, a := range m.Agents {
		for _, f := range a.Files {
			info, err := os.Lstat(filepath.Join(stepDir, a.Name, f.Path))
			if err != nil {
				return err
			}
			if !info.Mode().IsRegular() || info.Size() != f.Size {
				return fmt.Errorf("%s/%s has %d bytes, the manifest says %d", a.Name, f.Path, info.Size(), f.Size)
			}
		}
	}
	return nil
}

// Verify reads a step's checkpoint from end to end and compares it with its manifest. The error names
// every file that is missing, cut short or altered.
func Verify(stepDir string) (Manifest, error) {
	m, err := readManifest(stepDir)
	if err != nil {
		return Manifest{}, fmt.Errorf("checkpoint: %s: %w", stepDir, err)
	}
	var faults []error
	for _, a := range m.Agents {
		for _, f := range a.Files {
			if err := f.verify(filepath.Join(stepDir, a.Name)); err != nil {
				faults = append(faults, fmt.Errorf("%s/%s: %w", a.Name, f.Path, err))
			}
		}
	}
	if len(faults) > 0 {
		return Manifest{}, fmt.Errorf("checkpoint: %s: %w", stepDir, oneLine(faults))
	}
	return m, nil
}

func (f File) verify(dir string) error {
	path := filepath.Join(dir, f.Path)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("is missing")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	case info.Size() != f.Size:
		return fmt.Errorf("has %d bytes, the manifest says %d", info.Size(), f.Size)
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, file); err != nil {
		return err
	}
	if sum := digest.Sum(nil); hex.EncodeToString(sum) != f.SHA256 {
		return errors.New("is altered: its SHA-256 is not the manifest's")
	}
	return nil
}

// Agent returns the files of one agent.
func (m Manifest) Agent(name string) (AgentFiles, bool) {
	i := slices.IndexFunc(m.Agents, func(a AgentFiles) bool { return a.Name == name })
	if i < 0 {
		return AgentFiles{}, false
	}
	return m.Agents[i], true
}
