package trainer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/checkpoint"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// Folders of a run.
const (
	checkpointsFolder  = "checkpoints"
	trajectoriesFolder = "trajectories"
)

// Line is one line of trajectories/PHASE/AGENT.jsonl.
type Line struct {
	agent.Trajectory
	Task      string   `json:"task"`
	Expert    *float64 `json:"expert,omitempty"`
	Reward    *float64 `json:"reward,omitempty"` // absent in evaluations and in removed rollouts
	Weight    float64  `json:"weight,omitempty"`
	Advantage float64  `json:"advantage,omitempty"`
}

// saveTrajectories writes what this agent said in a phase, with what became of it. A failure to write is
// noted and does not stop the run.
func (w *Worker) saveTrajectories(p store.Phase, held *holding, groups []mgrpo.Group, advantages []mgrpo.GroupAdvantage) {
	lines := map[string]*Line{}
	ids := make([]string, 0, len(held.trajectories))
	for id, t := range held.trajectories {
		lines[id] = &Line{Trajectory: t.Trajectory, Task: t.task, Expert: t.expert}
		ids = append(ids, id)
	}
	for i, g := range groups {
		for j, m := range g.Members {
			l := lines[trajectoryID(g.Query, m.Rollout, w.name, m.Invocation, w.main)]
			l.Reward, l.Weight, l.Advantage = &m.Reward, m.Weight, advantages[i].Advantage[j]
		}
	}
	sort.Strings(ids)
	path := filepath.Join(w.dir, trajectoriesFolder, p.String(), w.name+".jsonl")
	if err := writeLines(path, ids, lines); err != nil {
		w.observer.Note(w.name, fmt.Sprintf("warning: trajectories of %s are not saved: %v", p, err))
	}
}

func writeLines(path string, ids []string, lines map[string]*Line) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf := bufio.NewWriterSize(f, 1<<16)
	enc := json.NewEncoder(buf)
	for _, id := range ids {
		if err := enc.Encode(lines[id]); err != nil {
			return err
		}
	}
	return buf.Flush()
}

// state is an agent's state.json: what is not in the weights or the optimizer's moments.
type state struct {
	Version int64 `json:"version"` // training steps committed
	Updates int64 `json:"updates"` // optimizer updates, which bias correction counts
}

// checkpoint writes this agent's files of a version and, as the main agent, the manifest that makes the
// version complete once every agent has named its files.
func (w *Worker) checkpoint(ctx context.Context, version int64) error {
	phase := store.Checkpoint(version)
	w.observer.Progress(w.name, phase.String(), 0, 0)
	files, err := w.run.SaveAgent(version, w.agentState(ctx, version))
	if err != nil {
		return fmt.Errorf("checkpoint %d: %w", version, err)
	}
	if err := w.member.PublishHolding(ctx, phase, listFiles(files)); err != nil {
		return err
	}
	held, err := w.member.Holdings(ctx, phase)
	if err != nil || !w.main {
		return err
	}
	m := checkpoint.Manifest{Run: w.cfg.Run.Name, Step: version, ConfigDigest: w.cfg.Digest(), CPUFeatures: cpuFeatures()}
	for _, name := range w.agentNames() {
		files, err := parseFiles(name, held[name])
		if err != nil {
			return fmt.Errorf("checkpoint %d: %w", version, err)
		}
		m.Agents = append(m.Agents, files)
	}
	if err := w.run.Commit(m); err != nil {
		return fmt.Errorf("checkpoint %d: %w", version, err)
	}
	w.observer.Note(w.name, fmt.Sprintf("checkpoint %s", w.run.StepDir(version)))
	return w.run.Prune(w.cfg.Run.Keep, w.best.version)
}

// listFiles is what a worker says it holds of a checkpoint: "SHA256 SIZE PATH" for each file.
func listFiles(files checkpoint.AgentFiles) []string {
	out := make([]string, len(files.Files))
	for i, f := range files.Files {
		out[i] = fmt.Sprintf("%s %d %s", f.SHA256, f.Size, f.Path)
	}
	return out
}

func parseFiles(name string, lines []string) (checkpoint.AgentFiles, error) {
	out := checkpoint.AgentFiles{Name: name}
	for _, line := range lines {
		var f checkpoint.File
		if n, err := fmt.Sscanf(line, "%64s %d %s", &f.SHA256, &f.Size, &f.Path); n != 3 || err != nil {
			return out, fmt.Errorf("%s holds %q, which is not a digest, a size and a path", name, line)
		}
		out.Files = append(out.Files, f)
	}
	return out, nil
}

// agentState streams the agent's weights, tokenizer and optimizer out.
func (w *Worker) agentState(ctx context.Context, version int64) checkpoint.AgentState {
	st := state{Version: version}
	out := checkpoint.AgentState{
		Name: w.name, Config: w.model.Config, Tensors: checkpoint.ExpectedTensors(w.model.Config),
		DType: checkpoint.F32, Extra: w.tokenizer.Files(),
		Read: w.reader(ctx),
	}
	if w.learner != nil {
		st.Updates = w.learner.Steps()
		m, v := w.learner.Moments()
		out.Optimizer = &checkpoint.Optimizer{
			Step: st.Updates, Len: w.model.Layout.Numel,
			Buffers: map[string]func(int64, []float32) error{
				"m": func(from int64, dst []float32) error { return w.model.ReadFlat(ctx, m, from, dst) },
				"v": func(from int64, dst []float32) error { return w.model.ReadFlat(ctx, v, from, dst) },
			},
		}
	}
	out.State, _ = json.Marshal(st) // two integers: cannot fail
	return out
}

// reader gives a checkpoint writer the weights by their Hugging Face names.
func (w *Worker) reader(ctx context.Context) func(name string, dst []float32) error {
	parts := map[string]model.Part{}
	for _, p := range w.model.Layout.Parts() {
		parts[p.Name] = p
	}
	return func(name string, dst []float32) error {
		return w.model.ReadFlat(ctx, w.model.Master, parts[name].Offset, dst)
	}
}

// restore continues the optimizer and the counters of a checkpoint; the weights are loaded already.
func (w *Worker) restore(ctx context.Context, agentDir string) error {
	data, err := os.ReadFile(filepath.Join(agentDir, "state.json"))
	if err != nil {
		return err
	}
	var st state
	if err := json.Unmarshal(data, &st); err != nil {
		return fmt.Errorf("%s/state.json: %w", agentDir, err)
	}
	if w.learner == nil {
		return nil
	}
	f, err := checkpoint.OpenOptimizer(agentDir)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Len() != w.model.Layout.Numel {
		return fmt.Errorf("%s: optimizer state of %d values for %d parameters", agentDir, f.Len(), w.model.Layout.Numel)
	}
	m, v := w.learner.Moments()
	if err := w.model.WriteFlat(ctx, m, func(from int64, dst []float32) error { return f.Read("m", from, dst) }); err != nil {
		return err
	}
	if err := w.model.WriteFlat(ctx, v, func(from int64, dst []float32) error { return f.Read("v", from, dst) }); err != nil {
		return err
	}
	w.learner.SetSteps(st.Updates)
	return nil
}
