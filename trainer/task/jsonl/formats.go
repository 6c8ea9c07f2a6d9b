package jsonl

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"

	"github.com/mgrpo/mgrpo/trainer/textfile"
)

// reader reads the rows of a file, one at a time.
type reader struct {
	longest int                              // bytes of a row
	visit   func(n int, object []byte) error // is given row n, counted from 1; the bytes are valid until it returns
}

// EachRow calls visit for every row of a file: Parquet, a JSON array of objects, or one JSON object a line, as the first bytes tell; or
// comma- or tab-separated values, as the ending of the name, .csv or .tsv, tells. visit is given the row as a JSON object of at most longest
// bytes, and its number, counted from 1; of lines, blank ones are skipped but counted. The bytes are valid until visit returns. EachRow stops at the first
// error, which names the file and the row.
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

// read visits all rows of a file. With an error it returns the number of the row or line where it stopped.
func (r *reader) read(file *os.File) (at int, err error) {
	in := bufio.NewReader(textfile.NewReader(file))
	head, _ := in.Peek(in.Size())
	switch filepath.Ext(file.Name()) {
	case ".csv":
		bounded := &patient{in: in, longest: r.longest}
		lines := csv.NewReader(bounded)
		return r.readSeparated(func() ([]string, error) {
			bounded.read = 0
			return lines.Read()
		})
	case ".tsv":
		return r.readSeparated(newTabbed(in, r.longest).read)
	}
	switch {
	case bytes.HasPrefix(head, []byte("PAR1")):
		return r.readParquet(file)
	case bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("[")):
		return r.readArray(in)
	}
	return r.readLines(in)
}

// readLines adds the rows of a file of JSON lines.
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

// readArray adds the elements of a JSON array. Only one element is in memory at a time.
func (r *reader) readArray(in io.Reader) (at int, err error) {
	bounded := &patient{in: in, longest: r.longest}
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

// readSeparated adds the rows of a file of separated values, whose first line has their names.
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
		text, err := json.Marshal(row)
		if err != nil {
			return at, err
		}
		if err := r.add(at, text); err != nil {
			return at, err
		}
	}
}

// patient is a reader that returns an error if a row is too long.
type patient struct {
	in      io.Reader
	longest int
	read    int // bytes read since the end of the previous row
}

func (p *patient) Read(b []byte) (int, error) {
	if p.read > 2*p.longest { // the decoder reads ahead
		return 0, tooLong(p.longest)
	}
	n, err := p.in.Read(b[:min(len(b), p.longest)])
	p.read += n
	return n, err
}

// Bounds on the sizes in a Parquet file's footer. The Parquet library checks the page headers.
const (
	maxColumnBytes = 1 << 31
	parquetBatch   = 64 // rows read at once
)

// readParquet adds the rows of a Parquet file, each as a JSON object of its columns.
func (r *reader) readParquet(file *os.File) (at int, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on some damaged files
			err = fmt.Errorf("the Parquet file is damaged: %v", p)
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if err := checkFooter(file, info.Size()); err != nil {
		return 0, err
	}
	f, err := parquet.OpenFile(file, info.Size(), parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		return 0, err
	}
	if n := f.NumRows(); n < 0 || n > maxRows {
		return 0, fmt.Errorf("%d rows; at most %d are read", n, maxRows)
	}
	for _, g := range f.Metadata().RowGroups {
		for _, c := range g.Columns {
			if size := c.MetaData.TotalUncompressedSize; size < 0 || size > maxColumnBytes {
				return 0, fmt.Errorf("column %q has %d bytes in one row group; at most %d are read: write smaller row groups", c.MetaData.PathInSchema, size, maxColumnBytes)
			}
		}
	}
	for _, g := range f.RowGroups() {
		if at, err = r.readRowGroup(f.Schema(), g, at); err != nil {
			return at + 1, err
		}
	}
	return at, nil
}

// checkFooter refuses a file whose footer claims to be longer than the file: the library allocates the claimed size.
func checkFooter(file io.ReaderAt, size int64) error {
	var end [8]byte
	if size < int64(2*len(end)) {
		return errors.New("the Parquet file is cut off")
	}
	if _, err := file.ReadAt(end[:], size-int64(len(end))); err != nil {
		return err
	}
	if footer := int64(binary.LittleEndian.Uint32(end[:])); footer > size-int64(len(end)) {
		return fmt.Errorf("the Parquet file is cut off or damaged: its footer has %d bytes, and the file %d", footer, size)
	}
	return nil
}

// readRowGroup adds the rows of a row group after the first `at` rows and returns the new number of rows.
func (r *reader) readRowGroup(schema *parquet.Schema, g parquet.RowGroup, at int) (int, error) {
	rows := g.Rows()
	defer rows.Close()
	buffer := make([]parquet.Row, parquetBatch)
	for {
		n, err := rows.ReadRows(buffer)
		for _, row := range buffer[:n] {
			object, err := objectOf(schema, row)
			if err == nil {
				err = r.add(at+1, object)
			}
			if err != nil {
				return at, err
			}
			at++
		}
		if err == io.EOF {
			return at, nil
		}
		if err != nil {
			return at, err
		}
		if n == 0 {
			return at, io.ErrNoProgress
		}
	}
}

func objectOf(schema *parquet.Schema, row parquet.Row) ([]byte, error) {
	var columns any
	if err := schema.Reconstruct(&columns, row); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	err := out.Encode(withoutNaN(columns))
	return bytes.TrimSpace(b.Bytes()), err
}

// withoutNaN is a value with null for numbers that JSON does not have: NaN, with which some writers of Parquet mark
// a missing number, and the infinities.
func withoutNaN(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, x := range v {
			v[key] = withoutNaN(x)
		}
	case []any:
		for i, x := range v {
			v[i] = withoutNaN(x)
		}
	case float64:
		if v-v != 0 {
			return nil
		}
	case float32:
		if v-v != 0 {
			return nil
		}
	}
	return value
}
