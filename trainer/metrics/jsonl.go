package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// FileName is the name of the file in a run's folder that JSONL writes and Read reads.
const FileName = "metrics.jsonl"

// KindNote is the kind of a Line that carries an Observer's note.
const KindNote = "note"

// Line is one line of metrics.jsonl: a Record or, with kind "note", a Note.
type Line struct {
	Time time.Time `json:"time"` // time of the report, UTC
	Record
	Severity Severity `json:"severity,omitempty"`
	Topic    Topic    `json:"topic,omitempty"`
	Text     string   `json:"text,omitempty"`
}

// NewLine returns the line of a record that is reported now. It omits values that are not finite, which JSON cannot
// represent.
func NewLine(r Record) Line {
	r.Values = finite(r.Values)
	return Line{Time: time.Now().UTC(), Record: r}
}

// JSONL appends each record and note to metrics.jsonl as a line, in a single write. Several processes may append to the
// same file. A resumed run appends records of the same steps again, and Read keeps each step's last record.
type JSONL struct {
	path      string
	mu        sync.Mutex
	file      *os.File // opened when the first line is written, and again after a failure
	unwritten []byte   // complete lines: they must not be dropped, because a step inside a checkpoint is never reported again
	err       error    // reason why they are not written
}

// NewJSONL returns the writer for a run's folder. The first line creates the file.
func NewJSONL(dir string) *JSONL { return &JSONL{path: filepath.Join(dir, FileName)} }

// Progress does nothing, because progress is not recorded.
func (*JSONL) Progress(Progress) {}

// Report appends a record, without values that are not finite.
func (j *JSONL) Report(r Record) { j.write(NewLine(r), true) }

// Note appends a note, which belongs to no step.
func (j *JSONL) Note(n Note) {
	j.write(noteLine{time.Now().UTC(), KindNote, n.Agent, n.Severity, n.Topic, n.Text}, false)
}

// noteLine is the line of a note: a Line without the step and the values of a record.
type noteLine struct {
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Agent    string    `json:"agent,omitempty"`
	Severity Severity  `json:"severity,omitempty"`
	Topic    Topic     `json:"topic,omitempty"`
	Text     string    `json:"text,omitempty"`
}

// Close closes the file. If some lines could not be written, it returns the reason.
func (j *JSONL) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		j.err = j.flush()
	}
	if j.file != nil {
		j.err = errors.Join(j.err, j.file.Close())
		j.file = nil
	}
	if j.err != nil {
		return fmt.Errorf("metrics: %w", j.err)
	}
	return nil
}

// write appends a line, which is on the disk at once if `sync` is true.
func (j *JSONL) write(line any, sync bool) {
	text, err := json.Marshal(line)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		j.unwritten = append(append(j.unwritten, text...), '\n')
		err = j.flush()
	}
	if err == nil && sync {
		err = j.file.Sync()
	}
	j.err = err
}

// flush writes the unwritten lines. After a failure it opens the file again, which ends a partly written line, and writes all
// of them again.
func (j *JSONL) flush() (err error) {
	if j.file == nil {
		if j.file, err = appendTo(j.path); err != nil {
			return err
		}
	}
	if _, err = j.file.Write(j.unwritten); err != nil {
		err = errors.Join(err, j.file.Close())
		j.file = nil
		return err
	}
	j.unwritten = j.unwritten[:0]
	return nil
}

// appendTo opens a file of lines for appending. It ends an incomplete last line of an interrupted run.
func appendTo(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o644)
	if err == nil {
		if err = endLine(f); err == nil {
			return f, nil
		}
		err = errors.Join(err, f.Close())
	}
	return nil, err
}

// endLine ends a last line that is incomplete.
func endLine(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return err
	}
	if last[0] != '\n' {
		_, err = f.Write([]byte("\n"))
	}
	return err
}

func finite(values map[string]float64) map[string]float64 {
	out := make(map[string]float64, len(values))
	for name, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			out[name] = v
		}
	}
	return out
}
