package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Tensors is a memory-mapped safetensors file with any tensors, such as the state of an optimizer. (A Source has only the
// tensors of a model.)
type Tensors struct {
	path    string
	m       *mapping
	entries map[string]headerEntry
	data    []byte // the entries' offsets are positions in it
}

// OpenTensors maps a safetensors file and checks its header.
func OpenTensors(path string) (*Tensors, error) {
	m, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	t := &Tensors{path: path, m: m, entries: map[string]headerEntry{}}
	err = guardMapped(func() error {
		entries, data, err := parseSafetensors(m.data)
		for _, e := range entries {
			t.entries[e.name] = e
		}
		t.data = data
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), t.Close())
	}
	return t, nil
}

// Names lists the tensors, sorted.
func (t *Tensors) Names() []string {
	names := make([]string, 0, len(t.entries))
	for name := range t.entries {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Info returns a tensor's type, as the format names it (F32, I64, ...), and shape.
func (t *Tensors) Info(name string) (dtype string, shape []int64, ok bool) {
	e, ok := t.entries[name]
	return e.dtype, e.shape, ok
}

// Read widens rows from to to-1 of a floating-point tensor into dst, which must have the length of these rows.
func (t *Tensors) Read(name string, from, to int64, dst []float32) error {
	return t.use(name, func(e headerEntry, data []byte) error {
		stored, err := newTensor(e.shape, DType(e.dtype), data)
		if err != nil {
			return err
		}
		return stored.read(from, to, dst)
	})
}

// Integer returns the value of an I64 [1] tensor.
func (t *Tensors) Integer(name string) (value int64, err error) {
	err = t.use(name, func(e headerEntry, data []byte) error {
		if e.dtype != "I64" || !slices.Equal(e.shape, []int64{1}) {
			return fmt.Errorf("is %s %v, not I64 [1]", e.dtype, e.shape)
		}
		value = int64(binary.LittleEndian.Uint64(data))
		return nil
	})
	return value, err
}

// use calls read with the mapped bytes of a tensor.
func (t *Tensors) use(name string, read func(e headerEntry, data []byte) error) error {
	e, ok := t.entries[name]
	if !ok {
		return fmt.Errorf("%s: no tensor %s", t.path, name)
	}
	if err := guardMapped(func() error { return read(e, t.data[e.begin:e.end]) }); err != nil {
		return fmt.Errorf("%s: tensor %s: %w", t.path, name, err)
	}
	return nil
}

// Close unmaps the file.
func (t *Tensors) Close() error {
	t.entries, t.data = nil, nil
	return t.m.close()
}
