package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/durable"
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

// CheckpointsDir is the folder of the checkpoints in a run's folder.
func CheckpointsDir(dir string) string { return filepath.Join(dir, checkpointsFolder) }

// TrajectoriesDir is the folder of the trajectories in a run's folder.
func TrajectoriesDir(dir string) string { return filepath.Join(dir, trajectoriesFolder) }

// CheckpointsOf are the checkpoints and ledgers in a run's folder, of the named agents or, without names, of all.
func CheckpointsOf(dir string, agents ...string) Checkpoints {
	return Checkpoints{Dir: CheckpointsDir(dir), Ledgers: filepath.Join(dir, ledgerFolder), Agents: agents}
}

// Archive writes the files of one agent's worker: checkpoints, the agent's ledger, its trajectories, and batches that
// were refused. Checkpoints are written while the steps go on, and all workers agree on their manifests. Only one
// goroutine may use an Archive.
type Archive struct {
	settings    Settings
	checkpoints Checkpoints
	place       Place
	parameters  Parameters
	evaluations Evaluations
	saved       int64 // version of the newest checkpoint, complete or being written; -1: there is none yet
	saving      saving
	copied      *copied        // copy from which checkpoints are written; nil before Begin, and for an agent that does not train
	ledger      *Ledger        // nil before Begin
	reference   []durable.File // weights of the KL reference that KeepReference wrote
}

// Settings describe the run to an archive.
type Settings struct {
	Dir            string   // the run's folder
	CheckpointsDir string   // folder of the run's checkpoints
	Agent          string   // the worker's agent
	Team           []string // all agents, the main agent first
	Run            string   // the run's name
	ConfigDigest   string
	Keep           int               // number of newest checkpoints that are kept
	CPUFeatures    string            // of this machine
	Endpoint       *store.Endpoint   // place of a hosted model, of which checkpoints have no files; nil: the model is here
	Tokenizer      map[string][]byte // files of the tokenizer
	DType          weights.DType     // of saved weights: F32, BF16 or F16
	SaveMoments    bool              // checkpoints have AdamW's moments
	Announce       bool              // notes to the observer name new checkpoints
	Observer       metrics.Observer
	FS             durable.FS // nil: durable.OS
}

// Place is the agent's place in the team, a *store.Member.
type Place interface {
	ConfirmPlace(ctx context.Context) error
	PublishPart(ctx context.Context, version int64, part store.Part) error
	Parts(ctx context.Context, version int64) (map[string]store.Part, error)
	PublishManifest(ctx context.Context, version int64, digest string) error
	Manifests(ctx context.Context, version int64) (map[string]string, error)
	Trim(ctx context.Context, step int64) error
}

// Parameters are the numbers in the agent's checkpoints: its weights and AdamW's moments m and v, three flat float32
// buffers of the same length.
type Parameters interface {
	// Trains says whether training changes the weights. If not, there are no moments.
	Trains() bool
	// Numel is the length of the buffers.
	Numel() int64
	// Read fills dst with the weights that begin at index from.
	Read(ctx context.Context, from int64, dst []float32) error
	// Copy copies all buffers at one moment. The slices have the buffers' length.
	Copy(ctx context.Context, master, m, v []float32) error
	// Files are what the agent's folder is written from. They take the weights from master, which fills dst with those
	// that begin at index from.
	Files(ctx context.Context, master func(from int64, dst []float32) error) weights.Files
	Counters() Counters
	// Ranks is the number of devices that train the agent together.
	Ranks() int
	// RestoreMaster replaces the weights. master fills dst with the weights that begin at index from.
	RestoreMaster(ctx context.Context, master func(from int64, dst []float32) error) error
	// Restore replaces the moments and the counters. m and v fill dst with the values that begin at index from.
	Restore(ctx context.Context, c Counters, m, v func(from int64, dst []float32) error) error
}

// Counters are the counts of an agent's training that a checkpoint keeps.
type Counters struct {
	Updates int64 `json:"updates"` // optimizer updates, for AdamW's bias correction
	Refused int   `json:"refused"` // steps in a row, up to this one, in which an update was refused
}

// state is the content of an agent's state.json.
type state struct {
	Version int64 `json:"version"` // training steps committed
	Counters
	Ranks     int            `json:"ranks"`               // devices that trained together; another number may go on
	Reference []durable.File `json:"reference,omitempty"` // weights of the KL reference, if it is the policy after the cold start
}

// New returns the archive of an agent that has no checkpoint yet. It touches no file.
func New(s Settings, place Place, p Parameters) *Archive {
	a := &Archive{settings: s, checkpoints: CheckpointsOf(s.Dir, s.Agent), place: place, parameters: p, saved: -1}
	a.checkpoints.Dir, a.checkpoints.FS = s.CheckpointsDir, s.FS
	return a
}

// Saved is the version of the newest checkpoint, complete or being written; -1: there is none yet.
func (a *Archive) Saved() int64 { return a.saved }

// Restore restores the evaluations, the optimizer and the counters of a checkpoint. The caller has read the weights of
// the checkpoint's folder already. Where these are rounded to bf16, Restore also restores the fp32 weights.
func (a *Archive) Restore(ctx context.Context, from Manifest) error {
	a.saved = from.Step
	if len(from.Results) > 0 {
		if err := json.Unmarshal(from.Results, &a.evaluations); err != nil {
			return fmt.Errorf("checkpoint %d: its results: %w", from.Step, err)
		}
	}
	agentDir := a.checkpoints.AgentDir(from.Step, a.settings.Agent)
	f, err := OpenOptimizer(agentDir)
	if !a.parameters.Trains() && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.readMaster(agentDir, a.parameters.Numel(), func(read func(from int64, dst []float32) error) error { // also for an evaluation, so that it computes with the weights of the run
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

// restoreMoments restores the moments and the counters. A checkpoint without moments is of an agent that had no update, or was written with
// run.save_moments false: then AdamW begins anew, and a note is sent.
func (a *Archive) restoreMoments(ctx context.Context, f *OptimizerFile, st state) error {
	m, v := f.reader("m"), f.reader("v")
	if !f.Has("m") && !f.Has("v") {
		m = func(_ int64, dst []float32) error { clear(dst); return nil }
		v = m
		if st.Updates > 0 {
			a.settings.Observer.Note(metrics.Warnf(a.settings.Agent, metrics.TopicStart,
				"the checkpoint of step %d has no moments (run.save_moments: false): AdamW's begin at 0, so the run goes on otherwise than without the interruption", st.Version))
			st.Updates = 0
		}
	}
	return a.parameters.Restore(ctx, st.Counters, m, v)
}

// Begin sets the agent's ledger and trajectories back to a checkpoint, or empties them (nil), and prepares the archive
// for writing. It changes no file if the place is another worker's by now.
func (a *Archive) Begin(ctx context.Context, from *Manifest) (err error) {
	if a.parameters.Trains() {
		if a.copied, err = newCopied(a.parameters.Numel()); err != nil {
			return err
		}
	}
	if err := a.place.ConfirmPlace(ctx); err != nil { // to load a model takes long enough to be replaced meanwhile
		return err
	}
	var at LedgerMark
	version := int64(0)
	if from != nil {
		part, _ := from.Agent(a.settings.Agent) // Verify has found it
		at, version = part.Ledger, from.Step
		if err := a.dropColdStart(); err != nil {
			return err
		}
	}
	if a.ledger, err = a.checkpoints.OpenLedger(a.settings.Agent, at); err != nil {
		return a.diskFull(err)
	}
	return a.dropTrajectories(version)
}

// Record appends a step's line to the ledger.
func (a *Archive) Record(line LedgerLine) error { return a.diskFull(a.ledger.Append(line)) }

// Close frees the memory and closes the ledger. Call Drain first: no checkpoint may be under way.
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

// diskFull completes an error because of a full disk: it adds what to do.
func (a *Archive) diskFull(err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w: the disk of run.dir, %s, is full; the complete checkpoints there are intact. Free some space (for example with mgrpo checkpoint prune --keep 1), or move the folder and set run.dir to its new place; then --resume goes on",
		err, a.settings.Dir)
}
