package archive

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Line is one line of trajectories/PHASE/AGENT.jsonl.
type Line struct {
	agent.Trajectory
	Task      string   `json:"task"`
	Expert    *float64 `json:"expert,omitempty"`
	Reward    *float64 `json:"reward,omitempty"` // absent in evaluations and in removed rollouts
	Weight    float64  `json:"weight,omitempty"`
	Advantage float64  `json:"advantage,omitempty"`
	Program   string   `json:"program,omitempty"` // the program that played the rollout wrote this for people
	// Id of the trajectory that this row continues, because the conversation was folded or the program rewrote its history.
	RowOf string `json:"row_of,omitempty"`
}

// Trajectories writes the conversations of one agent's worker to a run's folder: trajectories, a file for each phase, and the batches of
// refused updates.
type Trajectories struct {
	dir      string // the run's folder
	agent    string
	observer metrics.Observer
}

// Write writes the agent's trajectories of a phase. After an error it sends a note, and the run continues.
func (t Trajectories) Write(p store.Phase, lines []*Line) {
	if err := writeLines(t.path(p.String()), lines); err != nil {
		t.observer.Note(metrics.Warnf(t.agent, metrics.TopicFiles, "trajectories of %s are not saved: %v", p, err))
	}
}

func (t Trajectories) path(phase string) string {
	return filepath.Join(TrajectoriesDir(t.dir), phase, t.agent+".jsonl")
}

// drop removes the agent's trajectories of phases that will be repeated: all phases of version `from` and
// later, except the evaluation of `from` if its result is already available.
func (t Trajectories) drop(from int64, available Evaluations) error {
	folders, err := os.ReadDir(TrajectoriesDir(t.dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, folder := range folders {
		phase := folder.Name()
		kind, number, _ := strings.Cut(phase, "-")
		version, notNumber := strconv.ParseInt(number, 10, 64)
		if notNumber != nil || version < from || (store.Phase{Kind: kind}).Evaluates() && available.Done(version) {
			continue
		}
		if gone := os.Remove(t.path(phase)); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// Sequence is a line of a refused batch. Its numbers are text, because JSON cannot represent NaN or infinity.
type Sequence struct {
	ID        string   `json:"id"`
	Group     int64    `json:"group"`
	Weight    Number   `json:"weight"`
	Advantage Number   `json:"advantage"`
	Tokens    []int32  `json:"tokens"`
	Sampled   []bool   `json:"sampled"`
	Behaviour []Number `json:"behaviour"` // the sampler's log-probs
}

// Number is written as text, such as "0.5", "NaN" or "-Inf".
type Number float64

// MarshalText implements encoding.TextMarshaler.
func (n Number) MarshalText() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(n), 'g', -1, 64), nil
}

// FailedDir returns the folder of refused batches.
func (t Trajectories) FailedDir() string { return filepath.Join(t.dir, failedFolder) }

// WriteRefused writes the batch of a refused update for debugging, one JSON object per line and sequence.
func (t Trajectories) WriteRefused(step int64, update int, batch []Sequence) (path string, err error) {
	path = filepath.Join(t.FailedDir(), fmt.Sprintf("step-%d-%s-update-%d.jsonl", step, t.agent, update))
	return path, writeLines(path, batch)
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
