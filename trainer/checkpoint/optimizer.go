package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sort"
)

const optimizerFile = "optimizer.safetensors"

// Optimizer is the state of an optimizer over a flat parameter buffer, to be saved: how many steps it has
// taken and float32 buffers of Len values each ("m" and "v" of AdamW, "master" for weights held in BF16).
// A buffer's function fills dst with its values from index from on.
type Optimizer struct {
	Step    int64
	Len     int64
	Buffers map[string]func(from int64, dst []float32) error
}

const stepTensor = "step"

// write makes optimizer.safetensors: every buffer as F32 [Len], and step as I64 [1].
func (o *Optimizer) write(f *folder) error {
	names := make([]string, 0, len(o.Buffers))
	for name := range o.Buffers {
		names = append(names, name)
	}
	sort.Strings(names)
	if o.Len < 0 || o.Step < 0 || slices.Contains(names, stepTensor) {
		return fmt.Errorf("optimizer: length %d, step %d, buffers %v", o.Len, o.Step, names)
	}
	tensors := []outTensor{{stepTensor, "I64", []int64{1}, 8, func(w io.Writer) error {
		return binary.Write(w, binary.LittleEndian, o.Step)
	}}}
	for _, name := range names {
		tensors = append(tensors, outTensor{name, string(F32), []int64{o.Len}, 4 * o.Len, func(w io.Writer) error {
			return o.writeBuffer(w, name)
		}})
	}
	return f.create(optimizerFile, func(w io.Writer) error { return writeSafetensors(w, tensors) })
}

func (o *Optimizer) writeBuffer(w io.Writer, name string) error {
	values := make([]float32, min(o.Len, scanChunk))
	for from := int64(0); from < o.Len; from += int64(len(values)) {
		values = values[:min(o.Len-from, scanChunk)]
		if err := o.Buffers[name](from, values); err != nil {
			return fmt.Errorf("optimizer buffer %s: %w", name, err)
		}
		if err := writeFloats(w, F32, values); err != nil {
			return err
		}
	}
	return nil
}

// OptimizerFile is a saved optimizer state, memory-mapped.
type OptimizerFile struct {
	path    string
	m       *mapping
	step    int64
	len     int64
	buffers map[string]tensor
}

// OpenOptimizer opens the optimizer state in an agent's folder of a run checkpoint.
func OpenOptimizer(agentDir string) (*OptimizerFile, error) {
	o := &OptimizerFile{path: filepath.Join(agentDir, optimizerFile), buffers: map[string]tensor{}}
	var err error
	if o.m, err = mapFile(o.path); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if err := guardMapped(o.parse); err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint: %s: %w", o.path, err), o.Close())
	}
	return o, nil
}

func (o *OptimizerFile) parse() error {
	entries, data, err := parseSafetensors(o.m.data)
	if err != nil {
		return err
	}
	o.step, o.len = -1, -1
	for _, e := range entries {
		bytes := data[e.begin:e.end]
		if e.name == stepTensor && e.dtype == "I64" && slices.Equal(e.shape, []int64{1}) {
			o.step = int64(binary.LittleEndian.Uint64(bytes))
			continue
		}
		if e.dtype != string(F32) || len(e.shape) != 1 || o.len >= 0 && o.len != e.shape[0] {
			return fmt.Errorf("buffer %s is %s %v: expected F32 vectors of one length", e.name, e.dtype, e.shape)
		}
		o.len = e.shape[0]
		if o.buffers[e.name], err = newTensor(e.shape, F32, bytes); err != nil {
			return err
		}
	}
	if o.step < 0 || o.len < 0 {
		return errors.New("step or buffers are missing")
	}
	return nil
}

// Step returns how many steps the optimizer had taken.
func (o *OptimizerFile) Step() int64 { return o.step }

// Len returns the length of every buffer.
func (o *OptimizerFile) Len() int64 { return o.len }

// Read fills dst with the values of a buffer from index from on.
func (o *OptimizerFile) Read(buffer string, from int64, dst []float32) error {
	t, ok := o.buffers[buffer]
	if !ok {
		return fmt.Errorf("checkpoint: %s: no buffer %s", o.path, buffer)
	}
	if err := guardMapped(func() error { return t.read(from, from+int64(len(dst)), dst) }); err != nil {
		return fmt.Errorf("checkpoint: %s: %s: %w", o.path, buffer, err)
	}
	return nil
}

// Close unmaps the file.
func (o *OptimizerFile) Close() error {
	o.buffers = nil
	return o.m.close()
}
