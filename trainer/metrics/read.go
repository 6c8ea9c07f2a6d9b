package metrics

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// maxLineBytes is the size of the longest line of metrics.jsonl; a record has a few kilobytes.
const maxLineBytes = 4 << 20

// Log is the content of metrics.jsonl.
type Log struct {
	Records []Line // valid records, in the order in which they were written
	Notes   []Line // all notes, in the order in which they were written
	Damaged int    // number of unreadable lines, such as a line cut by a crash
}

// Read reads the metrics.jsonl of a run's folder. A run that was resumed from a checkpoint or started again reports earlier
// steps again. The new record replaces the same agent's records of that step and of later steps.
func Read(dir string) (Log, error) {
	f, err := os.Open(filepath.Join(dir, FileName))
	if err != nil {
		return Log{}, fmt.Errorf("metrics: %w", err)
	}
	defer f.Close()
	log, err := read(f)
	if err != nil {
		return log, fmt.Errorf("metrics: %s: %w", f.Name(), err)
	}
	return log, nil
}

func read(r io.Reader) (Log, error) {
	var log Log
	var kept History
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLineBytes)
	for in.Scan() {
		text := bytes.TrimSpace(in.Bytes())
		if len(text) == 0 {
			continue
		}
		switch l, err := ParseLine(text); {
		case err != nil:
			log.Damaged++
		case l.Kind == KindNote:
			log.Notes = append(log.Notes, l)
		default:
			kept.Add(l)
		}
	}
	log.Records = kept.Lines()
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return log, fmt.Errorf("a line is longer than %d bytes: this is not a file of metrics", maxLineBytes)
	}
	return log, in.Err()
}

// ParseLine reads a line. The line may come from any program.
func ParseLine(text []byte) (Line, error) {
	var l Line
	if err := json.Unmarshal(text, &l); err != nil {
		return Line{}, err
	}
	switch l.Kind {
	case KindStep, KindEval, KindColdStart, KindNote:
	default:
		return Line{}, fmt.Errorf("a line has the unknown kind %.64q", l.Kind)
	}
	if l.Step < 0 {
		return Line{}, fmt.Errorf("a line has the invalid step %d", l.Step)
	}
	return l, nil
}

// History collects the valid records of a run. All records must be added, in the order in which they were written. A
// resumed run reports steps again: a record replaces the same agent's records of its step and of later steps.
type History struct {
	read    int
	byAgent map[string][]indexedLine // in order of Line.position
}

type indexedLine struct {
	Line
	index int // index in the file
}

// Add appends a record.
func (h *History) Add(l Line) {
	if h.byAgent == nil {
		h.byAgent = map[string][]indexedLine{}
	}
	h.read++
	list := h.byAgent[l.Agent]
	for len(list) > 0 && list[len(list)-1].position() >= l.position() {
		list = list[:len(list)-1]
	}
	h.byAgent[l.Agent] = append(list, indexedLine{l, h.read})
}

// Lines returns the valid records of all agents in the order in which they were added.
func (h *History) Lines() []Line {
	var all []indexedLine
	for _, list := range h.byAgent {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b indexedLine) int { return cmp.Compare(a.index, b.index) })
	out := make([]Line, len(all))
	for i, p := range all {
		out[i] = p.Line
	}
	return out
}

// Evaluations returns the main agent's held-out evaluations among a run's records that can be compared with the last evaluation, because
// questions and settings are the same. A record without a digest of them counts as equal.
func Evaluations(records []Line) []Line {
	var all []Line
	for _, l := range records {
		if _, ok := l.Values[Accuracy]; l.Kind == KindEval && (ok || l.Unknown != "") {
			all = append(all, l)
		}
	}
	if len(all) == 0 {
		return nil
	}
	last := all[len(all)-1].HeldOutDigest
	return slices.DeleteFunc(all, func(l Line) bool { return l.HeldOutDigest != "" && last != "" && l.HeldOutDigest != last })
}

// HeldOutAccuracies reads the held-out accuracies before the first step and at the last evaluation. It returns an error if either is
// missing.
func HeldOutAccuracies(dir string) (before, after float64, err error) {
	log, err := Read(dir)
	if err != nil {
		return 0, 0, err
	}
	heldOut := Evaluations(log.Records)
	if len(heldOut) < 2 || heldOut[0].Step > 0 {
		return 0, 0, fmt.Errorf("metrics: %s must have a held-out evaluation before training and one of the same questions after it (eval.before: true)",
			filepath.Join(dir, FileName))
	}
	for _, l := range []Line{heldOut[0], heldOut[len(heldOut)-1]} {
		if l.Unknown != "" {
			return 0, 0, fmt.Errorf("metrics: evaluation after step %d: %s", l.Step, l.Unknown)
		}
	}
	return heldOut[0].Values[Accuracy], heldOut[len(heldOut)-1].Values[Accuracy], nil
}
