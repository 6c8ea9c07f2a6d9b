package jsonl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// Bounds on the sizes in a Parquet file's footer. The Parquet library checks the page headers.
const (
	maxColumnBytes = 1 << 31
	parquetBatch   = 64 // rows read at once
)

// readParquet visits the rows of a Parquet file, each as a JSON object of its columns.
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
			if c.MetaData.Codec == format.Lz4Raw { // the library ends some columns early, and never ends with damaged ones
				return 0, fmt.Errorf("column %q is compressed with LZ4, which is not supported: write the file with zstd, snappy, gzip or brotli",
					c.MetaData.PathInSchema)
			}
			if size := c.MetaData.TotalUncompressedSize; size < 0 || size > maxColumnBytes {
				return 0, fmt.Errorf("column %q has %d bytes in one row group; at most %d are read: write smaller row groups", c.MetaData.PathInSchema,
					size, maxColumnBytes)
			}
		}
	}
	names := map[string]bool{}
	for _, column := range f.Root().Columns() {
		if names[column.Name()] {
			return 0, errTwice(column.Name())
		}
		names[column.Name()] = true
	}
	for _, g := range f.RowGroups() {
		if g.NumRows() == 0 { // the library cannot read it
			continue
		}
		if at, err = r.readRowGroup(f.Root(), g, at); err != nil {
			return at + 1, err
		}
	}
	return at, nil
}

// checkFooter refuses a file whose footer claims to be longer than the file, because the library allocates the claimed
// size.
func checkFooter(file io.ReaderAt, size int64) error {
	var end [8]byte
	if size < int64(2*len(end)) {
		return errors.New("the Parquet file is cut off")
	}
	if _, err := file.ReadAt(end[:], size-int64(len(end))); err != nil {
		return err
	}
	if footer := int64(binary.LittleEndian.Uint32(end[:])); footer > size-int64(len(end)) {
		return fmt.Errorf("the Parquet file is cut off or damaged: its footer claims %d bytes, but the file has %d", footer, size)
	}
	return nil
}

// readRowGroup visits the rows of a row group after the first `at` rows and returns the new number of rows.
func (r *reader) readRowGroup(root *parquet.Column, g parquet.RowGroup, at int) (int, error) {
	rows := g.Rows()
	defer rows.Close()
	buffer := make([]parquet.Row, parquetBatch)
	for {
		n, err := rows.ReadRows(buffer)
		for _, row := range buffer[:n] {
			object, err := objectOf(root, row)
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
