package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Checkpoints is the folder of a training run's checkpoints, one a step:
//
//	step-000020/manifest.json                  written after the agents' files: the checkpoint is complete when it is there
//	step-000020/results.json                   results of its evaluation, if it was evaluated
//	step-000020/agreed                         empty; all workers have the manifest
//	step-000020/NAME/config.json ...           agent NAME's Hugging Face folder
//	step-000020/NAME/optimizer.state           of an agent that learns
//	step-000020/NAME/state.json
//
// All agents may share one folder, or each agent may have its own; then every folder has the manifest and the files of one
// agent. Tensor files of an agent that are equal in consecutive checkpoints are one file with several names. A crash during
// any operation leaves the earlier checkpoints unchanged, and the new checkpoint either complete or without a manifest.
type Checkpoints struct {
	Dir     string
	Ledgers string     // folder of the agents' ledgers; "": ledgers are ignored
	Agents  []string   // agents whose files and ledgers are read; nil: all agents
	FS      durable.FS // nil: durable.OS
}

// AgentState is one agent's part of a checkpoint that will be written.
type AgentState struct {
	Name string // name of its folder: letters, digits, '-', '_' and '.'; not '.' first

	Files weights.Files // its weights
	DType weights.DType
	Extra map[string][]byte // tokenizer files, as for weights.HF

	Optimizer *Optimizer      // nil for a frozen agent
	State     json.RawMessage // content of state.json
}

const (
	manifestFile = "manifest.json"
	stateFile    = "state.json"
	agreedFile   = "agreed"
)

var agentName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$`)

func (c Checkpoints) fsys() durable.FS {
	if c.FS == nil {
		return durable.OS{}
	}
	return c.FS
}

// StepDir returns the folder of a step's checkpoint.
func (c Checkpoints) StepDir(step int64) string { return filepath.Join(c.Dir, stepName(step)) }

// AgentDir returns an agent's folder in a step's checkpoint, which weights.Open reads.
func (c Checkpoints) AgentDir(step int64, agent string) string {
	return filepath.Join(c.StepDir(step), agent)
}

func stepName(step int64) string { return fmt.Sprintf("step-%06d", step) }

// SaveAgent writes one agent's folder of a step that does not have a manifest yet. It replaces files that a crash left
// there. When it returns, the files are on disk. Each worker calls it for its own agent, and then Commit.
func (c Checkpoints) SaveAgent(step int64, a AgentState) (AgentFiles, error) {
	fail := func(err error) (AgentFiles, error) {
		return AgentFiles{}, fmt.Errorf("checkpoint: saving %s of step %d: %w", a.Name, step, err)
	}
	if !agentName.MatchString(a.Name) || a.Name == manifestFile || a.Name == resultsFile || a.Name == agreedFile {
		return fail(errors.New("the agent's name must be 1 to 64 letters, digits, '-', '_' or '.', and must not begin with '.'"))
	}
	if _, err := os.Lstat(filepath.Join(c.StepDir(step), manifestFile)); err == nil {
		return fail(fmt.Errorf("%s is already complete: %w", c.StepDir(step), fs.ErrExist))
	}
	if err := c.At(step).prepare(); err != nil {
		return fail(err)
	}
	files, err := durable.WriteFolder(c.fsys(), c.AgentDir(step, a.Name), func(f *durable.Folder) error {
		if err := a.write(f); err != nil {
			return err
		}
		return c.shareTensors(f, step, a.Name)
	})
	if err != nil {
		return fail(err)
	}
	return AgentFiles{Name: a.Name, Files: files}, nil
}

// shareTensors replaces the agent's tensor files by hard links to files of its newest earlier checkpoint that have the same
// bytes. Weights that training did not change then take the space of one checkpoint.
func (c Checkpoints) shareTensors(f *durable.Folder, step int64, agent string) error {
	steps, err := c.steps()
	if err != nil {
		return err
	}
	for _, before := range slices.Backward(steps) {
		m, err := readManifest(c.StepDir(before))
		if before >= step || err != nil {
			continue
		}
		part, _ := m.Agent(agent)
		for _, there := range part.Files {
			if filepath.Ext(there.Path) != ".safetensors" && there.Path != optimizerFile {
				continue
			}
			if err := f.Share(there.Path, c.AgentDir(before, agent), there); err != nil {
				return err
			}
		}
		return nil
	}
	return nil
}

func (a AgentState) write(f *durable.Folder) error {
	for _, name := range []string{optimizerFile, stateFile} {
		if _, taken := a.Extra[name]; taken {
			return fmt.Errorf("extra file %q is written by the checkpoint itself", name)
		}
	}
	if err := a.Files.Write(f, a.DType, a.Extra); err != nil {
		return err
	}
	if a.Optimizer != nil {
		if err := a.Optimizer.write(f); err != nil {
			return err
		}
	}
	state := a.State
	if state == nil {
		state = json.RawMessage("{}")
	}
	if !json.Valid(state) {
		return errors.New("the agent's state is not JSON")
	}
	return f.CreateBytes(stateFile, state)
}

// ReadState returns the state.json of an agent's folder.
func ReadState(agentDir string) (json.RawMessage, error) {
	data, err := durable.ReadSmall(filepath.Join(agentDir, stateFile), maxManifestBytes)
	if err == nil && !json.Valid(data) {
		err = errors.New("not JSON")
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %s: %w", agentDir, stateFile, err)
	}
	return data, nil
}

// Commit completes a step: it checks that the files in m have the listed sizes, and writes the manifest. m.Agents holds the
// results of SaveAgent of all workers, with the marks of their ledgers. All workers commit the same manifest, either in a
// shared folder or each in its own. If the folder has a different manifest, Commit returns an error. It returns the
// manifest with its digest.
func (c Checkpoints) Commit(m Manifest) (Manifest, error) {
	fail := func(err error) (Manifest, error) {
		return Manifest{}, fmt.Errorf("checkpoint: committing step %d: %w", m.Step, err)
	}
	if err := m.check(); err != nil {
		return fail(err)
	}
	m, data, err := m.encode()
	if err != nil {
		return fail(err)
	}
	if err := c.At(m.Step).prepare(); err != nil {
		return fail(err)
	}
	path := filepath.Join(c.StepDir(m.Step), manifestFile)
	switch there, err := durable.ReadSmall(path, maxManifestBytes); {
	case err == nil && !bytes.Equal(there, data):
		return fail(fmt.Errorf("%s is already complete, with other files: %w", c.StepDir(m.Step), fs.ErrExist))
	case err == nil:
		return m, c.fsys().SyncDir(c.StepDir(m.Step))
	case !errors.Is(err, fs.ErrNotExist):
		return fail(err)
	}
	if err := m.checkSizes(c.StepDir(m.Step), c.Agents); err != nil {
		return fail(err)
	}
	defer failpoint.Around("checkpoint.manifest")()
	if err := durable.Replace(c.fsys(), path, data); err != nil {
		return fail(err)
	}
	return m, nil
}

// List returns the steps that have a manifest, ascending. It does not read the manifests.
func (c Checkpoints) List() ([]int64, error) {
	all, err := c.steps()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(step int64) bool {
		_, err := os.Lstat(filepath.Join(c.StepDir(step), manifestFile))
		return err != nil
	}), nil
}

// CompletedAt returns the time at which the checkpoint in a folder became complete.
func CompletedAt(stepDir string) (time.Time, error) {
	info, err := os.Stat(filepath.Join(stepDir, manifestFile))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Listing returns a digest of all manifests and results. As long as it is the same, Offers returns the same checkpoints, apart
// from Manifest.Agreed, unless files were damaged.
func (c Checkpoints) Listing() (string, error) {
	steps, err := c.steps()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, step := range steps {
		for _, name := range []string{manifestFile, resultsFile} {
			data, err := durable.ReadSmall(filepath.Join(c.StepDir(step), name), maxManifestBytes)
			if err != nil { // there are no results, or none that can be used
				data = []byte("none")
			}
			fmt.Fprintf(sum, "%d %s %d\n%s", step, name, len(data), data)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// steps returns the steps that have a folder or a link to a folder, ascending. If c.Dir does not exist, the list is empty. A link
// whose folder cannot be reached is an error, since its step is not lost: its disk may be mounted later.
func (c Checkpoints) steps() ([]int64, error) {
	if err := checkLink(c.Dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var steps []int64
	for _, e := range entries {
		step, rest, ok := parseStep(e.Name())
		if !ok || rest != "" {
			continue
		}
		if e.Type() == fs.ModeSymlink {
			if err := checkLink(c.StepDir(step)); err != nil {
				return nil, err
			}
		} else if !e.IsDir() {
			continue
		}
		steps = append(steps, step)
	}
	slices.Sort(steps)
	return steps, nil
}

// checkLink returns an error for a link that does not lead to a folder.
func checkLink(path string) error {
	if link, err := os.Lstat(path); err != nil || link.Mode().Type() != fs.ModeSymlink {
		return nil
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if _, gone := os.Lstat(path); err != nil && gone == nil { // otherwise another worker has just renamed or removed the link
		return fmt.Errorf("checkpoint: %s is a link to a folder that cannot be reached: %w: mount its disk, or correct or remove the link", path, err)
	}
	return nil
}

// parseStep splits the name of a step's folder: step-000020 and, after a dot, the rest.
func parseStep(name string) (step int64, rest string, ok bool) {
	name, rest, _ = strings.Cut(name, ".")
	number, ok := strings.CutPrefix(name, "step-")
	step, err := strconv.ParseInt(number, 10, 64)
	return step, rest, ok && err == nil && stepName(step) == name
}
