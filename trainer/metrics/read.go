package metrics

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLineBytes)
	for in.Scan() {
		text := bytes.TrimSpace(in.Bytes())
		if len(text) == 0 {
			continue
		}
		var l Line
		if err := json.Unmarshal(text, &l); err != nil || !known(l) {
			log.Damaged++
			continue
		}
		log.add(l)
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return log, fmt.Errorf("a line is longer than %d bytes: this is not a file of metrics", maxLineBytes)
	}
	return log, in.Err()
}

func known(l Line) bool {
	switch l.Kind {
	case KindStep, KindEval, KindColdStart:
		return l.Step >= 0
	}
	return l.Kind == KindNote
}

func (g *Log) add(l Line) {
	if l.Kind == KindNote {
		g.Notes = append(g.Notes, l)
		return
	}
	// Lines of an agent that count are in order, so what l supersedes is at the end: look no further.
	for i := len(g.Records) - 1; i >= 0; i-- {
		old := g.Records[i]
		if old.Agent != l.Agent {
			continue
		}
		if old.place() < l.place() {
			break
		}
		g.Records = slices.Delete(g.Records, i, i+1)
	}
	g.Records = append(g.Records, l)
}

// HeldOut reads the held-out accuracy of a run's first and of its last evaluation. It is an error if there
// are fewer than two.
func HeldOut(dir string) (before, after float64, err error) {
	log, err := Read(dir)
	if err != nil {
		return 0, 0, err
	}
	var accuracy []float64
	for _, l := range log.Records {
		if v, ok := l.Values["accuracy"]; ok && l.Kind == KindEval {
			accuracy = append(accuracy, v)
		}
	}
	if len(accuracy) < 2 {
		return 0, 0, fmt.Errorf("metrics: %s has %d held-out evaluations, want the one before and the one after training (eval.before: true)", filepath.Join(dir, FileName), len(accuracy))
	}
	return accuracy[0], accuracy[len(accuracy)-1], nil
}
