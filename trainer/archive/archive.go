package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/mgrpo/mgrpo/trainer/arch"
	"github.com/mgrpo/mgrpo/trainer/durable"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// Folders of a run.
const (
	checkpointsFolder  = "checkpoints"
	ledgerFolder       = "ledger"
	trajectoriesFolder = "trajectories"
	failedFolder       = "failed"
	referenceFolder    = "reference"
	coldStartsFolder   = "cold_start"
)

// CheckpointsDir is the folder of the checkpoints in a run's folder.
func CheckpointsDir(dir string) string { return filepath.Join(dir, checkpointsFolder) }

// TrajectoriesDir is the folder of the trajectories in a run's folder.
func TrajectoriesDir(dir string) string { return filepath.Join(dir, trajectoriesFolder) }

// CheckpointsOf is the checkpoints and ledgers in a run's folder, as far as the named agents are concerned, or all.
func CheckpointsOf(dir string, agents ...string) Checkpoints {
	return Checkpoints{Dir: CheckpointsDir(dir), Ledgers: filepath.Join(dir, ledgerFolder), Agents: agents}
}

// Archive is what one agent's worker keeps of its run on disk: checkpoints, which are written beside the steps and
// of which the workers agree on the manifest; the agent's ledger; its trajectories; batches that were refused. One
// goroutine uses it.
type Archive struct {
	Settings
	checkpoints Checkpoints
	place       Place
	parameters  Parameters
	evaluations Evaluations
	saved       int64 // version of the newest checkpoint, complete or in the making; -1: there is none yet
	saving      saving
	copied      *copied        // what checkpoints are written from; nil before Begin, and of an agent that does not train
	ledger      *Ledger        // nil before Begin
	reference   []durable.File // weights of the KL term that KeepReference wrote
}

// Settings are what an archive is told of its run.
type Settings struct {
	Dir            string   // the run's folder
	CheckpointsDir string   // folder of the run's checkpoints
	Agent          string   // whose worker it is
	Team           []string // all agents, the main one first
	Run            string   // the run's name
	ConfigDigest   string
	Keep           int               // newest checkpoints that stay
	CPUFeatures    string            // of this machine
	Tokenizer      map[string][]byte // its files
	DType          weights.DType     // of the weights in its folders: F32 or BF16
	Announce       bool              // new checkpoints are told of here
	Observer       metrics.Observer
	FS             durable.FS // nil: durable.OS
}

// Place is the agent's place in the team: a *store.Member.
type Place interface {
	ConfirmPlace(ctx context.Context) error
	PublishPart(ctx context.Context, version int64, part store.Part) error
	Parts(ctx context.Context, version int64) (map[string]store.Part, error)
	PublishManifest(ctx context.Context, version int64, digest string) error
	Manifests(ctx context.Context, version int64) (map[string]string, error)
	Trim(ctx context.Context, step int64) error
}

// Parameters are the numbers that the agent's checkpoints hold: its weights and AdamW's moments m and v, flat float32
// buffers of one length.
type Parameters interface {
	Config() arch.Config
	// Trains says whether steps change them. If not, there are no moments.
	Trains() bool
	// Numel is the length of the buffers.
	Numel() int64
	// Read fills dst with weights from index from on.
	Read(ctx context.Context, from int64, dst []float32) error
	// Moments are AdamW's as they are when the functions are called, which fill dst from an index on.
	Moments(ctx context.Context) (m, v func(from int64, dst []float32) error)
	// Copy copies everything as it is at one moment, to slices of the buffers' length.
	Copy(ctx context.Context, master, m, v []float32) error
	// Reader reads the tensors of a checkpoint, all of each, off weights that master gives from an index on.
	Reader(ctx context.Context, master func(from int64, dst []float32) error) func(name string, dst []float32) error
	Counters() Counters
	// RestoreMaster puts weights, which master gives from index from on, in the place of those that were loaded.
	RestoreMaster(ctx context.Context, master func(from int64, dst []float32) error) error
	// Restore continues the moments, which the functions give from index from on, and the counters.
	Restore(ctx context.Context, c Counters, m, v func(from int64, dst []float32) error) error
}

// Counters are what an agent's training counts across checkpoints.
type Counters struct {
	Updates int64 `json:"updates"` // optimizer updates, which bias correction counts
	Refused int   `json:"refused"` // steps in a row, up to this one, in which an update was refused
}

// state is an agent's state.json: what is not in the weights or the optimizer's moments.
type state struct {
	Version int64 `json:"version"` // training steps committed
	Counters
	Reference []durable.File `json:"reference,omitempty"` // weights of the KL term, where they are those after the cold start
}

// New returns the archive of an agent that has no checkpoint yet. It touches no file.
func New(s Settings, place Place, p Parameters) *Archive {
	a := &Archive{Settings: s, checkpoints: CheckpointsOf(s.Dir, s.Agent), place: place, parameters: p, saved: -1}
	a.checkpoints.Dir, a.checkpoints.FS = s.CheckpointsDir, s.FS
	return a
}

// Saved is the version of the newest checkpoint, complete or in the making; -1: there is none yet.
func (a *Archive) Saved() int64 { return a.saved }

// Restore continues the evaluations, the optimizer and the counters of a checkpoint. The weights of its folder are loaded
// already; where those are rounded, the exact ones follow.
func (a *Archive) Restore(ctx context.Context, from Manifest) error {
	a.saved = from.Step
	if len(from.Results) > 0 {
		if err := json.Unmarshal(from.Results, &a.evaluations); err != nil {
			return fmt.Errorf("checkpoint %d: its results: %w", from.Step, err)
		}
	}
	agentDir := a.checkpoints.AgentDir(from.Step, a.Agent)
	f, err := OpenOptimizer(agentDir)
	if !a.parameters.Trains() && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if n := a.parameters.Numel(); f.Len() != n {
		return fmt.Errorf("%s: optimizer state of %d values for %d parameters", agentDir, f.Len(), n)
	}
	if f.Has(masterBuffer) { // an evaluation, too, computes with the weights of which the run printed the accuracy
		if err := a.parameters.RestoreMaster(ctx, f.reader(masterBuffer)); err != nil {
			return err
		}
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
	return a.parameters.Restore(ctx, st.Counters, f.reader("m"), f.reader("v"))
}

// Begin makes the run's files, beside its checkpoints, what they were at one of them, or empty, and is ready to write
// others.
func (a *Archive) Begin(from *Manifest) (err error) {
	if a.parameters.Trains() {
		if a.copied, err = newCopied(a.parameters.Numel()); err != nil {
			return err
		}
	}
	var at LedgerMark
	version := int64(0)
	if from != nil {
		part, _ := from.Agent(a.Agent) // it verified
		at, version = part.Ledger, from.Step
		if err := a.dropColdStart(); err != nil {
			return err
		}
	}
	if a.ledger, err = a.checkpoints.OpenLedger(a.Agent, at); err != nil {
		return a.diskFull(err)
	}
	return a.dropTrajectories(version)
}

// Record writes a step's line into the ledger.
func (a *Archive) Record(line LedgerLine) error { return a.diskFull(a.ledger.Append(line)) }

// Close frees the memory and closes the ledger. Nothing may be on its way any more: see Drain.
func (a *Archive) Close() error {
	var errs []error
	if a.copied != nil {
		errs = append(errs, a.copied.free())
	}
	if a.ledger != nil {
		errs = append(errs, a.ledger.Close())
	}
	return errors.Join(errs...)
}

// diskFull adds to an error for want of space what can be done about it.
func (a *Archive) diskFull(err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w: the disk of run.dir, %s, is full; what was complete there still is. Free some space (mgrpo checkpoint prune --keep 1 does), or move the folder and set run.dir to it; --resume goes on",
		err, a.Dir)
}
