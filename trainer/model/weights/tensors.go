package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Tensors is a memory-mapped file with any tensors, such as the state of an optimizer or an adapter. (A Source holds only
// the tensors of a model.)
type Tensors struct {
	path    string
	m       *mapping
	tensors map[string]tensor // of any types
}

// OpenTensors maps a safetensors file and checks its header.
func OpenTensors(path string) (*Tensors, error) {
	return openTensors(path, func(file []byte, into map[string]tensor) error {
		entries, data, err := parseSafetensors(file)
		if err != nil {
			return err
		}
		for _, e := range entries {
			into[e.name] = e.tensor(data)
		}
		return nil
	})
}

// openBinTensors maps a file in which torch.save stored a dictionary of weights.
func openBinTensors(path string) (*Tensors, error) { return openTensors(path, scanBin) }

func openTensors(path string, scan func(file []byte, into map[string]tensor) error) (*Tensors, error) {
	m, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	t := &Tensors{path: path, m: m, tensors: map[string]tensor{}}
	err = guardMapped(func() error { return scan(m.data, t.tensors) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), t.Close())
	}
	return t, nil
}

// Names lists the tensors, sorted.
func (t *Tensors) Names() []string {
	return slices.Sorted(maps.Keys(t.tensors))
}

// Info returns a tensor's type, as the format names it (F32, I64, ...), and shape.
func (t *Tensors) Info(name string) (dtype string, shape []int64, ok bool) {
	one, ok := t.tensors[name]
	return string(one.dtype), one.shape, ok
}

// Read widens rows from to to-1 of a floating-point tensor into dst, which must have the length of these rows.
func (t *Tensors) Read(name string, from, to int64, dst []float32) error {
	return t.use(name, func(one tensor) error {
		stored, err := newTensor(one.shape, one.dtype, one.data)
		if err != nil {
			return err
		}
		return stored.read(from, to, dst)
	})
}

// Integer returns the value of an I64 [1] tensor.
func (t *Tensors) Integer(name string) (value int64, err error) {
	err = t.use(name, func(one tensor) error {
		if one.dtype != "I64" || !slices.Equal(one.shape, []int64{1}) {
			return fmt.Errorf("is %s %v but must be I64 [1]", one.dtype, one.shape)
		}
		value = int64(binary.LittleEndian.Uint64(one.data))
		return nil
	})
	return value, err
}

// use calls read with the mapped bytes of a tensor.
func (t *Tensors) use(name string, read func(tensor) error) error {
	one, ok := t.tensors[name]
	if !ok {
		return fmt.Errorf("%s: no tensor %s", t.path, name)
	}
	if err := guardMapped(func() error { return read(one) }); err != nil {
		return fmt.Errorf("%s: tensor %s: %w", t.path, name, err)
	}
	return nil
}

// Close unmaps the file.
func (t *Tensors) Close() error {
	t.tensors = nil
	return t.m.close()
}
