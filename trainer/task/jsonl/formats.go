package jsonl

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/internal/textfile"
)

// reader reads the rows of a file, one at a time.
type reader struct {
	longest int                              // largest number of bytes in a row
	visit   func(n int, object []byte) error // receives row n, counted from 1; the bytes are valid until it returns
}

// EachRow calls visit for every row of a file. A file named .csv or .tsv has comma- or tab-separated values. Otherwise
// the first bytes of the file determine its format: Parquet, a JSON array of objects, or one JSON object per line.
// visit receives the row as a JSON object of at most longest bytes, and the row's number, counted from 1. Blank lines
// are skipped but counted. The bytes are valid until visit returns. EachRow stops at the first error, which names the
// file and the row.
func EachRow(path string, longest int, visit func(n int, object []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r := &reader{longest: longest, visit: visit}
	if at, err := r.read(file); err != nil {
		return fmt.Errorf("%s:%d: %w", path, at, err)
	}
	return nil
}

func (r *reader) add(n int, object []byte) error {
	switch {
	case len(object) > r.longest:
		return tooLong(r.longest)
	case !utf8.Valid(object):
		return errors.New("not UTF-8")
	}
	return r.visit(n, object)
}

func tooLong(longest int) error { return fmt.Errorf("a row of more than %d bytes", longest) }

// read visits all rows of a file. If it returns an error, at is the number of the row or line where it stopped.
func (r *reader) read(file *os.File) (at int, err error) {
	in := bufio.NewReader(textfile.NewReader(file))
	head, _ := in.Peek(in.Size())
	switch filepath.Ext(file.Name()) {
	case ".csv":
		bounded := &rowLimitReader{in: in, longest: r.longest}
		lines := csv.NewReader(bounded)
		return r.readSeparated(func() ([]string, error) {
			bounded.read = 0
			return lines.Read()
		})
	case ".tsv":
		return r.readSeparated(newTSVReader(in, r.longest).read)
	}
	switch {
	case bytes.HasPrefix(head, []byte("PAR1")):
		return r.readParquet(file)
	case bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("[")):
		return r.readArray(in)
	}
	return r.readLines(in)
}

// readLines visits the rows of a file of JSON lines.
func (r *reader) readLines(in io.Reader) (at int, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, r.longest)
	for lines.Scan() {
		at++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := r.add(at, lines.Bytes()); err != nil {
			return at, err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return at + 1, tooLong(r.longest)
	}
	return at + 1, lines.Err()
}

// readArray visits the elements of a JSON array. Only one element is in memory at a time.
func (r *reader) readArray(in io.Reader) (at int, err error) {
	bounded := &rowLimitReader{in: in, longest: r.longest}
	elements := json.NewDecoder(bounded)
	if _, err := elements.Token(); err != nil { // the bracket
		return 1, err
	}
	for elements.More() {
		at++
		bounded.read = 0
		var object json.RawMessage
		if err := elements.Decode(&object); err != nil {
			return at, err
		}
		if err := r.add(at, object); err != nil {
			return at, err
		}
	}
	bounded.read = 0
	if _, err := elements.Token(); err != nil {
		return at + 1, fmt.Errorf("the array does not end: %w", err)
	}
	if _, err := elements.Token(); err != io.EOF {
		return at + 1, errors.New("text follows the array: a file must be a single array of objects, or one object a line")
	}
	return at, nil
}

// readSeparated visits the rows of a file of separated values. The first line contains the columns' names.
func (r *reader) readSeparated(next func() ([]string, error)) (at int, err error) {
	names, err := next()
	if err != nil {
		return 1, err
	}
	for at = 1; ; at++ {
		values, err := next()
		if err == io.EOF {
			return at, nil
		}
		if err != nil {
			return at, err
		}
		row := map[string]string{}
		for i, name := range names {
			row[name] = values[i]
		}
		text, _ := json.Marshal(row) // texts always marshal
		if err := r.add(at, text); err != nil {
			return at, err
		}
	}
}

// rowLimitReader is a reader that returns an error if a row is too long.
type rowLimitReader struct {
	in      io.Reader
	longest int
	read    int // bytes read since the end of the previous row
}

func (r *rowLimitReader) Read(b []byte) (int, error) {
	if r.read > 2*r.longest { // the decoder reads ahead
		return 0, tooLong(r.longest)
	}
	n, err := r.in.Read(b[:min(len(b), r.longest)])
	r.read += n
	return n, err
}
