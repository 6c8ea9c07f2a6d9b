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
	"strings"
)

// maxLineBytes bounds a line of metrics.jsonl; a record has some kilobytes.
const maxLineBytes = 4 << 20

// Log is what metrics.jsonl says of a run.
type Log struct {
	Records []Line // those that count, in the order they were written
	Notes   []Line // all notes, in the order they were written
	Damaged int    // lines that are no records, such as one that a crash cut off
}

// Read reads the metrics.jsonl of a run's folder. A run that went back, because it was resumed from a
// checkpoint or started again, says so by reporting an earlier step: what the same agent had reported of
// that step and of later ones no longer counts.
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
	var kept history
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLineBytes)
	for in.Scan() {
		text := bytes.TrimSpace(in.Bytes())
		if len(text) == 0 {
			continue
		}
		var l Line
		switch err := json.Unmarshal(text, &l); {
		case err != nil || !known(l):
			log.Damaged++
		case l.Kind == KindNote:
			log.Notes = append(log.Notes, asNote(l))
		default:
			kept.add(l)
		}
	}
	log.Records = kept.lines()
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return log, fmt.Errorf("a line is longer than %d bytes: this is not a file of metrics", maxLineBytes)
	}
	return log, in.Err()
}

// asNote gives a note the severity that it was written with. Until notes had one the text of a warning began with
// "warning: ".
func asNote(l Line) Line {
	if text, warns := strings.CutPrefix(l.Text, "warning: "); warns && l.Severity == "" {
		l.Severity, l.Text = Warning, text
	}
	return l
}

func known(l Line) bool {
	switch l.Kind {
	case KindStep, KindEval, KindColdStart:
		return l.Step >= 0
	}
	return l.Kind == KindNote
}

// history is the records that count so far.
type history struct {
	read    int
	byAgent map[string][]placed // in order of Line.place
}

type placed struct {
	Line
	at int // position in the file
}

// add appends a record to its agent's, in place of those that are not before it in the course of a run.
func (h *history) add(l Line) {
	if h.byAgent == nil {
		h.byAgent = map[string][]placed{}
	}
	h.read++
	list := h.byAgent[l.Agent]
	for len(list) > 0 && list[len(list)-1].place() >= l.place() {
		list = list[:len(list)-1]
	}
	h.byAgent[l.Agent] = append(list, placed{l, h.read})
}

// lines are the records of all agents in the order of the file.
func (h *history) lines() []Line {
	var all []placed
	for _, list := range h.byAgent {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	out := make([]Line, len(all))
	for i, p := range all {
		out[i] = p.Line
	}
	return out
}

// HeldOut reads the held-out accuracy of a run before its first step and after its last evaluated one. It is an error
// if there are not both.
func HeldOut(dir string) (before, after float64, err error) {
	log, err := Read(dir)
	if err != nil {
		return 0, 0, err
	}
	var heldOut []Line
	for _, l := range log.Records {
		if _, ok := l.Values["accuracy"]; l.Kind == KindEval && (ok || l.Unknown != "") {
			heldOut = append(heldOut, l)
		}
	}
	if len(heldOut) < 2 || heldOut[0].Step > 0 {
		return 0, 0, fmt.Errorf("metrics: %s has no held-out evaluation before training and one after it (eval.before: true)", filepath.Join(dir, FileName))
	}
	for _, l := range []Line{heldOut[0], heldOut[len(heldOut)-1]} {
		if l.Unknown != "" {
			return 0, 0, fmt.Errorf("metrics: evaluation after step %d: %s", l.Step, l.Unknown)
		}
	}
	return heldOut[0].Values["accuracy"], heldOut[len(heldOut)-1].Values["accuracy"], nil
}
