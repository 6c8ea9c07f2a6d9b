package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/durable"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// ColdStart is how far an agent's cold start had come when it was stopped.
type ColdStart struct {
	Updates int64   `json:"updates"` // made
	Over    bool    `json:"over"`    // and no more are to come: AdamW's moments are not kept
	Loss    float64 `json:"loss"`    // sum over the updates of which the cold start's record gives the mean
	Tokens  float64 `json:"tokens"`  // of all updates
	Seconds float64 `json:"seconds"` // that they took
}

// coldStartState is the state.json of a stopped cold start.
type coldStartState struct {
	ColdStart
	Files []durable.File `json:"files"` // the others of the folder
}

// StoppedColdStarts are those of the agents whose cold starts were stopped in a run's folder and can go on there.
func StoppedColdStarts(dir string, agents []string) (stopped []string) {
	for _, name := range agents {
		if _, err := os.Lstat(coldStartDir(dir, name)); err == nil {
			stopped = append(stopped, name)
		}
	}
	return stopped
}

func coldStartDir(dir, agent string) string { return filepath.Join(dir, coldStartsFolder, agent) }

// SaveColdStart writes the weights and AdamW's moments, and how far the cold start has come. The folder stays until a
// checkpoint is complete. It returns its path.
func (a *Archive) SaveColdStart(ctx context.Context, c ColdStart) (folder string, err error) {
	o := Optimizer{Step: c.Updates, Len: a.parameters.Numel(), Buffers: map[string]func(int64, []float32) error{
		masterBuffer: func(from int64, dst []float32) error { return a.parameters.Read(ctx, from, dst) }}}
	if !c.Over {
		o.Buffers["m"], o.Buffers["v"] = a.parameters.Moments(ctx)
	}
	folder = coldStartDir(a.Dir, a.Agent)
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
		return "", a.diskFull(fmt.Errorf("state of the cold start: %w", err))
	}
	return folder, nil
}

// RestoreColdStart continues the weights and moments of a cold start that was stopped. Where there is none, or a
// damaged one, which the observer is told of, it changes nothing and returns the zero value.
func (a *Archive) RestoreColdStart(ctx context.Context) (ColdStart, error) {
	folder := coldStartDir(a.Dir, a.Agent)
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		return ColdStart{}, nil
	}
	c, f, err := openColdStart(folder, a.parameters.Numel())
	if err != nil {
		a.Observer.Note(metrics.Warnf(a.Agent, metrics.TopicStart, "the cold start is made again from its first update: %s: %v", folder, err))
		return ColdStart{}, nil
	}
	defer f.Close()
	if err := a.parameters.RestoreMaster(ctx, f.reader(masterBuffer)); err != nil || c.Over {
		return c, err
	}
	return c, a.parameters.Restore(ctx, Counters{Updates: c.Updates}, f.reader("m"), f.reader("v"))
}

// openColdStart reads every byte of a stopped cold start's folder before anything of it is used.
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
		return c, nil, fmt.Errorf("%s names other files than %s", stateFile, optimizerFile)
	}
	if err := verifyFile(folder, state.Files[0]); err != nil {
		return c, nil, fmt.Errorf("%s: %w", optimizerFile, err)
	}
	if f, err = OpenOptimizer(folder); err != nil {
		return c, nil, err
	}
	if c = state.ColdStart; f.Len() != numel || f.Step() != c.Updates || !f.Has(masterBuffer) || !c.Over && !(f.Has("m") && f.Has("v")) {
		return c, nil, errors.Join(fmt.Errorf("%s holds the state of another model, of %d parameters", optimizerFile, f.Len()), f.Close())
	}
	return c, f, nil
}

// dropColdStart removes what is there of a stopped cold start: a checkpoint holds what came of it.
func (a *Archive) dropColdStart() error {
	return a.checkpoints.fsys().RemoveAll(coldStartDir(a.Dir, a.Agent))
}
