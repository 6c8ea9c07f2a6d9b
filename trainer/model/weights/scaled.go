package weights

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// scales holds the factors of the blocks of a matrix, or of stacked matrices.
type scales struct {
	factors            tensor // one number for each block: [gridRows, gridCols] for each of the stacked matrices
	rows, cols         int64  // size of a block; the last blocks may be smaller
	gridRows, gridCols int64  // number of blocks in a column of a matrix, and in a row
	stacked            int64  // number of rows of one matrix
	first              int64  // first row of the tensor, counted among the rows of all stacked matrices
}

// readScaled widens rows of a matrix, beginning with row `from` of the tensor, and multiplies them in float32 by the
// factors of their blocks.
func (t tensor) readScaled(from int64, dst []float32) error {
	cols := t.shape[len(t.shape)-1]
	if cols == 0 {
		return nil
	}
	e, s := encodings[t.dtype], t.scales
	rowBytes := e.bytes(cols)
	factors, held := make([]float32, s.gridCols), int64(-1)
	for i := int64(0); i < int64(len(dst))/cols; i++ {
		row, values := from+i, dst[i*cols:(i+1)*cols]
		e.decode(values, t.data[row*rowBytes:(row+1)*rowBytes])
		matrix, within := (s.first+row)/s.stacked, (s.first+row)%s.stacked
		if at := matrix*s.gridRows + within/s.rows; at != held {
			s.factors.dtype.Decode(factors, s.factors.bytes(at*s.gridCols, s.gridCols))
			held = at
		}
		for b, factor := range factors {
			block := values[int64(b)*s.cols : min(int64(b+1)*s.cols, cols)]
			for j := range block {
				block[j] *= factor
			}
		}
	}
	return nil
}

// bytes returns the bytes of n elements, beginning with element `from`, of a tensor whose elements are whole bytes.
func (t tensor) bytes(from, n int64) []byte {
	size := encodings[t.dtype].blockBytes
	return t.data[from*size:][:n*size]
}

// dequantise pairs the packed tensors of a quantised folder with their scales, so that they can be read like other
// matrices. The scales of activations and of the cache are ignored: here only weights are stored in fewer bits.
func (o *opener) dequantise() error {
	if o.config.Quantisation == nil {
		return nil
	}
	ignored := 0
	for name := range o.tensors {
		if scalesActivations(name) {
			delete(o.tensors, name)
			ignored++
		}
	}
	if ignored > 0 {
		o.notes = append(o.notes, fmt.Sprintf("%d scales of activations or of the cache are ignored: only weights are quantised here", ignored))
	}
	pairs := 0
	for _, name := range slices.Sorted(maps.Keys(o.packed)) {
		paired, err := o.pair(name)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", name, err)
		}
		if paired {
			pairs++
		}
	}
	if len(o.packed) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(o.packed)))
		return fmt.Errorf("tensor %s of type %s does not belong to a quantised matrix", name, o.packed[name].dtype)
	}
	if pairs > 0 {
		o.notes = append(o.notes, fmt.Sprintf("%d matrices are stored as %s: they are widened, and saved unquantised", pairs, o.config.Quantisation.Method))
	}
	return nil
}

// scalesActivations reports whether a name is the name of a scale for activations or for cached keys and values.
func scalesActivations(name string) bool {
	return slices.ContainsFunc([]string{"activation_scale", "input_scale", "output_scale", ".q_scale", ".k_scale", ".v_scale"},
		func(end string) bool { return strings.HasSuffix(name, end) })
}

// Ends of the names of the two halves of an mxfp4 matrix.
const (
	blocksEnd = "_blocks"
	scalesEnd = "_scales"
)

// pair makes a matrix from the packed tensor of that name and its scales, and removes both from the lists. It returns false
// if the name is not the name of a packed matrix.
func (o *opener) pair(name string) (paired bool, err error) {
	matrix, ok := o.packed[name]
	if !ok {
		return false, nil // it was the scale of another tensor
	}
	base, factors := name, tensor{}
	switch cut, halves := strings.CutSuffix(name, blocksEnd); {
	case matrix.dtype == F8_E4M3:
		factors, err = o.takeScale(name)
	case halves && matrix.dtype == "U8":
		base = cut
		matrix, factors, err = takeBlocks(o.packed, matrix, cut+scalesEnd)
	default:
		return false, nil
	}
	if err != nil {
		return false, err
	}
	t, err := newScaled(matrix, factors, o.config.Quantisation)
	if err != nil {
		return false, err
	}
	delete(o.packed, name)
	return true, add(o, o.tensors, "the file with "+name, base, t)
}

// takeScale removes and returns the scales of an FP8 matrix. Values are multiplied by them, even if the name ends in _inv.
func (o *opener) takeScale(name string) (factors tensor, err error) {
	found := 0
	for _, end := range []string{"_scale_inv", "_scale"} {
		if t, ok := o.tensors[name+end]; ok {
			factors = t
			found++
			delete(o.tensors, name+end)
		}
		if t, ok := o.packed[name+end]; ok && t.dtype == F8_E8M0 {
			factors = t
			found++
			delete(o.packed, name+end)
		}
	}
	if found != 1 {
		return tensor{}, fmt.Errorf("an FP8 matrix needs one tensor of scales, %s_scale_inv or %s_scale: there are %d", name, name, found)
	}
	return factors, nil
}

// takeBlocks returns the matrix of mxfp4 blocks [..., rows, columns/32, 16], and removes and returns its scales.
func takeBlocks(packed map[string]tensor, one tensor, scalesName string) (matrix, factors tensor, err error) {
	of, ok := packed[scalesName]
	if !ok || of.dtype != "U8" {
		return matrix, factors, fmt.Errorf("blocks of mxfp4 need their scales, %s", scalesName)
	}
	delete(packed, scalesName)
	n := len(one.shape)
	if n < 3 || one.shape[n-1] != 16 {
		return matrix, factors, fmt.Errorf("shape %v: blocks of mxfp4 must have 16 bytes, which hold 32 values", one.shape)
	}
	if one.shape[n-2] > math.MaxInt64/32 {
		return matrix, factors, fmt.Errorf("shape %v overflows", one.shape)
	}
	shape := slices.Clone(one.shape[:n-1])
	shape[n-2] *= 32
	return tensor{shape: shape, dtype: MXFP4, data: one.data}, tensor{shape: of.shape, dtype: F8_E8M0, data: of.data}, nil
}

// newScaled checks the scales of a packed matrix, or of stacked matrices.
func newScaled(m, factors tensor, q *arch.Quantisation) (tensor, error) {
	n := len(m.shape)
	if n < 2 || n > 3 {
		return tensor{}, fmt.Errorf("shape %v: only matrices and stacked matrices can be quantised", m.shape)
	}
	if want, err := storedBytes(m.shape, m.dtype); err != nil || want != int64(len(m.data)) {
		return tensor{}, fmt.Errorf("shape %v of %s needs %d bytes, the file has %d (%v)", m.shape, m.dtype, want, len(m.data), err)
	}
	rows, cols := m.shape[n-2], m.shape[n-1]
	s := &scales{factors: factors, stacked: max(rows, 1)}
	switch {
	case m.dtype == MXFP4:
		s.rows, s.cols = 1, 32
	case q.BlockRows > 0 && fits(factors.shape, m.shape, int64(q.BlockRows), int64(q.BlockCols)):
		s.rows, s.cols = int64(q.BlockRows), int64(q.BlockCols)
	case q.BlockRows > 0 && q.Method == arch.QuantFP8:
		return tensor{}, fmt.Errorf("scales of shape %v do not fit a matrix of %v in blocks of %d × %d", factors.shape, m.shape, q.BlockRows, q.BlockCols)
	case fits(factors.shape, m.shape, rows, cols):
		s.rows, s.cols = rows, cols
	default:
		s.rows, s.cols = 1, cols
	}
	if !fits(factors.shape, m.shape, s.rows, s.cols) {
		return tensor{}, fmt.Errorf("scales of shape %v do not fit a matrix of %v: they must be one number, one for each row, or one for each block",
			factors.shape, m.shape)
	}
	s.gridRows, s.gridCols = blocksIn(rows, s.rows), blocksIn(cols, s.cols)
	s.rows, s.cols = max(s.rows, 1), max(s.cols, 1)
	m.scales = s
	return m, nil
}

// fits reports whether there is a scale for each block of the given size. Dimensions of 1 may be omitted.
func fits(have, matrix []int64, rows, cols int64) bool {
	n := len(matrix)
	want := slices.Clone(matrix)
	want[n-2], want[n-1] = blocksIn(matrix[n-2], rows), blocksIn(matrix[n-1], cols)
	one := func(size int64) bool { return size == 1 }
	return slices.Equal(slices.DeleteFunc(slices.Clone(have), one), slices.DeleteFunc(want, one))
}

func blocksIn(size, block int64) int64 {
	block = max(block, 1)
	return size/block + min(size%block, 1)
}

// decodeE4M3 widens FP8 with 4 exponent and 3 fraction bits and without infinities (OCP 8-bit floating point, E4M3).
func decodeE4M3(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = e4m3[src[i]]
	}
}

var e4m3 = func() (table [256]float32) {
	for b := range table {
		exponent, fraction := b>>3&15, float64(b&7)
		v := math.Ldexp(1+fraction/8, exponent-7)
		switch {
		case exponent == 0:
			v = math.Ldexp(fraction/8, -6)
		case b&127 == 127:
			v = math.NaN()
		}
		table[b] = float32(math.Copysign(v, float64(127-b)))
	}
	return table
}()

// decodeE8M0 widens powers of two: 2^(b-127), and NaN for 255 (OCP microscaling formats, E8M0).
func decodeE8M0(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(math.Ldexp(1, int(src[i])-127))
		if src[i] == 255 {
			dst[i] = float32(math.NaN())
		}
	}
}

// decodeE2M1 widens FP4. A byte holds two values; the earlier one is in its low half (OCP microscaling formats, E2M1).
func decodeE2M1(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = e2m1[src[i/2]>>(4*(i%2))&15]
	}
}

var e2m1 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}
