package jsonl

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"io"
)

// tsvReader reads values separated by tabs. A value may be quoted as in CSV, with line ends inside it and "" for a quote.
// A value that begins with a quote but is not quoted as a whole, such as "Heroes" by Bowie, is read as it is. The
// character after the second quote decides between the two.
type tsvReader struct {
	lines   *bufio.Scanner
	values  []string // values of the scanner's current line
	width   int      // number of values in the first line
	longest int      // largest number of bytes in a line
}

func newTSVReader(in io.Reader, longest int) *tsvReader {
	t := &tsvReader{lines: bufio.NewScanner(in), longest: longest}
	t.lines.Buffer(nil, longest)
	t.lines.Split(t.split)
	return t
}

// split finds the end of a line by reading its values.
func (t *tsvReader) split(data []byte, atEOF bool) (int, []byte, error) {
	t.values = nil
	if len(data) == 0 {
		return 0, nil, nil
	}
	for at := 0; ; {
		value, n, last, whole := tsvValue(data[at:], atEOF)
		if !whole {
			return 0, nil, nil
		}
		t.values = append(t.values, string(value))
		if at += n; last {
			return at, data[:at], nil
		}
	}
}

// read returns the values of the next line that is not empty.
func (t *tsvReader) read() ([]string, error) {
	for t.lines.Scan() {
		if len(bytes.TrimRight(t.lines.Bytes(), "\r\n")) == 0 {
			continue
		}
		if t.width == 0 {
			t.width = len(t.values)
		}
		if len(t.values) != t.width {
			return nil, csv.ErrFieldCount
		}
		return t.values, nil
	}
	if err := t.lines.Err(); err == bufio.ErrTooLong {
		return nil, tooLong(t.longest)
	} else if err != nil {
		return nil, err
	}
	return nil, io.EOF
}

// tsvValue reads the value at the beginning of data. The value has n bytes, including the tab or line end after it.
// last reports whether it is the last value of its line, and whole whether more data would not change it.
func tsvValue(data []byte, atEOF bool) (value []byte, n int, last, whole bool) {
	value, n, whole = quotedValue(data, atEOF)
	quoted := n > 0
	if !quoted && whole {
		if n = bytes.IndexAny(data, "\t\n"); n < 0 {
			n, whole = len(data), atEOF
		}
		value = data[:n]
	}
	rest := bytes.TrimPrefix(data[n:], []byte("\r")) // after a quoted value
	if last = len(rest) == 0 || rest[0] == '\n'; last && !quoted {
		value = bytes.TrimSuffix(value, []byte("\r"))
	}
	return value, len(data) - len(rest) + min(len(rest), 1), last, whole
}

// quotedValue reads a quoted value. n is 0 if data does not begin with one.
func quotedValue(data []byte, atEOF bool) (value []byte, n int, whole bool) {
	if len(data) == 0 || data[0] != '"' {
		return nil, 0, true
	}
	for at := 1; ; at += 2 {
		next := bytes.IndexByte(data[at:], '"')
		if next < 0 {
			return nil, 0, atEOF
		}
		at += next
		after := data[at+1:]
		switch {
		case len(after) < 2 && !atEOF:
			return nil, 0, false
		case len(after) > 0 && after[0] == '"':
			continue
		case len(after) == 0 || after[0] == '\t' || after[0] == '\n' || bytes.HasPrefix(after, []byte("\r\n")):
			return bytes.ReplaceAll(data[1:at], []byte(`""`), []byte(`"`)), at + 1, true
		}
		return nil, 0, true
	}
}
