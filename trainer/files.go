package trainer

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/checkpoint"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// Folders of a run.
const (
	checkpointsFolder  = "checkpoints"
	trajectoriesFolder = "trajectories"
	failedFolder       = "failed"
	configFile         = "config.yaml"
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
	for id, t := range held.trajectories {
		lines[id] = &Line{Trajectory: t.Trajectory, Task: t.task, Expert: t.expert}
	}
	for i, g := range groups {
		for j, m := range g.Members {
			l := lines[trajectoryID(m.Query, m.Rollout, w.name, m.Invocation, w.main)]
			l.Reward, l.Weight, l.Advantage = &m.Reward, m.Weight, advantages[i].Advantage[j]
		}
	}
	path := filepath.Join(w.dir, trajectoriesFolder, p.String(), w.name+".jsonl")
	sorted := slices.SortedFunc(maps.Values(lines), func(a, b *Line) int { return cmp.Compare(a.ID, b.ID) })
	if err := writeLines(path, sorted); err != nil {
		w.observer.Note(w.name, fmt.Sprintf("warning: trajectories of %s are not saved: %v", p, err))
	}
}

// badSequence is a line of a refused batch. Numbers are text, since JSON knows neither NaN nor infinity.
type badSequence struct {
	ID        string   `json:"id"`
	Group     int64    `json:"group"`
	Weight    string   `json:"weight"`
	Advantage string   `json:"advantage"`
	Tokens    []int32  `json:"tokens"`
	Sampled   []bool   `json:"sampled"`
	Behaviour []string `json:"behaviour"` // the sampler's log-probs
}

// saveBatch writes the batch of a refused update, a JSON line a sequence.
func saveBatch(path string, batch []*learner.Sequence) error {
	text := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	lines := make([]badSequence, len(batch))
	for i, q := range batch {
		lines[i] = badSequence{ID: q.ID, Group: q.Group, Weight: text(q.Weight), Advantage: text(q.Advantage), Tokens: q.Tokens, Sampled: q.Sampled}
		for _, v := range q.Behaviour {
			lines[i].Behaviour = append(lines[i].Behaviour, text(float64(v)))
		}
	}
	return writeLines(path, lines)
}

func writeLines[T any](path string, lines []T) (err error) {
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
	for _, line := range lines {
		if err := enc.Encode(line); err != nil {
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
// version complete once every agent has named its files. Of a version that has its checkpoint only the
// ledger is written again.
func (w *Worker) checkpoint(ctx context.Context, version int64) error {
	if version == w.saved {
		return w.amend()
	}
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
	if err != nil {
		return err
	}
	w.saved = version
	if !w.main {
		return nil
	}
	m := checkpoint.Manifest{Run: w.cfg.Run.Name, Step: version, ConfigDigest: w.cfg.Digest(), CPUFeatures: cpuFeatures()}
	for _, name := range w.agentNames() {
		files, err := parseFiles(name, held[name])
		if err != nil {
			return fmt.Errorf("checkpoint %d: %w", version, err)
		}
		m.Agents = append(m.Agents, files)
	}
	m.Ledger = w.ledger.encode()
	if err := w.run.Commit(m); err != nil {
		return fmt.Errorf("checkpoint %d: %w", version, err)
	}
	w.observer.Note(w.name, fmt.Sprintf("checkpoint %s", w.run.StepDir(version)))
	if err := w.member.Trim(ctx, version-1); err != nil {
		return err
	}
	return w.prune()
}

// amend writes the ledger as it is now into the newest checkpoint, and removes old ones.
func (w *Worker) amend() error {
	if !w.main {
		return nil
	}
	if err := w.run.SetLedger(w.saved, w.ledger.encode()); err != nil {
		return err
	}
	return w.prune()
}

// prune removes all checkpoints but the newest and the best.
func (w *Worker) prune() error {
	if w.ledger.Best == nil {
		return w.run.Prune(w.cfg.Run.Keep)
	}
	return w.run.Prune(w.cfg.Run.Keep, w.ledger.Best.Version)
}

// ledger is where the run stands, beside what each agent knows of itself; a manifest carries it. Every
// worker keeps the same one, from the outcomes that all of them see.
type ledger struct {
	Evaluated *int64 `json:"evaluated,omitempty"` // newest version that was evaluated to the end
	Best      *best  `json:"best,omitempty"`
}

func (l *ledger) encode() json.RawMessage {
	data, _ := json.Marshal(l) // finite numbers: cannot fail
	return data
}

// evaluated says whether a version was evaluated to the end.
func (l *ledger) evaluated(version int64) bool { return l.Evaluated != nil && *l.Evaluated == version }

// best is the version with the highest held-out accuracy, the first of several.
type best struct {
	Version  int64   `json:"version"`
	Accuracy float64 `json:"accuracy"`
}

// note counts an evaluation in. An accuracy of 0 is no achievement.
func (l *ledger) note(version int64, outcomes []store.Outcome) {
	l.Evaluated = &version
	var correct mean
	for _, o := range outcomes {
		if o.Failed == "" {
			correct.add(o.Correct)
		}
	}
	if a := correct.value(); a > 0 && (l.Best == nil || a > l.Best.Accuracy) {
		l.Best = &best{version, a}
	}
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

// restore continues the ledger, the optimizer and the counters of a checkpoint; the weights are loaded
// already.
func (w *Worker) restore(ctx context.Context, from *checkpoint.Manifest) error {
	agentDir := agentDir(w.run, from.Step, w.name)
	if len(from.Ledger) > 0 {
		if err := json.Unmarshal(from.Ledger, &w.ledger); err != nil {
			return fmt.Errorf("checkpoint %d: its ledger: %w", from.Step, err)
		}
	}
	if w.learner == nil {
		return nil
	}
	data, err := checkpoint.ReadState(agentDir)
	if err != nil {
		return err
	}
	var st state
	if err := json.Unmarshal(data, &st); err != nil {
		return fmt.Errorf("%s/state.json: %w", agentDir, err)
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
