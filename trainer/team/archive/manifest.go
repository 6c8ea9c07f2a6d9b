package archive

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
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Manifest lists the files of a step's checkpoint. It is the same for all agents, byte for byte.
type Manifest struct {
	Format       int             `json:"format"` // set by encode
	Run          string          `json:"run"`
	Step         int64           `json:"step"`
	ConfigDigest string          `json:"config_digest"`   // digest of the run's configuration
	Drawn        int64           `json:"drawn,omitempty"` // queries that the steps before Step drew from the order of Step's stage
	Agents       []AgentFiles    `json:"agents"`
	Agreed       bool            `json:"-"`                 // all workers have the manifest: see StepFolder.Agree
	Results      json.RawMessage `json:"results,omitempty"` // of the evaluations before the checkpoint; results.json holds the later ones
	Digest       string          `json:"digest"`            // SHA-256 of this file with an empty digest; set by encode
}

// AgentFiles is one agent's part of a checkpoint.
type AgentFiles struct {
	Name        string         `json:"name"`
	CPUFeatures string         `json:"cpu_features,omitempty"` // of the agent's machine; equal bits need equal features
	Files       []durable.File `json:"files"`                  // in the agent's folder
	Ledger      LedgerMark     `json:"ledger"`                 // its ledger up to this step

	Endpoint *store.Endpoint `json:"endpoint,omitempty"` // place of a hosted model, which has no files; nil: the model was here
}

// manifestFormat changes with the meaning of the files in a run's folder.
const manifestFormat = 2

const maxManifestBytes = 16 << 20

// encode returns the manifest with its digest, and the file's bytes.
func (m Manifest) encode() (Manifest, []byte, error) {
	m.Format = manifestFormat
	var err error
	if m.Digest, err = digestOf(&m.Digest, &m); err != nil {
		return m, nil, err
	}
	data, err := json.MarshalIndent(m, "", "  ")
	return m, append(data, '\n'), err
}

// errUnfinished is the error for a step's folder without a manifest.
type errUnfinished struct{}

func (errUnfinished) Error() string        { return "unfinished: there is no " + manifestFile }
func (errUnfinished) Is(target error) bool { return target == fs.ErrNotExist }

// readManifest reads and checks manifest.json: encoding it again must give the same bytes.
func readManifest(stepDir string) (Manifest, error) {
	data, err := durable.ReadSmall(filepath.Join(stepDir, manifestFile), maxManifestBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, errUnfinished{}
	}
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, fmt.Errorf("%s is damaged: %w", manifestFile, err)
	}
	if m.Format < manifestFormat {
		return Manifest{}, fmt.Errorf("%s has format %d: it is damaged, or was written by an older mgrpo; this mgrpo reads format %d", manifestFile,
			m.Format, manifestFormat)
	}
	if _, again, err := m.encode(); err != nil || !bytes.Equal(again, data) {
		return Manifest{}, fmt.Errorf("%s is damaged: its digest does not match", manifestFile)
	}
	return m, m.check()
}

// check checks the values of a manifest whose digest matches.
func (m Manifest) check() error {
	for i, a := range m.Agents {
		if !agentName.MatchString(a.Name) || slices.ContainsFunc(m.Agents[:i], func(b AgentFiles) bool { return a.Name == b.Name }) {
			return fmt.Errorf("%s: agent %q has an invalid name, or is listed twice", manifestFile, a.Name)
		}
		if a.Ledger != (LedgerMark{}) && (a.Ledger.Size <= 0 || !isDigest(a.Ledger.SHA256)) {
			return fmt.Errorf("%s: the ledger of %s has %d bytes and the digest %.80q, which is impossible", manifestFile, a.Name, a.Ledger.Size,
				a.Ledger.SHA256)
		}
		if a.Endpoint != nil && len(a.Files) > 0 {
			return fmt.Errorf("%s: %s has %d files, but its model was hosted at %.80q", manifestFile, a.Name, len(a.Files), a.Endpoint.URL)
		}
		for _, f := range a.Files {
			if !filepath.IsLocal(f.Path) || f.Size < 0 || !isDigest(f.SHA256) {
				return fmt.Errorf("%s: file %q of %d bytes with digest %.80q is impossible", manifestFile, f.Path, f.Size, f.SHA256)
			}
		}
	}
	return nil
}

func isDigest(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha256.Size
}

// agentFiles returns the parts of the named agents, or of all agents.
func (m Manifest) agentFiles(names []string) ([]AgentFiles, error) {
	if names == nil {
		return m.Agents, nil
	}
	var out []AgentFiles
	for _, name := range names {
		a, ok := m.Agent(name)
		if !ok {
			return nil, fmt.Errorf("%s does not contain the agent %s", manifestFile, name)
		}
		out = append(out, a)
	}
	return out, nil
}

// checkSizes compares the sizes of the named agents' files with the manifest (nil: of all agents).
func (m Manifest) checkSizes(stepDir string, names []string) error {
	agents, err := m.agentFiles(names)
	if err != nil {
		return err
	}
	for _, a := range agents {
		for _, f := range a.Files {
			info, err := os.Lstat(filepath.Join(stepDir, a.Name, f.Path))
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s/%s is missing", a.Name, f.Path)
			}
			if err != nil {
				return err
			}
			if !info.Mode().IsRegular() || info.Size() != f.Size {
				return fmt.Errorf("%s/%s has %d bytes, but the manifest requires %d", a.Name, f.Path, info.Size(), f.Size)
			}
		}
	}
	return nil
}

// Verify reads the files of the named agents in a step's folder, or the files of all agents if there are no names, and
// compares them with the manifest. The error names every file that is missing, truncated or changed. It does not read
// ledgers, which are in another folder; Checkpoints.Verify does.
func Verify(stepDir string, agents ...string) (Manifest, error) { return verify(stepDir, agents, "") }

// Verify reads all files of a step's checkpoint, and the ledgers up to this step, for the agents in c.Agents. The error
// names every file that is missing, truncated or changed.
func (c Checkpoints) Verify(step int64) (Manifest, error) {
	m, err := verify(c.StepDir(step), c.Agents, c.Ledgers)
	if err == nil && m.Step != step {
		return Manifest{}, fmt.Errorf("checkpoint: %s: the manifest belongs to step %d", c.StepDir(step), m.Step)
	}
	return m, err
}

// verify compares the files of the named agents (nil: of all agents) and, if ledgers is a folder, their ledgers.
func verify(stepDir string, names []string, ledgers string) (Manifest, error) {
	fail := func(err error) (Manifest, error) {
		return Manifest{}, fmt.Errorf("checkpoint: %s: %w", stepDir, err)
	}
	m, err := readManifest(stepDir)
	if err != nil {
		return fail(err)
	}
	agents, err := m.agentFiles(names)
	if err != nil {
		return fail(err)
	}
	var faults []string
	for _, a := range agents {
		for _, f := range a.Files {
			if err := f.Verify(filepath.Join(stepDir, a.Name)); err != nil {
				faults = append(faults, fmt.Sprintf("%s/%s: %v", a.Name, f.Path, err))
			}
		}
		if ledgers != "" {
			if _, err := a.Ledger.copy(ledgerPath(ledgers, a.Name), io.Discard); err != nil {
				faults = append(faults, err.Error())
			}
		}
	}
	if len(faults) > 0 {
		return fail(errors.New(strings.Join(faults, "; ")))
	}
	return m, nil
}

// Agent returns the part of one agent.
func (m Manifest) Agent(name string) (AgentFiles, bool) {
	i := slices.IndexFunc(m.Agents, func(a AgentFiles) bool { return a.Name == name })
	if i < 0 {
		return AgentFiles{}, false
	}
	return m.Agents[i], true
}
