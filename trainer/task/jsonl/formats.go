package jsonl

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
	"strings"
	"unicode/utf8"

	"golang.org/x/text/transform"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
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

// parquetMark is the beginning of a Parquet file.
const parquetMark = "PAR1"

// IsParquet reports whether EachRow reads a file as Parquet.
func IsParquet(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	mark := make([]byte, len(parquetMark))
	_, err = io.ReadFull(file, mark)
	return err == nil && string(mark) == parquetMark && separatorOf(path) == 0, nil
}

func (r *reader) add(n int, object []byte) error {
	switch {
	case len(object) > r.longest:
		return tooLong(r.longest)
	case !utf8.Valid(object):
		return errNotUTF8
	}
	err := r.visit(n, object)
	if err != nil && !json.Valid(object) {
		err = explained(err)
	}
	return err
}

var errNotUTF8 = errors.New("not UTF-8: save the file as UTF-8")

// explained adds the likely reason to an error of encoding/json.
func explained(err error) error {
	switch {
	case strings.Contains(err.Error(), "invalid character 'I'"):
		return fmt.Errorf("%w: JSON has no Infinity: write null or a number", err)
	case strings.Contains(err.Error(), "unexpected end of JSON input"):
		return fmt.Errorf("%w: write each row on a single line, or make the file a JSON array", err)
	}
	return err
}

func tooLong(longest int) error { return fmt.Errorf("a row of more than %d bytes", longest) }

// read visits all rows of a file. If it returns an error, at is the number of the row or line where it stopped.
func (r *reader) read(file *os.File) (at int, err error) {
	in := bufio.NewReader(texts.NewReader(file))
	head, _ := in.Peek(in.Size())
	for name, mark := range compressions {
		if bytes.HasPrefix(head, []byte(mark)) {
			return 1, fmt.Errorf("the file is compressed with %s: decompress it first", name)
		}
	}
	if separator := separatorOf(file.Name()); separator != 0 {
		return r.readSeparated(newSeparatedReader(in, separator, r.longest).read)
	}
	if bytes.HasPrefix(head, []byte(parquetMark)) {
		return r.readParquet(file)
	}
	text := transform.NewReader(in, &nanToNull{})
	if bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("[")) {
		return r.readArray(text)
	}
	return r.readLines(text)
}

// compressions has the first bytes of compressed files.
var compressions = map[string]string{"gzip": "\x1f\x8b", "zstd": "\x28\xb5\x2f\xfd", "xz": "\xfd7zXZ", "bzip2": "BZh", "zip": "PK\x03\x04"}

// separatorOf returns the separator of the values in a file with this name, or 0 if the file does not have separated values.
func separatorOf(path string) byte {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".csv":
		return ','
	case ".tsv":
		return '\t'
	}
	return 0
}

// nanToNull replaces NaN, which is not JSON but which Python writes for a missing number, by null.
type nanToNull struct{ quoted, escaped bool }

func (q *nanToNull) Reset() { *q = nanToNull{} }

func (q *nanToNull) Transform(dst, src []byte, atEOF bool) (written, read int, err error) {
	const from, to = "NaN", "null"
	for read < len(src) {
		b, rest := src[read], src[read:]
		nan := !q.quoted && bytes.HasPrefix(rest, []byte(from))
		switch {
		case !q.quoted && b == from[0] && len(rest) < len(from) && !atEOF:
			return written, read, transform.ErrShortSrc
		case written == len(dst), nan && written+len(to) > len(dst):
			return written, read, transform.ErrShortDst
		case nan:
			written += copy(dst[written:], to)
			read += len(from)
			continue
		case b == '\n': // ends every text of JSON
			q.Reset()
		case b == '"' && !q.escaped:
			q.quoted = !q.quoted
		}
		q.escaped = q.quoted && b == '\\' && !q.escaped
		dst[written] = b
		written++
		read++
	}
	return written, read, nil
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
			return at, explained(err)
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
	for i, name := range names {
		if strings.Contains(strings.ReplaceAll(name, "\r\n", "\n"), "\r") {
			return 1, errors.New("its lines end with carriage returns alone: save the file with line feeds")
		}
		if name != "" && slices.Contains(names[:i], name) {
			return 1, errTwice(name)
		}
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

func errTwice(name string) error {
	return fmt.Errorf("two columns have the name %q: rename one of them", name)
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
