package advantages

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"gorgonia.org/tensor"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// The parts of a .npy file (NumPy's format, version 1.0) that readNpy checks before it allocates anything.
const (
	npyMagic = "\x93NUMPY\x01\x00"
	npyFixed = len(npyMagic) + 2 // and the length of the header
)

var npyHeader = regexp.MustCompile(`^\{'descr': '(<f8|<f4)', 'fortran_order': False, 'shape': \((\d+), ?(\d*)\),? ?\}\s*$`)

// readNpy reads a .npy file with a vector or a matrix, little-endian float64 or float32 in C order, as numpy.save writes it. An error
// names the file and the array that is needed.
func readNpy(path string) (*tensor.Dense, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(file, 1<<20)
	if err := checkNpy(in, info.Size()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	array := new(tensor.Dense)
	if err := array.ReadNpy(in); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return array, nil
}

// checkNpy checks a file's header without consuming it. Dense.ReadNpy does not check: it allocates any shape that the header names,
// and reads big-endian numbers as little-endian ones.
func checkNpy(in *bufio.Reader, size int64) error {
	fixed, err := in.Peek(npyFixed)
	if err != nil || !bytes.HasPrefix(fixed, []byte(npyMagic)) {
		return errors.New("not a NumPy file of version 1.0: write it with numpy.save")
	}
	length := int(binary.LittleEndian.Uint16(fixed[len(npyMagic):]))
	whole, err := in.Peek(npyFixed + length)
	if err != nil {
		return io.ErrUnexpectedEOF
	}
	header := string(whole[npyFixed:])
	found := npyHeader.FindStringSubmatch(header)
	if found == nil {
		return fmt.Errorf("the array is %.120q: needs a vector or a matrix of float64 or float32 in C order, such as numpy.save(path, "+
			"numpy.ascontiguousarray(a, dtype='<f8'))", strings.TrimSpace(header))
	}
	n, each := int64(1), int64(8)
	if found[1] == "<f4" {
		each = 4
	}
	for _, text := range found[2:] {
		if text == "" {
			continue
		}
		dimension, err := strconv.ParseInt(text, 10, 64)
		if err != nil || dimension < 1 || dimension > size/n {
			return fmt.Errorf("the shape (%s, %s) does not fit into the file's %d bytes, or is empty", found[2], found[3], size)
		}
		n *= dimension
	}
	if content := size - int64(npyFixed+length); content != n*each {
		return fmt.Errorf("the array takes %d bytes, and the file has %d of them", n*each, content)
	}
	return nil
}

// writeNpy writes an array to a .npy file, which numpy.load reads.
func writeNpy(path string, array *tensor.Dense) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(file, 1<<20)
	return errors.Join(array.WriteNpy(out), out.Flush(), file.Close())
}

// Files reads rewards and weights from .npy files, and writes the advantages that Batch returns to the .npy file out. weights may be
// "". Files returns the number of queries, and the number of queries whose advantages are all 0: their rewards are equal, or all
// their weights are 0.
func Files(rewards, weights, out string, convention mgrpo.Convention) (queries, flat int, err error) {
	array, err := readNpy(rewards)
	if err != nil {
		return 0, 0, err
	}
	var weight *tensor.Dense
	if weights != "" {
		if weight, err = readNpy(weights); err != nil {
			return 0, 0, err
		}
	}
	normalised, stats, err := Batch(array, weight, convention)
	if err != nil {
		return 0, 0, err
	}
	for _, s := range stats {
		if s.Degenerate || s.Empty {
			flat++
		}
	}
	return len(stats), flat, writeNpy(out, normalised)
}
