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

// FileName is the file of a run's folder that JSONL writes and Read reads.
const FileName = "metrics.jsonl"

// KindNote is the kind of a Line that carries an Observer's note.
const KindNote = "note"

// Line is one line of metrics.jsonl: a Record or, with kind "note", a Note.
type Line struct {
	Time time.Time `json:"time"` // when it was reported, UTC
	Record
	Severity Severity `json:"severity,omitempty"`
	Topic    Topic    `json:"topic,omitempty"`
	Text     string   `json:"text,omitempty"`
}

// JSONL appends every record and note to metrics.jsonl, a line each, written at once. Several processes
// may append to the same file. What a resumed run reports again is appended too: Read knows which line counts.
type JSONL struct {
	path string
	mu   sync.Mutex
	file *os.File // opened by the first line
	err  error    // the first failure; nothing is written after it
}

// NewJSONL returns the writer of a run's folder. Nothing is created before there is something to write.
func NewJSONL(dir string) *JSONL { return &JSONL{path: filepath.Join(dir, FileName)} }

// Progress is not recorded.
func (*JSONL) Progress(Progress) {}

// Report appends a record. Values that are not finite have no JSON and are left out.
func (j *JSONL) Report(r Record) {
	r.Values = finite(r.Values)
	j.write(Line{Record: r})
}

// Note appends a note.
func (j *JSONL) Note(n Note) {
	j.write(Line{Record: Record{Kind: KindNote, Agent: n.Agent}, Severity: n.Severity, Topic: n.Topic, Text: n.Text})
}

// Close closes the file and says what could not be written, if anything.
func (j *JSONL) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		j.err = errors.Join(j.err, j.file.Close())
		j.file = nil
	}
	if j.err != nil {
		return fmt.Errorf("metrics: %w", j.err)
	}
	return nil
}

func (j *JSONL) write(l Line) {
	l.Time = time.Now().UTC()
	text, err := json.Marshal(l)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = err
	}
	if j.err == nil && j.file == nil {
		j.file, j.err = appendTo(j.path)
	}
	if j.err == nil {
		_, j.err = j.file.Write(append(text, '\n'))
	}
	if j.err == nil && l.Kind != KindNote { // a step that a checkpoint holds is never reported again
		j.err = j.file.Sync()
	}
}

// appendTo opens a file of lines, ending a last line that an interrupted run left unfinished.
func appendTo(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return f, err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return f, err
	}
	if last[0] != '\n' {
		_, err = f.Write([]byte("\n"))
	}
	return f, err
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
