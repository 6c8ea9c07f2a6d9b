package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// ColdStart is the progress of an agent's stopped cold start.
type ColdStart struct {
	Updates int64   `json:"updates"` // number of completed updates
	Over    bool    `json:"over"`    // all updates are completed; AdamW's moments are then not saved
	Loss    float64 `json:"loss"`    // sum over the updates; the cold start's record holds the mean
	Tokens  float64 `json:"tokens"`  // tokens of all updates
	Seconds float64 `json:"seconds"` // duration of all updates
}

// coldStartState is the state.json of a stopped cold start.
type coldStartState struct {
	ColdStart
	Files []durable.File `json:"files"` // the other files of the folder
}

// StoppedColdStarts lists the agents whose stopped cold starts are in a run's folder.
func StoppedColdStarts(dir string, agents []string) (stopped []string) {
	for _, name := range agents {
		if _, err := os.Lstat(coldStartDir(dir, name)); err == nil {
			stopped = append(stopped, name)
		}
	}
	return stopped
}

func coldStartDir(dir, agent string) string { return filepath.Join(dir, coldStartsFolder, agent) }

// SaveColdStart writes the weights, AdamW's moments and the progress of the cold start, and returns the path of the
// folder. The folder is removed when a checkpoint is complete.
func (a *Archive) SaveColdStart(ctx context.Context, c ColdStart) (folder string, err error) {
	o := Optimizer{Step: c.Updates, Len: a.parameters.Numel(), Buffers: map[string]func(int64, []float32) error{
		masterBuffer: func(from int64, dst []float32) error { return a.parameters.Read(ctx, from, dst) }}}
	if !c.Over {
		snap, free, err := a.takeSnapshot(ctx)
		if err != nil {
			return "", err
		}
		defer func() { _ = free() }()
		for name, buffer := range map[string][]float32{masterBuffer: snap.master, "m": snap.m, "v": snap.v} {
			o.Buffers[name] = snap.reader(ctx, buffer)
		}
	}
	folder = coldStartDir(a.opt.Dir, a.opt.Agent)
	if err = durable.MkdirAll(a.checkpoints.fsys(), filepath.Dir(folder)); err == nil {
		_, err = durable.WriteFolder(a.checkpoints.fsys(), folder, func(f *durable.Folder) error {
			if err := o.write(f); err != nil {
				return err
			}
			data, err := json.Marshal(coldStartState{c, f.Files()})
			if err != nil {
				return err
			}
			return f.CreateBytes(stateFile, data)
		})
	}
	if err != nil {
		return "", a.diskFull(fmt.Errorf("saving the state of the cold start: %w", err))
	}
	return folder, nil
}

// takeSnapshot copies the weights and moments. If the agent's checkpoints will not have moments, it allocates separate memory
// for them.
func (a *Archive) takeSnapshot(ctx context.Context) (snap *snapshot, free func() error, err error) {
	snap, free = a.snapshot, func() error { return nil }
	if snap == nil {
		if snap, err = newSnapshot(a.parameters.Numel()); err != nil {
			return nil, nil, err
		}
		free = snap.free
	}
	if err := a.parameters.Copy(ctx, snap.master, snap.m, snap.v); err != nil {
		return nil, nil, errors.Join(err, free())
	}
	return snap, free, nil
}

// RestoreColdStart restores the weights and moments of a stopped cold start. If there is no such state, or if it is
// damaged, it changes nothing and returns the zero value; for a damaged one it also sends a note.
func (a *Archive) RestoreColdStart(ctx context.Context) (ColdStart, error) {
	folder := coldStartDir(a.opt.Dir, a.opt.Agent)
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		return ColdStart{}, nil
	}
	c, f, err := openColdStart(folder, a.parameters.Numel())
	if err != nil {
		a.opt.Observer.Note(metrics.Warnf(a.opt.Agent, metrics.TopicStart,
			"the cold start begins again with the first update, because its saved state cannot be used: %s: %v", folder, err))
		return ColdStart{}, nil
	}
	defer f.Close()
	if err := a.parameters.RestoreMaster(ctx, f.reader(masterBuffer)); err != nil || c.Over {
		return c, err
	}
	return c, a.parameters.Restore(ctx, Counters{Updates: c.Updates}, f.reader("m"), f.reader("v"))
}

// openColdStart opens the folder of a stopped cold start. It verifies every byte first.
func openColdStart(folder string, numel int64) (c ColdStart, f *OptimizerFile, err error) {
	data, err := ReadState(folder)
	if err != nil {
		return c, nil, err
	}
	var state coldStartState
	if err := json.Unmarshal(data, &state); err != nil {
		return c, nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	if len(state.Files) != 1 || state.Files[0].Path != optimizerFile {
		return c, nil, fmt.Errorf("%s lists other files than %s", stateFile, optimizerFile)
	}
	if err := state.Files[0].Verify(folder); err != nil {
		return c, nil, fmt.Errorf("%s: %w", optimizerFile, err)
	}
	if f, err = OpenOptimizer(folder); err != nil {
		return c, nil, err
	}
	if c = state.ColdStart; f.Len() != numel || f.Step() != c.Updates || !f.Has(masterBuffer) || !c.Over && !(f.Has("m") && f.Has("v")) {
		return c, nil, errors.Join(fmt.Errorf("%s belongs to another model, with %d parameters", optimizerFile, f.Len()), f.Close())
	}
	return c, f, nil
}

// dropColdStart removes the folder of a stopped cold start, once a complete checkpoint has replaced it.
func (a *Archive) dropColdStart() error {
	return a.checkpoints.fsys().RemoveAll(coldStartDir(a.opt.Dir, a.opt.Agent))
}
