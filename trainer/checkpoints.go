package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// Folders and files of a run.
const (
	checkpointsFolder  = "checkpoints"
	ledgerFolder       = "ledger"
	trajectoriesFolder = "trajectories"
	failedFolder       = "failed"
	configFile         = "config.yaml"
)

// CheckpointsOf is the checkpoints and ledgers in a run's folder, as far as the named agents are concerned, or all.
func CheckpointsOf(dir string, agents ...string) archive.Run {
	return archive.Run{Dir: checkpointsDir(dir), Ledgers: filepath.Join(dir, ledgerFolder), Agents: agents}
}

// state is an agent's state.json: what is not in the weights or the optimizer's moments.
type state struct {
	Version int64 `json:"version"` // training steps committed
	Updates int64 `json:"updates"` // optimizer updates, which bias correction counts
	Refused int   `json:"refused"` // steps in a row, up to this one, in which an update was refused
}

// checkpoint begins a version's checkpoint: it copies what training changes, and the rest happens while the
// run goes on. A version that has its checkpoint, or will have it, gets the results as they are now. An
// error of what happens beside the run is found before the next step, by settle or by the next checkpoint.
func (w *Worker) checkpoint(ctx context.Context, version int64) error {
	defer w.saving.count(&w.saving.waited, time.Now())
	results := w.results
	if version == w.saved {
		w.saving.begin(func() error { return w.diskFull(w.amend(version, results)) })
		return nil
	}
	w.observer.Progress(metrics.Progress{Agent: w.name, Activity: metrics.Checkpointing, Version: version})
	if err := w.saving.settle(ctx); err != nil { // the copy is in use
		return err
	}
	st, err := w.agentState(ctx, version)
	if err != nil {
		return fmt.Errorf("checkpoint %d: %w", version, err)
	}
	mark, started := w.ledger.Mark(), time.Now()
	w.saved = version
	w.saving.begin(func() error {
		if err := w.save(ctx, version, st, mark, results); err != nil {
			return w.diskFull(fmt.Errorf("checkpoint %d: %w", version, err))
		}
		w.saving.count(&w.saving.took, started)
		return nil
	})
	return nil
}

// save writes this agent's files of a version, agrees with the others on the manifest, which all make of the
// same lists and write for themselves, and removes old checkpoints when everybody has the new one.
func (w *Worker) save(ctx context.Context, version int64, st archive.AgentState, mark archive.LedgerMark, results results) error {
	if err := w.run.Reopen(version); err != nil { // no worker of this round has one yet
		return err
	}
	files, err := w.run.SaveAgent(version, st)
	if err != nil {
		return err
	}
	files.CPUFeatures, files.Ledger = cpuFeatures(), mark
	if err := w.member.PublishPart(ctx, version, partOf(files)); err != nil {
		return err
	}
	parts, err := w.member.Parts(ctx, version)
	if err != nil {
		return err
	}
	m := archive.Manifest{Run: w.cfg.Run.Name, Step: version, ConfigDigest: w.cfg.Digest(), Results: results.encode()}
	for _, name := range w.cfg.AgentNames() {
		m.Agents = append(m.Agents, filesOf(name, parts[name]))
	}
	if err := w.member.ConfirmPlace(ctx); err != nil { // a successor may have another manifest of this version
		return err
	}
	if _, err := w.run.Commit(m); err != nil {
		return err
	}
	if err := w.complete(ctx, version); err != nil {
		return err
	}
	if w.main || w.alone {
		w.observer.Note(metrics.Infof(w.name, metrics.TopicCheckpoint, "checkpoint %s", w.run.StepDir(version)))
	}
	if w.main {
		if err := w.member.Trim(ctx, version-1); err != nil {
			return err
		}
	}
	return w.prune(results)
}

// confirm says that this worker has the manifest of a version on its disk, and which.
func (w *Worker) confirm(ctx context.Context, version int64) error {
	digest, err := w.run.Digest(version)
	if err != nil {
		return err
	}
	return w.member.PublishManifest(ctx, version, digest)
}

// complete waits until all workers have the manifest of a version. One that took its place over may have brought
// another: the version is then no checkpoint, and the team goes back to one that it shares.
func (w *Worker) complete(ctx context.Context, version int64) error {
	if err := w.confirm(ctx, version); err != nil {
		return err
	}
	digests, err := w.member.Manifests(ctx, version)
	if err != nil {
		return err
	}
	for _, name := range w.cfg.AgentNames() {
		if digests[name] != digests[w.name] {
			return &store.ConflictError{What: fmt.Sprintf("the manifest of version %d", version), Why: fmt.Sprintf("%s has another than %s", name, w.name)}
		}
	}
	return nil
}

// amend puts the results, as they were when it was asked for, beside a complete checkpoint.
func (w *Worker) amend(version int64, results results) error {
	if err := w.run.SetResults(version, results.encode()); err != nil {
		return err
	}
	return w.prune(results)
}

// prune removes all checkpoints but the newest and the best.
func (w *Worker) prune(results results) error {
	if results.Best == nil {
		return w.run.Prune(w.cfg.Run.Keep)
	}
	return w.run.Prune(w.cfg.Run.Keep, results.Best.Version)
}

// diskFull adds to an error for want of space what can be done about it.
func (w *Worker) diskFull(err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w: the disk of run.dir, %s, is full; what was complete there still is. Free some space (mgrpo checkpoint prune --keep 1 does), or move the folder and set run.dir to it; --resume goes on",
		err, w.dir)
}

// partOf is what a worker tells the others of its part of a checkpoint.
func partOf(p archive.AgentFiles) store.Part {
	return store.Part{CPUFeatures: p.CPUFeatures, LedgerSize: p.Ledger.Size, LedgerSHA256: p.Ledger.SHA256, Files: p.Files}
}

// filesOf is the part of an agent as its worker told it.
func filesOf(agent string, p store.Part) archive.AgentFiles {
	return archive.AgentFiles{Name: agent, CPUFeatures: p.CPUFeatures, Files: p.Files,
		Ledger: archive.LedgerMark{Size: p.LedgerSize, SHA256: p.LedgerSHA256}}
}

// agentState is the agent's weights, tokenizer and optimizer as they are now: of one that trains, a copy.
func (w *Worker) agentState(ctx context.Context, version int64) (archive.AgentState, error) {
	st := state{Version: version, Refused: w.refused}
	out := archive.AgentState{
		Name: w.name, Config: w.Model.Config,
		DType: weights.F32, Extra: w.Tokenizer.Files(),
	}
	master := func(from int64, dst []float32) error { return w.Model.ReadFlat(ctx, w.Params.Master(), from, dst) }
	if w.Learner != nil {
		copied, err := w.snap(ctx)
		if err != nil {
			return out, err
		}
		master = copied.reader(ctx, copied.master)
		st.Updates = w.Learner.Steps()
		out.Optimizer = &archive.Optimizer{
			Step: st.Updates, Len: w.Params.Numel(),
			Buffers: map[string]func(int64, []float32) error{"m": copied.reader(ctx, copied.m), "v": copied.reader(ctx, copied.v)},
		}
	}
	out.Read = w.Params.Reader(ctx, master)
	out.State, _ = json.Marshal(st) // two integers: cannot fail
	return out, nil
}

// restore continues the results, the optimizer and the counters of a checkpoint; the weights are loaded
// already.
func (w *Worker) restore(ctx context.Context, from *archive.Manifest) error {
	agentDir := agentDir(w.run, from.Step, w.name)
	if len(from.Results) > 0 {
		if err := json.Unmarshal(from.Results, &w.results); err != nil {
			return fmt.Errorf("checkpoint %d: its results: %w", from.Step, err)
		}
	}
	if w.Learner == nil {
		return nil
	}
	data, err := archive.ReadState(agentDir)
	if err != nil {
		return err
	}
	var st state
	if err := json.Unmarshal(data, &st); err != nil {
		return fmt.Errorf("%s/state.json: %w", agentDir, err)
	}
	f, err := archive.OpenOptimizer(agentDir)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Len() != w.Params.Numel() {
		return fmt.Errorf("%s: optimizer state of %d values for %d parameters", agentDir, f.Len(), w.Params.Numel())
	}
	m, v := w.Learner.Moments()
	if err := w.Model.WriteFlat(ctx, m, func(from int64, dst []float32) error { return f.Read("m", from, dst) }); err != nil {
		return err
	}
	if err := w.Model.WriteFlat(ctx, v, func(from int64, dst []float32) error { return f.Read("v", from, dst) }); err != nil {
		return err
	}
	w.Learner.SetSteps(st.Updates)
	w.refused = st.Refused
	return nil
}

// goOn makes the files of the run, beside its checkpoints, what they were at one of them, or empty.
func (w *Worker) goOn(from *archive.Manifest) error {
	if err := w.openLedger(from); err != nil {
		return err
	}
	return w.dropTrajectories(w.from)
}

func checkpointsDir(dir string) string { return filepath.Join(dir, checkpointsFolder) }

func agentDir(r archive.Run, step int64, name string) string {
	return filepath.Join(r.StepDir(step), name)
}

func cpuFeatures() string { return torch.CPUFeatures() }
