package weights

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// safetensorsBits holds the size in bits of an element of every type of the format. Weights are read from F32, F16 and BF16
// only, and in quantised folders also from F8_E4M3 and U8.
var safetensorsBits = map[string]int64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// headerEntry is one tensor of a safetensors header. Offsets count from the end of the header.
type headerEntry struct {
	name       string
	dtype      string
	shape      []int64
	begin, end int64
}

func (e headerEntry) tensor(data []byte) tensor {
	return tensor{shape: e.shape, dtype: DType(e.dtype), data: data[e.begin:e.end]}
}

const maxDims = 8

// isExtraState reports whether a name is one of other state in PyTorch modules, such as the scales of TransformerEngine.
func isExtraState(name string) bool {
	return name == "_extra_state" || strings.HasSuffix(name, "._extra_state")
}

// addSafetensors maps a safetensors file of the folder and registers its tensors.
func (o *opener) addSafetensors(file string) error {
	var entries []headerEntry
	var data []byte
	err := o.scan(filepath.Join(o.path, file), func(whole []byte) (err error) {
		entries, data, err = parseSafetensors(whole)
		return err
	})
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := register(o, file, e.name, e.tensor(data)); err != nil {
			return err
		}
	}
	return nil
}

// register adds a tensor of a folder to the tensors of the model, to those with scales, or to those of other parts.
func register(o *opener, file, name string, t tensor) error {
	_, readable := encodings[t.dtype]
	switch {
	case isExtraState(name):
		o.notes = append(o.notes, name+" is not a weight, and is ignored")
		return nil
	case o.config.Quantisation != nil && slices.Contains([]DType{"U8", F8_E4M3, F8_E8M0}, t.dtype):
		return add(o, o.packed, file, name, t)
	case !readable && (o.config.Wrapper != "" || inOtherPart(name)):
		return add(o, o.others, file, name, t)
	}
	t, err := newTensor(t.shape, t.dtype, t.data)
	if err != nil {
		return fmt.Errorf("tensor %s: %w", name, err)
	}
	return add(o, o.tensors, file, name, t)
}

// parseSafetensors reads the header: 8 bytes of little-endian length, JSON, then the data. The
// tensors must cover the data completely and without overlaps. Entries are returned in the order of the file.
// Format: https://huggingface.co/docs/safetensors.
func parseSafetensors(file []byte) (entries []headerEntry, data []byte, err error) {
	if len(file) < 8 {
		return nil, nil, fmt.Errorf("too short for a header: %d bytes", len(file))
	}
	length := binary.LittleEndian.Uint64(file)
	if length > uint64(len(file)-8) {
		return nil, nil, fmt.Errorf("too short: the header should have %d bytes, but only %d are left", length, len(file)-8)
	}
	if length > maxHeaderBytes {
		return nil, nil, fmt.Errorf("header of %d bytes is above the limit of %d", length, maxHeaderBytes)
	}
	header, data := file[8:8+length], file[8+length:]
	if entries, err = parseHeader(header); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	return entries, data, checkTiling(entries, int64(len(data)))
}

func parseHeader(header []byte) ([]headerEntry, error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, errors.New("not JSON: does not start with {")
	}
	r, err := strictjson.NewReader(header)
	if err != nil {
		return nil, err
	}
	var entries []headerEntry
	err = r.Object(func(name string) error {
		if name == "__metadata__" {
			return r.Object(func(string) error { _, err := r.String(); return err })
		}
		if len(entries) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		e, err := parseEntry(r, name)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", name, err)
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return entries, r.End()
}

func parseEntry(r strictjson.Reader, name string) (headerEntry, error) {
	e := headerEntry{name: name}
	var offsets []int64
	err := r.Object(func(key string) (err error) {
		switch key {
		case "dtype":
			e.dtype, err = r.String()
		case "shape":
			e.shape, err = r.Integers(maxDims)
		case "data_offsets":
			offsets, err = r.Integers(2)
		default:
			err = errors.New("unknown key")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return e, err
	case e.dtype == "" || e.shape == nil || len(offsets) != 2:
		return e, errors.New("needs dtype, shape and two data_offsets")
	}
	e.begin, e.end = offsets[0], offsets[1]
	return e, e.checkSize()
}

// checkSize compares the offsets with type and shape.
func (e headerEntry) checkSize() error {
	bits, known := safetensorsBits[e.dtype]
	if !known {
		return fmt.Errorf("dtype %s is unknown", strictjson.Brief(e.dtype))
	}
	if e.begin > e.end {
		return fmt.Errorf("data_offsets [%d, %d] are reversed", e.begin, e.end)
	}
	n, ok := numel(e.shape)
	if !ok || n > (1<<62)/bits {
		return fmt.Errorf("shape %v overflows", e.shape)
	}
	if want := n * bits / 8; e.end-e.begin != want {
		return fmt.Errorf("shape %v of %s needs %d bytes, data_offsets hold %d", e.shape, e.dtype, want, e.end-e.begin)
	}
	return nil
}

// checkTiling sorts entries by offset, and checks that they cover each of size bytes exactly once.
func checkTiling(entries []headerEntry, size int64) error {
	for _, e := range entries {
		if e.end > size {
			return fmt.Errorf("tensor %s: data_offsets [%d, %d] reach past the end of the file (%d bytes of data)", e.name, e.begin, e.end, size)
		}
	}
	slices.SortFunc(entries, func(a, b headerEntry) int {
		// An empty tensor precedes the one that starts at the same byte.
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), strings.Compare(a.name, b.name))
	})
	var at int64
	for _, e := range entries {
		switch {
		case e.begin < at:
			return fmt.Errorf("tensor %s: data_offsets [%d, %d] overlap the tensor before it", e.name, e.begin, e.end)
		case e.begin > at:
			return fmt.Errorf("tensor %s: data_offsets [%d, %d] leave a hole of %d bytes before it", e.name, e.begin, e.end, e.begin-at)
		}
		at = e.end
	}
	if at != size {
		return fmt.Errorf("%d bytes of data do not belong to any tensor", size-at)
	}
	return nil
}
