package track

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// maxLine is the size of the longest line of metrics.jsonl in bytes; a record has a few kilobytes.
const maxLine = 4 << 20

// tail reads metrics.jsonl from its beginning, and then the lines that are appended.
//
// A run that went back to a checkpoint reports steps again. Readers of the file keep the last report. A tracker cannot
// remove a step, so tail keeps the first report.
type tail struct {
	dir    string
	file   *os.File // nil: not opened yet
	in     *bufio.Reader
	read   int64  // number of bytes read
	part   []byte // a last line that is not written to its end yet
	first  []byte // the first line
	newest map[series]int64
	sum    Sum
}

// series identifies the records of one kind of an agent.
type series struct{ agent, kind string }

func (t *tail) open() (err error) {
	if t.file, err = os.Open(filepath.Join(t.dir, metrics.FileName)); err != nil {
		t.file = nil
		return err
	}
	t.in, t.newest = bufio.NewReader(t.file), map[series]int64{}
	return nil
}

func (t *tail) close() error {
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}

// id returns the same value as long as the file begins with the same line. That line contains the time at which the run
// began.
func (t *tail) id(name string) string {
	sum := sha256.Sum256(append([]byte(name+"\n"), t.first...))
	return hex.EncodeToString(sum[:8])
}

// next returns at most `most` further rows. An empty result means that there are no further rows yet.
func (t *tail) next(most int) ([]Row, error) {
	if t.file == nil {
		if err := t.open(); err != nil {
			return nil, err
		}
	}
	var rows []Row
	for len(rows) < most {
		line, err := t.line()
		if errors.Is(err, io.EOF) {
			return rows, t.grows()
		}
		if err != nil {
			return rows, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if t.first == nil {
			t.first = line
		}
		if r, ok := t.row(line); ok {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// line returns a line that is written to its end, or io.EOF.
func (t *tail) line() ([]byte, error) {
	for {
		piece, err := t.in.ReadSlice('\n')
		t.part = append(t.part, piece...)
		t.read += int64(len(piece))
		switch {
		case len(t.part) > maxLine:
			return nil, fmt.Errorf("%s: a line is longer than %d bytes: this is not a file of metrics", t.file.Name(), maxLine)
		case err == nil:
			line := t.part
			t.part = nil
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// grows returns an error if the file was cut or replaced by another one: rows then have different numbers.
func (t *tail) grows() error {
	own, err := t.file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(t.file.Name())
	if errors.Is(err, fs.ErrNotExist) { // the folder was moved
		err, there = nil, own
	}
	if err == nil && (own.Size() < t.read || !os.SameFile(own, there)) {
		err = fmt.Errorf("%s was replaced while it was read: start again", t.file.Name())
	}
	return err
}

// row reads a line. ok is false if the line does not contain a record to forward.
func (t *tail) row(text []byte) (r Row, ok bool) {
	var l metrics.Line
	if err := json.Unmarshal(text, &l); err != nil {
		t.sum.Damaged++
		return r, false
	}
	switch l.Kind {
	case metrics.KindNote:
		t.sum.Complete = t.sum.Complete || l.Topic == metrics.TopicEnd
		return r, false
	case metrics.KindStep, metrics.KindEval, metrics.KindColdStart:
	default:
		t.sum.Damaged++
		return r, false
	}
	t.sum.Complete = false // the run was extended
	of := series{l.Agent, l.Kind}
	if newest, any := t.newest[of]; any && l.Step <= newest {
		t.sum.Repeated++
		return r, false
	}
	t.newest[of] = l.Step
	r = rowOf(l)
	r.Index = t.sum.Rows
	t.sum.Rows++
	return r, true
}
