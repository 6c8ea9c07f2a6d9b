package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Checkpoint begins a version's checkpoint: it copies the weights and moments, and a goroutine writes the files while the
// run continues. If the version already has a checkpoint, complete or being written, only the evaluations are written
// again. An error of the goroutine is returned by Saving.Failed, Saving.Wait and the next Checkpoint.
func (a *Archive) Checkpoint(ctx context.Context, version int64) error {
	defer a.Saving.count(&a.Saving.waited, time.Now())
	evaluations := a.evaluations
	if version == a.saved {
		a.Saving.begin(func() error { // the manifest is complete: the evaluations are written next to it
			err := a.checkpoints.At(version).SetResults(evaluations.encode())
			if err == nil {
				err = a.prune(evaluations)
			}
			return a.diskFull(err)
		})
		return nil
	}
	a.opt.Observer.Progress(metrics.Progress{Agent: a.opt.Agent, Activity: metrics.Checkpointing, Version: version})
	if err := a.Saving.Wait(ctx); err != nil { // the previous checkpoint may still be written from the copy
		return err
	}
	st, err := a.agentState(ctx, version)
	if err != nil {
		return fmt.Errorf("checkpoint %d: %w", version, err)
	}
	mark, started := a.ledger.Mark(), time.Now()
	a.saved = version
	a.Saving.begin(func() error {
		if err := a.save(ctx, version, st, mark, evaluations); err != nil {
			return a.diskFull(fmt.Errorf("checkpoint %d: %w", version, err))
		}
		a.Saving.count(&a.Saving.took, started)
		return nil
	})
	return nil
}

// save writes this agent's files of a version, and agrees with the other workers on the
// manifest. Each worker makes the manifest from the parts of all workers and writes it to its
// own disk. When all workers have it, save removes old checkpoints.
func (a *Archive) save(ctx context.Context, version int64, st AgentState, mark LedgerMark, evaluations Evaluations) error {
	if err := a.member.ConfirmPlace(ctx); err != nil { // the files there may belong to a successor
		return err
	}
	if err := a.checkpoints.At(version).reopen(); err != nil { // a manifest of this version belongs to an earlier round
		return err
	}
	files := AgentFiles{Name: a.opt.Agent, Files: []durable.File{}, Endpoint: a.opt.Endpoint}
	if a.opt.Endpoint == nil { // a hosted model has no files
		var err error
		if files, err = a.checkpoints.SaveAgent(version, st); err != nil {
			return err
		}
	}
	files.CPUFeatures, files.Ledger = a.opt.CPUFeatures, mark
	agents, err := a.agreement.share(ctx, version, files)
	if err != nil {
		return err
	}
	m := a.opt.Manifest(version)
	m.Results, m.Agents = evaluations.encode(), agents
	if err := a.member.ConfirmPlace(ctx); err != nil { // a successor may have another manifest of this version
		return err
	}
	if _, err := a.checkpoints.Commit(m); err != nil {
		return err
	}
	if err := a.agreement.complete(ctx, version); err != nil {
		return err
	}
	if err := a.checkpoints.At(version).Agree(); err != nil {
		return err
	}
	if a.opt.Announce {
		a.opt.Observer.Note(metrics.Infof(a.opt.Agent, metrics.TopicCheckpoint, "checkpoint %s", a.checkpoints.StepDir(version)))
	}
	if a.opt.Agent == a.opt.Team[0] {
		if err := a.member.Checkpoints.Trim(ctx, version-1); err != nil {
			return err
		}
	}
	if err := errors.Join(a.dropColdStart(), forgetLostGPU(a.opt.Dir, a.opt.Agent)); err != nil {
		return err
	}
	return a.prune(evaluations)
}

// Confirm publishes the digest of the newest checkpoint's manifest, if there is a checkpoint. The other workers may be
// waiting for it if this worker's predecessor was lost before it published the digest.
func (a *Archive) Confirm(ctx context.Context) error {
	if a.saved < 0 {
		return nil
	}
	return a.agreement.confirm(ctx, a.saved)
}

// prune removes all checkpoints except the newest ones and the best.
func (a *Archive) prune(evaluations Evaluations) error {
	if evaluations.Best == nil {
		return a.checkpoints.Prune(a.opt.Keep)
	}
	return a.checkpoints.Prune(a.opt.Keep, evaluations.Best.Version)
}

// agentState returns the agent's weights, tokenizer and optimizer. If the agent is trained, the numbers come from a copy.
// For a hosted model the result is empty.
func (a *Archive) agentState(ctx context.Context, version int64) (AgentState, error) {
	if a.opt.Endpoint != nil {
		return AgentState{}, nil
	}
	st := state{Version: version, Counters: a.parameters.Counters(), Ranks: a.parameters.Ranks(), Reference: a.reference}
	out := AgentState{Name: a.opt.Agent, DType: a.opt.DType, Extra: a.opt.Tokenizer}
	master := func(from int64, dst []float32) error { return a.parameters.Read(ctx, from, dst) }
	if a.parameters.Trains() {
		c := a.snapshot
		if err := a.parameters.Copy(ctx, c.master, c.m, c.v); err != nil {
			return out, err
		}
		master = c.reader(ctx, c.master)
		out.Optimizer = &Optimizer{Step: st.Updates, Len: int64(len(c.master)), Buffers: map[string]func(int64, []float32) error{}}
		if a.opt.SaveMoments && st.Updates > 0 { // before the first update the moments are 0
			out.Optimizer.Buffers["m"], out.Optimizer.Buffers["v"] = c.reader(ctx, c.m), c.reader(ctx, c.v)
		}
		if a.opt.DType != weights.F32 {
			out.Optimizer.Buffers[masterBuffer] = master
		}
	}
	out.Files = a.parameters.Files(ctx, master)
	out.State, _ = json.Marshal(st) // integers and strings: cannot fail
	return out, nil
}
