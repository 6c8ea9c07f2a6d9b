package trainer

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/store"
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
	sorted := slices.SortedFunc(maps.Values(lines), func(a, b *Line) int { return cmp.Compare(a.ID, b.ID) })
	if err := writeLines(w.trajectoriesOf(p.String()), sorted); err != nil {
		w.observer.Note(metrics.Warnf(w.name, metrics.TopicFiles, "trajectories of %s are not saved: %v", p, err))
	}
}

func (w *Worker) trajectoriesOf(phase string) string {
	return filepath.Join(w.dir, trajectoriesFolder, phase, w.name+".jsonl")
}

// dropTrajectories removes what this agent said in phases that will be played again: those that begin with
// version from or a later one, but the evaluation of from itself if that was made.
func (w *Worker) dropTrajectories(from int64) error {
	folders, err := filepath.Glob(filepath.Join(w.dir, trajectoriesFolder, "*-*"))
	for _, folder := range folders {
		phase := filepath.Base(folder)
		kind, number, _ := strings.Cut(phase, "-")
		version, notNumber := strconv.ParseInt(number, 10, 64)
		if notNumber != nil || version < from || kind == store.Eval(0).Kind && w.results.evaluated(version) {
			continue
		}
		if gone := os.Remove(w.trajectoriesOf(phase)); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
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
