package checkpoint

import (
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
)

// Run is the folder of a training run, which holds a checkpoint a step:
//
//	step-000020/manifest.json                  written last: the step is complete when it is there
//	step-000020/NAME/config.json ...           agent NAME's Hugging Face folder
//	step-000020/NAME/optimizer.safetensors
//	step-000020/NAME/state.json
//
// Every operation that can be cut short by a crash leaves the previous checkpoints as they were, and the
// new one either complete or without a manifest.
type Run struct {
	Dir string
	FS  FS // nil: OS
}

// AgentState is what one agent contributes to a checkpoint.
type AgentState struct {
	Name string // folder name: letters, digits, '-', '_' and '.', not first

	Config  Config
	Tensors []TensorSpec
	Read    func(name string, dst []float32) error // as WriteHF's
	DType   DType
	Extra   map[string][]byte // tokenizer files, as WriteHF's

	Optimizer *Optimizer      // nil for a frozen agent
	State     json.RawMessage // state.json: whatever else the agent needs to go on
}

const (
	manifestFile = "manifest.json"
	stateFile    = "state.json"
)

var agentName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$`)

func (r Run) fsys() FS {
	if r.FS == nil {
		return OS{}
	}
	return r.FS
}

// StepDir returns the folder of a step's checkpoint.
func (r Run) StepDir(step int64) string { return filepath.Join(r.Dir, stepName(step)) }

// AgentDir returns an agent's folder in a step's checkpoint, which Open reads.
func (r Run) AgentDir(step int64, agent string) string { return filepath.Join(r.StepDir(step), agent) }

func stepName(step int64) string { return fmt.Sprintf("step-%06d", step) }

// Save writes all agents' folders and commits m, whose Agents it fills in. It returns the manifest.
func (r Run) Save(m Manifest, agents []AgentState) (Manifest, error) {
	m.Agents = nil
	for _, a := range agents {
		files, err := r.SaveAgent(m.Step, a)
		if err != nil {
			return Manifest{}, err
		}
		m.Agents = append(m.Agents, files)
	}
	return m, r.Commit(m)
}

// SaveAgent writes one agent's folder of a step that is not committed yet, replacing what a crash left
// there. Processes that hold different agents call it each for its own; one of them then calls Commit.
func (r Run) SaveAgent(step int64, a AgentState) (AgentFiles, error) {
	fail := func(err error) (AgentFiles, error) {
		return AgentFiles{}, fmt.Errorf("checkpoint: saving %s of step %d: %w", a.Name, step, err)
	}
	if !agentName.MatchString(a.Name) || a.Name == manifestFile {
		return fail(errors.New("the agent's name must be 1 to 64 letters, digits, '-', '_' or '.', not starting with '.'"))
	}
	if err := r.prepareStep(step); err != nil {
		return fail(err)
	}
	dir := r.AgentDir(step, a.Name)
	if err := r.fsys().RemoveAll(dir); err != nil {
		return fail(err)
	}
	files, err := writeFolder(r.fsys(), dir, func(f *folder) error { return f.writeAgent(a) })
	if err != nil {
		return fail(err)
	}
	return AgentFiles{Name: a.Name, Files: files}, nil
}

func (f *folder) writeAgent(a AgentState) error {
	for _, name := range []string{optimizerFile, stateFile} {
		if _, taken := a.Extra[name]; taken {
			return fmt.Errorf("extra file %q is written by the checkpoint itself", name)
		}
	}
	if err := f.writeHF(a.Config, a.Tensors, a.Read, a.DType, a.Extra, shardLimit); err != nil {
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
	return f.createBytes(stateFile, state)
}

// ReadState returns the state.json of an agent's folder.
func ReadState(agentDir string) (json.RawMessage, error) {
	data, err := readSmallFile(filepath.Join(agentDir, stateFile), maxManifestBytes)
	if err == nil && !json.Valid(data) {
		err = errors.New("not JSON")
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %s: %w", agentDir, stateFile, err)
	}
	return data, nil
}

// prepareStep makes the step's folder, which must not be committed.
func (r Run) prepareStep(step int64) error {
	if step < 0 {
		return errors.New("negative step")
	}
	dir := r.StepDir(step)
	if _, err := os.Lstat(filepath.Join(dir, manifestFile)); err == nil {
		return fmt.Errorf("%s is already complete: %w", dir, fs.ErrExist)
	}
	if err := os.MkdirAll(r.Dir, 0o777); err != nil {
		return err
	}
	if err := r.fsys().Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return r.fsys().SyncDir(r.Dir)
}

// Commit completes a step: it checks that every file m lists is there in its size and puts the manifest
// in place. m.Agents are what SaveAgent returned.
func (r Run) Commit(m Manifest) error {
	fail := func(err error) error { return fmt.Errorf("checkpoint: committing step %d: %w", m.Step, err) }
	data, err := m.encode()
	if err != nil {
		return fail(err)
	}
	if err := r.prepareStep(m.Step); err != nil {
		return fail(err)
	}
	dir := r.StepDir(m.Step)
	if err := m.checkSizes(dir); err != nil {
		return fail(err)
	}
	if err := r.replaceManifest(dir, data); err != nil {
		return fail(err)
	}
	return nil
}

// replaceManifest puts a manifest in place at once: a crash leaves what was there or the new one.
func (r Run) replaceManifest(dir string, data []byte) error {
	fsys, temporary := r.fsys(), partialName(manifestFile)
	if err := fsys.RemoveAll(filepath.Join(dir, temporary)); err != nil {
		return err
	}
	f := &folder{fs: fsys, path: dir}
	if err := f.createBytes(temporary, data); err != nil {
		return err
	}
	if err := fsys.Rename(filepath.Join(dir, temporary), filepath.Join(dir, manifestFile)); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// SetLedger gives a complete step another ledger; its files stay as they are.
func (r Run) SetLedger(step int64, ledger json.RawMessage) error {
	fail := func(err error) error { return fmt.Errorf("checkpoint: the ledger of step %d: %w", step, err) }
	dir := r.StepDir(step)
	m, err := readManifest(dir)
	if err != nil {
		return fail(err)
	}
	m.Ledger = ledger
	data, err := m.encode()
	if err != nil {
		return fail(err)
	}
	if err := r.replaceManifest(dir, data); err != nil {
		return fail(err)
	}
	return nil
}

// List returns the steps that have a manifest, ascending, without reading it.
func (r Run) List() ([]int64, error) {
	all, err := r.steps()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(step int64) bool {
		_, err := os.Lstat(filepath.Join(r.StepDir(step), manifestFile))
		return err != nil
	}), nil
}

// steps returns the steps that have a folder, ascending. A run folder that does not exist has none.
func (r Run) steps() ([]int64, error) {
	entries, err := os.ReadDir(r.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var steps []int64
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), "step-")
		step, err := strconv.ParseInt(number, 10, 64)
		if ok && err == nil && e.IsDir() && stepName(step) == e.Name() {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// ErrNoCheckpoint is returned by Latest when no step verifies.
var ErrNoCheckpoint = errors.New("no complete checkpoint")

// Skipped is a step that Latest passed over, and why.
type Skipped struct {
	Step   int64
	Reason error
}

// Latest returns the manifest of the newest checkpoint that verifies, and the newer ones that do not.
func (r Run) Latest() (Manifest, []Skipped, error) {
	steps, err := r.steps()
	if err != nil {
		return Manifest{}, nil, err
	}
	var skipped []Skipped
	for _, step := range slices.Backward(steps) {
		m, err := Verify(r.StepDir(step))
		if err == nil && m.Step != step {
			err = fmt.Errorf("checkpoint: %s: manifest is of step %d", r.StepDir(step), m.Step)
		}
		if err == nil {
			return m, skipped, nil
		}
		skipped = append(skipped, Skipped{step, err})
	}
	return Manifest{}, skipped, fmt.Errorf("checkpoint: %s: %w", r.Dir, ErrNoCheckpoint)
}

// Prune removes all checkpoints but the newest keep complete ones and the steps in also (the best, say),
// and what crashes left of unfinished ones older than the newest complete one. A checkpoint counts as
// complete if all its files are there in their sizes; digests are not read.
func (r Run) Prune(keep int, also ...int64) error {
	if keep < 1 {
		return fmt.Errorf("checkpoint: pruning to %d checkpoints would remove all", keep)
	}
	steps, err := r.steps()
	if err != nil {
		return err
	}
	kept := 0
	var errs []error
	for _, step := range slices.Backward(steps) {
		m, err := readManifest(r.StepDir(step))
		complete := err == nil && m.checkSizes(r.StepDir(step)) == nil
		switch {
		case complete && kept < keep:
			kept++
		case kept == 0 || slices.Contains(also, step): // an unfinished newest step may be in the making
		default:
			errs = append(errs, r.remove(step))
		}
	}
	return errors.Join(append(errs, r.removeLeftovers())...)
}

// remove takes the folder's name away first: a half-deleted checkpoint is never seen under it.
func (r Run) remove(step int64) error {
	doomed := filepath.Join(r.Dir, removedPrefix+stepName(step))
	if err := r.fsys().RemoveAll(doomed); err != nil {
		return err
	}
	if err := r.fsys().Rename(r.StepDir(step), doomed); err != nil {
		return err
	}
	return errors.Join(r.fsys().SyncDir(r.Dir), r.fsys().RemoveAll(doomed))
}

const removedPrefix = ".removed-"

func (r Run) removeLeftovers() error {
	doomed, err := filepath.Glob(filepath.Join(globQuote(r.Dir), removedPrefix+"step-*"))
	for _, path := range doomed {
		err = errors.Join(err, r.fsys().RemoveAll(path))
	}
	return err
}

// globQuote escapes what filepath.Glob would take for a pattern.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
