package weights

import (
	"encoding/binary"
	"fmt"
)

// byteReader reads the parts of a file one after the other. After an error, which it keeps, it does not advance.
type byteReader struct {
	data []byte
	at   int
	err  error
}

func (r *byteReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// take returns the next n bytes, or nil after an error.
func (r *byteReader) take(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.data)-r.at) {
		r.fail("file is cut short at byte %d", r.at)
		return nil
	}
	b := r.data[r.at : r.at+int(n)]
	r.at += int(n)
	return b
}

// number reads an unsigned integer of at most 8 bytes, little endian. It returns 0 after an error.
func (r *byteReader) number(width int) uint64 { return littleEndian(r.take(uint64(width))) }

// littleEndian returns the unsigned integer in at most 8 bytes.
func littleEndian(raw []byte) uint64 {
	var wide [8]byte
	copy(wide[:], raw)
	return binary.LittleEndian.Uint64(wide[:])
}
