package jsonl

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// separatedReader reads values separated by commas or tabs. A value may be quoted, with line ends inside it and "" for a
// quote. Quotes inside an unquoted value are part of it. A value may begin with a quote without being quoted as a whole, such as
// "Heroes" by Bowie. The character after its second quote shows this. Between tabs the value is read unchanged. Between commas
// it is an error, because the next comma may belong to it.
type separatedReader struct {
	separator byte
	lines     *bufio.Scanner
	values    []string // values of the scanner's current line
	width     int      // number of values in the first line
	longest   int      // largest number of bytes in a line
}

func newSeparatedReader(in io.Reader, separator byte, longest int) *separatedReader {
	t := &separatedReader{separator: separator, lines: bufio.NewScanner(in), longest: longest}
	t.lines.Buffer(nil, longest)
	t.lines.Split(t.split)
	return t
}

// split finds the end of a line by reading its values.
func (t *separatedReader) split(data []byte, atEOF bool) (int, []byte, error) {
	t.values = nil
	if len(data) == 0 {
		return 0, nil, nil
	}
	for at := 0; ; {
		value, n, last, whole := t.value(data[at:], atEOF)
		if !whole {
			return 0, nil, nil
		}
		if n < 0 {
			return 0, nil, errHalfQuoted
		}
		t.values = append(t.values, string(value))
		if at += n; last {
			return at, data[:at], nil
		}
	}
}

// read returns the values of the next line that is not empty.
func (t *separatedReader) read() ([]string, error) {
	for t.lines.Scan() {
		if len(bytes.TrimRight(t.lines.Bytes(), "\r\n")) == 0 {
			continue
		}
		if !utf8.Valid(t.lines.Bytes()) {
			return nil, errNotUTF8
		}
		if t.width == 0 {
			t.width = len(t.values)
		}
		if len(t.values) != t.width {
			return nil, fmt.Errorf("%w: %d, but the first line has %d", csv.ErrFieldCount, len(t.values), t.width)
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

// errHalfQuoted is the error for a value of CSV that begins with a quote and has text after the quote's end, or has no end.
var errHalfQuoted = errors.New(`a value begins with a quote but does not end with one: quote the whole value and write each quote inside it twice`)

// value reads the value at the beginning of data. The value has n bytes, including the separator or line end after it. n is -1 if it is
// half quoted. last reports whether it is the last value of its line, and whole whether more data would not change it.
func (t *separatedReader) value(data []byte, atEOF bool) (value []byte, n int, last, whole bool) {
	value, n, whole = quotedValue(data, t.separator, atEOF)
	quoted := n > 0
	switch {
	case quoted && t.separator == ',':
		value = bytes.ReplaceAll(value, []byte("\r\n"), []byte("\n"))
	case !quoted && whole && t.separator == ',' && bytes.HasPrefix(data, []byte(`"`)):
		return nil, -1, false, true
	case !quoted && whole:
		if n = bytes.IndexAny(data, string(t.separator)+"\n"); n < 0 {
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
func quotedValue(data []byte, separator byte, atEOF bool) (value []byte, n int, whole bool) {
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
		case len(after) == 0 || after[0] == separator || after[0] == '\n' || bytes.HasPrefix(after, []byte("\r\n")):
			return bytes.ReplaceAll(data[1:at], []byte(`""`), []byte(`"`)), at + 1, true
		}
		return nil, 0, true
	}
}
