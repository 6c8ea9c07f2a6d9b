// Package archive writes and reads the files that a run leaves on disk.
//
// Each checkpoint is a folder (see [Checkpoints]). It contains, for each agent, a Hugging Face folder with an optimizer
// file and a state file, and a manifest with the digest of every file. The checkpoint is complete when the manifest exists.
// The run's folder also contains the agents' ledgers, which record for every rollout whether it was trained on, their
// trajectories, and the batches of refused updates. An [Archive] writes all of these for one agent's worker, while the
// steps continue.
//
// Every file that is read is treated as hostile: sizes are bounded before memory is allocated, and an error names the file.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Folders of a run.
const (
	checkpointsFolder  = "checkpoints"
	ledgerFolder       = "ledger"
	trajectoriesFolder = "trajectories"
	failedFolder       = "failed"
	referenceFolder    = "reference"
	coldStartsFolder   = "cold_start"
	lostGPUsFolder     = "lost_gpus"
)

// CheckpointsDir returns the folder of the checkpoints in a run's folder.
func CheckpointsDir(dir string) string { return filepath.Join(dir, checkpointsFolder) }

// TrajectoriesDir returns the folder of the trajectories in a run's folder.
func TrajectoriesDir(dir string) string { return filepath.Join(dir, trajectoriesFolder) }

// CheckpointsOf returns the checkpoints and ledgers in a run's folder, for the named agents or, without names, for all
// agents.
func CheckpointsOf(dir string, agents ...string) Checkpoints {
	return Checkpoints{Dir: CheckpointsDir(dir), Ledgers: filepath.Join(dir, ledgerFolder), Agents: agents}
}

// Archive writes the files of one agent's worker: checkpoints, the agent's ledger, its trajectories, and batches of refused
// updates. Checkpoints are written while the steps continue, and all workers agree on their manifests. Only one goroutine
// may use an Archive.
type Archive struct {
	Trajectories Trajectories
	Saving       Saving
	opt          Options
	checkpoints  Checkpoints
	member       *store.Member
	agreement    agreement
	parameters   Parameters
	evaluations  Evaluations
	saved        int64          // version of the newest checkpoint, complete or being written; -1: there is none yet
	snapshot     *snapshot      // copy from which checkpoints are written; nil before Begin, and for an agent that is not trained
	ledger       *Ledger        // nil before Begin
	reference    []durable.File // weights of the KL reference that KeepReference wrote
}

// Options describe the run to an archive.
type Options struct {
	Dir            string                    // the run's folder
	CheckpointsDir string                    // folder of the run's checkpoints
	Agent          string                    // the worker's agent
	Team           []string                  // all agents, the main agent first
	Manifest       func(step int64) Manifest // a step's manifest without its agents and results
	HeldOutDigest  string                    // digest of the held-out questions and of the settings of evaluations
	Keep           int                       // number of newest checkpoints that are kept
	CPUFeatures    string                    // of this machine
	Endpoint       *store.Endpoint           // place of a hosted model, whose checkpoints have no files; nil: the model is here
	Tokenizer      map[string][]byte         // files of the tokenizer
	DType          weights.DType             // of saved weights: F32, BF16 or F16
	SaveMoments    bool                      // checkpoints have AdamW's moments
	Announce       bool                      // notes to the observer name new checkpoints
	Observer       metrics.Observer
	FS             durable.FS // nil: durable.OS
}

// Parameters provides the numbers in the agent's checkpoints: its weights and AdamW's moments m and v, three flat float32
// buffers of the same length.
type Parameters interface {
	// Trains reports whether training changes the weights. If not, there are no moments.
	Trains() bool
	// Numel returns the length of the buffers.
	Numel() int64
	// Read fills dst with the weights that begin at index `from`.
	Read(ctx context.Context, from int64, dst []float32) error
	// Copy copies all buffers at the same moment. The slices have the buffers' length.
	Copy(ctx context.Context, master, m, v []float32) error
	// Files returns the content of the agent's folder. It takes the weights from master, which fills dst with the weights
	// that begin at index `from`.
	Files(ctx context.Context, master func(from int64, dst []float32) error) weights.Files
	Counters() Counters
	// Ranks returns the number of devices that train the agent together.
	Ranks() int
	// RestoreMaster replaces the weights. master fills dst with the weights that begin at index `from`.
	RestoreMaster(ctx context.Context, master func(from int64, dst []float32) error) error
	// Restore replaces the moments and the counters. m and v fill dst with the values that begin at index `from`.
	Restore(ctx context.Context, c Counters, m, v func(from int64, dst []float32) error) error
}

// Counters holds the counts of an agent's training that a checkpoint keeps.
type Counters struct {
	Updates int64 `json:"updates"`           // optimizer updates, for AdamW's bias correction
	Earlier int64 `json:"earlier,omitempty"` // updates before the moments began anew (run.save_moments: false)
	Refused int   `json:"refused"`           // number of consecutive steps, up to this one, in which an update was refused
}

// state is the content of an agent's state.json.
type state struct {
	Version int64 `json:"version"` // number of committed training steps
	Counters
	Ranks     int            `json:"ranks"`               // devices that trained together; a run may continue with another number
	Reference []durable.File `json:"reference,omitempty"` // weights of the KL reference, if it is the policy after the cold start
}

// New returns the archive of an agent that does not have a checkpoint yet. m is the agent's place in the team. New does not touch any file.
func New(opt Options, m *store.Member, p Parameters) *Archive {
	a := &Archive{opt: opt, checkpoints: CheckpointsOf(opt.Dir, opt.Agent), member: m, parameters: p, saved: -1}
	a.checkpoints.Dir, a.checkpoints.FS = opt.CheckpointsDir, opt.FS
	a.agreement = agreement{member: m, agent: opt.Agent, team: opt.Team, checkpoints: a.checkpoints}
	a.evaluations.HeldOutDigest = opt.HeldOutDigest
	a.Trajectories = Trajectories{opt.Dir, opt.Agent, opt.Observer}
	return a
}

// Saved returns the version of the newest checkpoint, complete or being written; -1: there is none yet.
func (a *Archive) Saved() int64 { return a.saved }

// Restore restores the evaluations, the optimizer and the counters of a checkpoint. The caller must have read the weights
// of the checkpoint's folder before. If these are rounded to 16 bits, Restore also restores the fp32 weights.
func (a *Archive) Restore(ctx context.Context, from Manifest) error {
	a.saved = from.Step
	if len(from.Results) > 0 {
		if err := json.Unmarshal(from.Results, &a.evaluations); err != nil {
			return fmt.Errorf("checkpoint %d: its results: %w", from.Step, err)
		}
	}
	a.evaluations = a.opt.since(a.evaluations)
	agentDir := a.checkpoints.AgentDir(from.Step, a.opt.Agent)
	f, err := OpenOptimizer(agentDir)
	if !a.parameters.Trains() && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.readMaster(agentDir, a.parameters.Numel(), func(read func(from int64, dst []float32) error) error { // for an evaluation, too
		return a.parameters.RestoreMaster(ctx, read)
	})
	if err != nil {
		return err
	}
	if !a.parameters.Trains() {
		return nil
	}
	data, err := ReadState(agentDir)
	if err != nil {
		return err
	}
	var st state
	if err := json.Unmarshal(data, &st); err != nil {
		return fmt.Errorf("%s/%s: %w", agentDir, stateFile, err)
	}
	a.reference = st.Reference
	return a.restoreMoments(ctx, f, st)
}

// since returns the evaluations of a resumed run. Those before the checkpoint are left out if they had other questions or settings.
func (s Options) since(before Evaluations) Evaluations {
	switch {
	case s.HeldOutDigest == "":
		return before
	case before.HeldOutDigest == "" || before.HeldOutDigest == s.HeldOutDigest:
		before.HeldOutDigest = s.HeldOutDigest
		return before
	}
	if best := before.Best; best != nil && s.Announce {
		s.Observer.Note(metrics.Warnf(s.Agent, metrics.TopicStart, "the held-out questions, or the settings under eval, have changed: the best version is "+
			"chosen anew, and version %d (accuracy %.3f) is no longer kept as the best", best.Version, best.Accuracy))
	}
	return Evaluations{HeldOutDigest: s.HeldOutDigest}
}

// restoreMoments restores the moments and the counters. A checkpoint has no moments if the agent had no update yet, or if
// it was written with run.save_moments false. In the second case AdamW begins anew, and a note is sent.
func (a *Archive) restoreMoments(ctx context.Context, f *OptimizerFile, st state) error {
	m, v := f.reader("m"), f.reader("v")
	if !f.Has("m") && !f.Has("v") {
		m = func(_ int64, dst []float32) error { clear(dst); return nil }
		v = m
		if st.Updates > 0 {
			a.opt.Observer.Note(metrics.Warnf(a.opt.Agent, metrics.TopicStart,
				"the checkpoint of step %d has no moments (run.save_moments: false): AdamW's moments begin at 0, so the results will differ from a "+
					"run without the interruption", st.Version))
			st.Earlier, st.Updates = st.Earlier+st.Updates, 0
		}
	}
	return a.parameters.Restore(ctx, st.Counters, m, v)
}

// Begin resets the agent's ledger and trajectories to a checkpoint, or empties them (nil), and prepares the archive for
// writing. It does not change any file if another worker has taken the agent's place in the meantime.
func (a *Archive) Begin(ctx context.Context, from *Manifest) (err error) {
	if a.parameters.Trains() {
		if a.snapshot, err = newSnapshot(a.parameters.Numel()); err != nil {
			return err
		}
	}
	if err := a.member.ConfirmPlace(ctx); err != nil { // another worker may have taken the place while the model was loaded
		return err
	}
	var at LedgerMark
	version := int64(0)
	if from != nil {
		part, _ := from.Agent(a.opt.Agent) // Verify has found it
		at, version = part.Ledger, from.Step
		if err := a.checkpoints.At(version).Agree(); err != nil { // all workers start from it
			return a.diskFull(err)
		}
		if err := a.dropColdStart(); err != nil {
			return err
		}
	}
	if a.ledger, err = openLedger(a.checkpoints.fsys(), a.checkpoints.Ledgers, a.opt.Agent, at); err != nil {
		return a.diskFull(err)
	}
	return a.Trajectories.drop(version, a.evaluations)
}

// AppendLedger appends a step's line to the ledger.
func (a *Archive) AppendLedger(line LedgerLine) error { return a.diskFull(a.ledger.Append(line)) }

// Close frees the memory and closes the ledger. Call Saving.Drain first: no checkpoint may be in progress.
func (a *Archive) Close() error {
	var errs []error
	if a.snapshot != nil {
		errs = append(errs, a.snapshot.free())
	}
	if a.ledger != nil {
		errs = append(errs, a.ledger.Close())
	}
	return errors.Join(errs...)
}

// diskFull adds advice to an error that a full disk caused.
func (a *Archive) diskFull(err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w: the disk of run.dir, %s, is full; the complete checkpoints there are intact. Free some space (for example with mgrpo "+
		"checkpoint prune --keep 1), or move the folder and set run.dir to its new place; then resume the run",
		err, a.opt.Dir)
}
