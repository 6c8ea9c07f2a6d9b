package check

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// line is a line of an agent's ledger.
type line struct {
	Step     int64     `json:"step"`
	Rollouts []rollout `json:"rollouts"`
	Updates  int64     `json:"updates"`
}

type rollout struct {
	ID      string    `json:"id"`
	Trained []float64 `json:"trained"`
	Removed string    `json:"removed"`
}

// ledgers checks every agent's ledger: it must have each step once and in order, and in each step the rollouts of the
// uninterrupted run, once. Each rollout must be trained on by all agents, or removed for all.
func (f *Findings) ledgers(s Settings) {
	want, err := readLedger(s.Whole, s.Agents[0])
	if err != nil || int64(len(want)) != s.Steps {
		f.void("the uninterrupted run's ledger has %d steps: %v", len(want), err)
		return
	}
	fates := make([]map[string]string, len(want)) // of the first agent: for each step, the reason of removal by rollout
	seen := map[string]int64{}
	for _, l := range want {
		for _, r := range l.Rollouts {
			if step, again := seen[r.ID]; again {
				f.void("the uninterrupted run made rollout %s in step %d and in step %d", r.ID, step, l.Step)
			}
			seen[r.ID] = l.Step
		}
	}
	f.Rollouts = len(seen)
	for _, agent := range s.Agents {
		got, err := readLedger(s.Dirs[agent], agent)
		if err != nil {
			f.broken("%v", err)
		}
		for i, l := range got {
			if l.Step != int64(i) {
				f.broken("%s: line %d of the ledger is of step %d", agent, i+1, l.Step)
			}
		}
		if int64(len(got)) != s.Steps {
			f.broken("%s: the ledger has %d steps, want %d", agent, len(got), s.Steps)
		}
		f.rollouts(agent, want, got)
		f.agreed(agent, fates, got)
	}
}

// rollouts compares the rollouts of an agent's ledger with the rollouts of the uninterrupted run.
func (f *Findings) rollouts(agent string, want, got []line) {
	times := map[string]int{}
	for _, l := range got {
		for _, r := range l.Rollouts {
			times[r.ID]++
			if times[r.ID] > 1 {
				f.Duplicated++
				f.broken("%s: rollout %s is in the ledger %d times", agent, r.ID, times[r.ID])
			}
		}
	}
	for i, l := range want {
		for _, r := range l.Rollouts {
			if i >= len(got) || !slices.ContainsFunc(got[i].Rollouts, func(x rollout) bool { return x.ID == r.ID }) {
				f.Lost++
				f.broken("%s: rollout %s is lost from step %d", agent, r.ID, l.Step)
			}
			delete(times, r.ID)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(times)) {
		f.broken("%s: the uninterrupted run has no rollout %s", agent, id)
	}
}

// agreed checks that all agents trained on a rollout, or all removed it for the same reason.
func (f *Findings) agreed(agent string, fates []map[string]string, got []line) {
	for i, l := range got[:min(len(got), len(fates))] {
		fate := map[string]string{}
		for _, r := range l.Rollouts {
			if (r.Trained == nil) == (r.Removed == "") {
				f.broken("%s: rollout %s of step %d is neither trained nor removed, or both", agent, r.ID, l.Step)
			}
			fate[r.ID] = r.Removed
		}
		if fates[i] == nil {
			fates[i] = fate
		}
		if !maps.Equal(fates[i], fate) {
			f.broken("%s: the removed rollouts of step %d differ from those of the first agent", agent, l.Step)
		}
	}
}

func ledgerPath(dir, agent string) string { return filepath.Join(dir, "ledger", agent+".jsonl") }

func readLedger(dir, agent string) ([]line, error) {
	data, err := os.ReadFile(ledgerPath(dir, agent))
	if err != nil {
		return nil, err
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		return nil, fmt.Errorf("%s ends in the middle of a line", ledgerPath(dir, agent))
	}
	var lines []line
	in := bufio.NewScanner(bytes.NewReader(data))
	in.Buffer(nil, len(data)+1)
	for in.Scan() {
		var l line
		dec := json.NewDecoder(bytes.NewReader(in.Bytes()))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&l); err != nil {
			return lines, fmt.Errorf("%s: line %d: %w", ledgerPath(dir, agent), len(lines)+1, err)
		}
		lines = append(lines, l)
	}
	return lines, in.Err()
}
