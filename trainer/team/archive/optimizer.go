package archive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// optimizerFile has the format of safetensors. Its name ends differently, because vLLM and other programs read every *.safetensors file
// of a folder as weights.
const optimizerFile = "optimizer.state"

// Optimizer is the saved state of an optimizer: the number of its steps, and float32 buffers of Len values each. The
// buffers are "m" and "v" of AdamW, unless they are 0 or not saved, and "master", the fp32 weights, if weights are saved in
// 16 bits. The function of a buffer fills dst with the values that begin at index `from`.
type Optimizer struct {
	Step    int64
	Len     int64
	Buffers map[string]func(from int64, dst []float32) error
}

// Names of tensors in the file, in addition to the moments.
const (
	stepTensor   = "step"
	masterBuffer = "master" // fp32 weights, if the folder has 16-bit weights or, after a stopped cold start, no others
)

// write writes optimizer.state: every buffer as F32 [Len], and step as I64 [1].
func (o *Optimizer) write(f *durable.Folder) error {
	names := slices.Sorted(maps.Keys(o.Buffers))
	if o.Len < 0 || o.Step < 0 || slices.Contains(names, stepTensor) {
		return fmt.Errorf("optimizer: invalid state: length %d, step %d, buffers %v", o.Len, o.Step, names)
	}
	tensors := []weights.OutTensor{{Name: stepTensor, DType: "I64", Shape: []int64{1}, Size: 8, Write: func(w io.Writer) error {
		return binary.Write(w, binary.LittleEndian, o.Step)
	}}}
	for _, name := range names {
		tensors = append(tensors, weights.OutTensor{Name: name, DType: string(weights.F32), Shape: []int64{o.Len}, Size: 4 * o.Len,
			Write: func(w io.Writer) error { return o.writeBuffer(w, name) }})
	}
	return f.Create(optimizerFile, func(w io.Writer) error { return weights.WriteSafetensors(w, tensors) })
}

// writeChunk is the number of values that are in memory at a time.
const writeChunk = 1 << 16

func (o *Optimizer) writeBuffer(w io.Writer, name string) error {
	values := make([]float32, min(o.Len, writeChunk))
	for from := int64(0); from < o.Len; from += int64(len(values)) {
		values = values[:min(o.Len-from, writeChunk)]
		if err := o.Buffers[name](from, values); err != nil {
			return fmt.Errorf("optimizer buffer %s: %w", name, err)
		}
		if err := weights.WriteFloats(w, weights.F32, values); err != nil {
			return err
		}
	}
	return nil
}

// OptimizerFile is a saved optimizer state, memory-mapped.
type OptimizerFile struct {
	tensors *weights.Tensors
	step    int64
	len     int64
}

// OpenOptimizer opens the optimizer state in an agent's folder of a run checkpoint.
func OpenOptimizer(agentDir string) (*OptimizerFile, error) {
	path := filepath.Join(agentDir, optimizerFile)
	tensors, err := weights.OpenTensors(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	o := &OptimizerFile{tensors: tensors, len: -1}
	if err := o.check(); err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint: %s: %w", path, err), o.Close())
	}
	return o, nil
}

// check requires a step, and equal lengths of all buffers.
func (o *OptimizerFile) check() (err error) {
	if o.step, err = o.tensors.Integer(stepTensor); err != nil {
		return err
	}
	for _, name := range o.tensors.Names() {
		if name == stepTensor {
			continue
		}
		dtype, shape, _ := o.tensors.Info(name)
		if dtype != string(weights.F32) || len(shape) != 1 || o.len >= 0 && o.len != shape[0] {
			return fmt.Errorf("buffer %s is %s %v: expected F32 vectors of one length", name, dtype, shape)
		}
		o.len = shape[0]
	}
	if o.step < 0 {
		return fmt.Errorf("%s is %d: must not be negative", stepTensor, o.step)
	}
	return nil
}

// ReadMaster calls restore with a function that reads the fp32 weights in an agent's folder of a run checkpoint, if the
// folder has them in addition to rounded weights. The model has numel parameters.
func ReadMaster(agentDir string, numel int64, restore func(read func(from int64, dst []float32) error) error) error {
	o, err := OpenOptimizer(agentDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(o.readMaster(agentDir, numel, restore), o.Close())
}

func (o *OptimizerFile) readMaster(agentDir string, numel int64, restore func(read func(from int64, dst []float32) error) error) error {
	if o.Len() >= 0 && o.Len() != numel {
		return fmt.Errorf("%s: the optimizer state has %d values, but the model has %d parameters: the checkpoint belongs to another model", agentDir,
			o.Len(), numel)
	}
	if !o.Has(masterBuffer) {
		return nil
	}
	return restore(o.reader(masterBuffer))
}

// Step returns the number of the optimizer's steps.
func (o *OptimizerFile) Step() int64 { return o.step }

// Len returns the length of every buffer, or -1 without buffers.
func (o *OptimizerFile) Len() int64 { return o.len }

// Has reports whether a buffer has that name.
func (o *OptimizerFile) Has(buffer string) bool {
	_, _, ok := o.tensors.Info(buffer)
	return ok && buffer != stepTensor
}

// Read fills dst with the values of a buffer that begin at index from.
func (o *OptimizerFile) Read(buffer string, from int64, dst []float32) error {
	if err := o.tensors.Read(buffer, from, from+int64(len(dst)), dst); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

func (o *OptimizerFile) reader(buffer string) func(from int64, dst []float32) error {
	return func(from int64, dst []float32) error { return o.Read(buffer, from, dst) }
}

// Close unmaps the file.
func (o *OptimizerFile) Close() error { return o.tensors.Close() }
