package weights

import (
	"fmt"
	"io"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// within describes the place of an expert's matrix or bias in a fused tensor.
type within struct {
	whole       tensor // [rows, columns]
	first, step int64  // row i is row first + i·step of whole

	// The expert's matrix is transposed in whole: element j of row i is in row first + j of whole, at column + i·step.
	transposed bool
	column     int64
}

// unfused returns the part of a fused tensor that belongs to one expert.
func (t tensor) unfused(want arch.Tensor) (tensor, error) {
	f, isMatrix := want.Fused, len(want.Shape) == 2
	if f.Transposed && t.scales != nil && t.dtype != MXFP4 {
		return tensor{}, fmt.Errorf("fused experts of type %s are not supported: only plain types and %s", t.dtype, MXFP4)
	}
	shape, transposed := []int64{want.Stack, f.Rows}, f.Transposed && isMatrix && t.scales == nil
	if isMatrix {
		shape = append(shape, want.Shape[1])
	}
	if transposed {
		shape[1], shape[2] = shape[2], shape[1]
	}
	if !slices.Equal(t.shape, shape) {
		return tensor{}, fmt.Errorf("the fused experts have shape %v, config.json requires %v", t.shape, shape)
	}
	if isMatrix && !transposed && f.Step == 1 {
		return t.matrix(want.Index*f.Rows+f.Row, want.Shape)
	}
	one := tensor{shape: want.Shape, dtype: t.dtype}
	in := &within{whole: t, first: want.Index*f.Rows + f.Row, step: f.Step, transposed: transposed}
	switch {
	case transposed:
		in.first, in.column = want.Index*want.Shape[1], f.Row
		in.whole.shape = []int64{shape[0] * shape[1], f.Rows}
	case isMatrix:
		in.whole.shape = []int64{shape[0] * f.Rows, want.Shape[1]}
	default:
		in.whole.shape = []int64{shape[0] * f.Rows}
	}
	if transposed && t.dtype.Size() == 0 {
		return tensor{}, cannotBeRead(t.dtype)
	}
	one.within = in
	return one, nil
}

// read widens rows from to to-1, with cols values each.
func (in *within) read(from, to, cols int64, dst []float32) error {
	if in.transposed {
		in.readTransposed(from, to, cols, dst)
		return nil
	}
	for r := from; r < to; r++ {
		row := in.first + r*in.step
		if err := in.whole.read(row, row+1, dst[(r-from)*cols:][:cols]); err != nil {
			return err
		}
	}
	return nil
}

func (in *within) readTransposed(from, to, cols int64, dst []float32) {
	if from == to {
		return
	}
	values := make([]float32, (to-from-1)*in.step+1)
	length := in.whole.shape[1]
	for c := range cols {
		at := (in.first+c)*length + in.column + from*in.step
		in.whole.dtype.Decode(values, in.whole.bytes(at, int64(len(values))))
		for r := range to - from {
			dst[r*cols+c] = values[r*in.step]
		}
	}
}

// fuse returns the folder's tensor that contains parts: the same tensor of all experts, in order.
func fuse(parts []arch.Tensor, read func(name string, dst []float32) error, dtype DType) OutTensor {
	f, cols := parts[0].Fused, int64(1)
	shape := []int64{parts[0].Stack, f.Rows}
	if len(parts[0].Shape) == 2 {
		cols = parts[0].Shape[1]
		shape = []int64{parts[0].Stack, f.Rows, cols}
	}
	rowStride, columnStride := cols, int64(1) // distances between neighbours
	if f.Transposed && len(shape) == 3 {
		shape[1], shape[2] = shape[2], shape[1]
		rowStride, columnStride = 1, f.Rows
	}
	return OutTensor{f.Name, string(dtype), shape, parts[0].Stack * f.Rows * cols * dtype.Size(), func(w io.Writer) error {
		expert, part := make([]float32, f.Rows*cols), make([]float32, f.Rows*cols)
		for i, t := range parts {
			values := part[:t.Numel()]
			if err := read(t.Name, values); err != nil {
				return fmt.Errorf("tensor %s: %w", t.Name, err)
			}
			for r := range t.Shape[0] {
				for c := range cols {
					expert[c*columnStride+(t.Fused.Row+r*t.Fused.Step)*rowStride] = values[r*cols+c]
				}
			}
			if i+1 == len(parts) || parts[i+1].Index != t.Index {
				if err := WriteFloats(w, dtype, expert); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}
