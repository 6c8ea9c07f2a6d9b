package weights

import (
	"fmt"
	"math"
)

// tensor is a tensor in a file: its bytes, and how to decode them. One that is not read as a weight may have a type without an encoding.
type tensor struct {
	shape []int64
	dtype DType
	data  []byte
	ggufForm
	scales *scales // nil: none
	within *within // place of an expert's tensor in a fused one; nil: data holds the tensor
}

// newTensor checks that data has the size of the shape and dtype.
func newTensor(shape []int64, dtype DType, data []byte) (tensor, error) {
	want, err := storedBytes(shape, dtype)
	if encodings[dtype].scaled {
		err = cannotBeRead(dtype)
	}
	if err != nil {
		return tensor{}, err
	}
	if int64(len(data)) != want {
		return tensor{}, fmt.Errorf("shape %v of %s needs %d bytes, the file has %d", shape, dtype, want, len(data))
	}
	return tensor{shape: shape, dtype: dtype, data: data}, nil
}

// storedBytes returns the size in bytes of a tensor in its file.
func storedBytes(shape []int64, dtype DType) (int64, error) {
	e, known := encodings[dtype]
	if !known {
		return 0, cannotBeRead(dtype)
	}
	n, ok := numel(shape)
	if !ok || n/e.blockLen > (1<<62)/e.blockBytes {
		return 0, fmt.Errorf("shape %v: negative or overflowing size", shape)
	}
	if _, rowLen := rows(shape); rowLen%e.blockLen != 0 {
		return 0, fmt.Errorf("shape %v: rows of %s must be multiples of %d", shape, dtype, e.blockLen)
	}
	return e.bytes(n), nil
}

func cannotBeRead(dtype DType) error {
	return fmt.Errorf("type %s cannot be read: use F32, F16 or BF16 (in GGUF also Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K or MXFP4)", dtype)
}

// rows splits a valid shape into the number of rows and their length.
func rows(shape []int64) (count, length int64) {
	switch len(shape) {
	case 0:
		return 1, 1
	case 1:
		return shape[0], 1
	}
	length, _ = numel(shape[1:])
	return shape[0], length
}

// read widens rows from to to-1 into dst, which must have the length of these rows.
func (t tensor) read(from, to int64, dst []float32) error {
	count, length := rows(t.shape)
	if from < 0 || from > to || to > count {
		return fmt.Errorf("rows %d to %d of %d", from, to, count)
	}
	if int64(len(dst)) != (to-from)*length {
		return fmt.Errorf("rows %d to %d have %d values, but the buffer has %d", from, to, (to-from)*length, len(dst))
	}
	if t.within != nil {
		return t.within.read(from, to, length, dst)
	}
	if t.scales != nil {
		return t.readScaled(from*(length/max(t.shape[len(t.shape)-1], 1)), dst)
	}
	e := encodings[t.dtype]
	rowBytes := e.bytes(length)
	if t.inOrder() {
		e.decode(dst, t.data[from*rowBytes:to*rowBytes])
		return t.ggufForm.decode(dst)
	}
	whole := make([]float32, length)
	for row := from; row < to; row++ {
		stored, one := t.storedRow(row), dst[(row-from)*length:(row-from+1)*length]
		e.decode(one, t.data[stored*rowBytes:(stored+1)*rowBytes])
		copy(whole, one)
		t.columns(length, func(from, to, size int64) { copy(one[from:from+size], whole[to:to+size]) })
	}
	return t.ggufForm.decode(dst)
}

// blocks copies rows from to to-1 to dst as they are in the file. dst must have their size.
func (t tensor) blocks(from, to int64, dst []byte) error {
	count, length := rows(t.shape)
	e := encodings[t.dtype]
	rowBytes := e.bytes(length)
	if from < 0 || from > to || to > count || int64(len(dst)) != (to-from)*rowBytes {
		return fmt.Errorf("rows %d to %d of %d do not fit %d bytes: a row has %d", from, to, count, len(dst), rowBytes)
	}
	if t.inOrder() {
		copy(dst, t.data[from*rowBytes:to*rowBytes])
		return nil
	}
	if !t.movesInBlocks() {
		return fmt.Errorf("heads of %d columns cannot be moved in blocks of %d", t.tiled.Size, e.blockLen)
	}
	for row := from; row < to; row++ {
		stored := t.data[t.storedRow(row)*rowBytes:][:rowBytes]
		one := dst[(row-from)*rowBytes:][:rowBytes]
		copy(one, stored)
		t.columns(length, func(from, to, size int64) {
			from, to, size = e.bytes(from), e.bytes(to), e.bytes(size)
			copy(one[from:from+size], stored[to:to+size])
		})
	}
	return nil
}

// eachChunk widens the tensor, as many whole rows at a time as fit into the buffer, which grows for longer rows. at is the
// index of the first element of values.
func (t tensor) eachChunk(buffer []float32, visit func(at int64, values []float32) error) error {
	count, length := rows(t.shape)
	if count == 0 || length == 0 {
		return nil
	}
	if int64(len(buffer)) < length {
		buffer = make([]float32, length)
	}
	step := int64(len(buffer)) / length
	for from := int64(0); from < count; from += step {
		to := min(from+step, count)
		values := buffer[:(to-from)*length]
		if err := guardMapped(func() error { return t.read(from, to, values) }); err != nil {
			return err
		}
		if err := visit(from*length, values); err != nil {
			return err
		}
	}
	return nil
}

// movesInBlocks reports whether blocks can give the tensor the order of folders: heads that are columns must be whole blocks.
func (t tensor) movesInBlocks() bool {
	return !t.tiled.Columns || t.tiled.Size%encodings[t.dtype].blockLen == 0
}

// numel multiplies the sizes of a shape that was read from a file. ok is false if a size is negative or the product exceeds
// the largest int64.
func numel(shape []int64) (n int64, ok bool) {
	n = 1
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
	}
	for _, d := range shape {
		if d == 0 {
			return 0, true
		}
		if n > math.MaxInt64/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}

// matrix returns one matrix of a stack. Its rows are consecutive and begin at row `first` of the stack.
func (t tensor) matrix(first int64, shape []int64) (tensor, error) {
	row, err := storedBytes([]int64{1, shape[1]}, t.dtype)
	if err != nil {
		return tensor{}, err
	}
	t.shape, t.data = shape, t.data[first*row:][:shape[0]*row]
	if t.scales != nil {
		s := *t.scales
		s.first += first
		t.scales = &s
	}
	return t, nil
}
