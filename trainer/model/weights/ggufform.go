package weights

import (
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// ggufForm is the form in which a GGUF file stores a tensor.
type ggufForm struct {
	// ropePairs is half the head dimension for GGUF query and key rows stored with the two
	// halves of each head interleaved, 0 otherwise. Row h*2P + 2j + half of such a file is
	// Hugging Face row h*2P + half*P + j.
	ropePairs int64
	tiled     arch.Tiling
	// offset is included in every stored value, and is subtracted when values are read: arch.Tensor.GGUFOffset.
	offset float32
	decay  bool // arch.Tensor.GGUFDecay
}

func formOf(t arch.Tensor) ggufForm { return ggufForm{t.Pairs, t.Tiled, t.GGUFOffset, t.GGUFDecay} }

// inOrder reports whether rows and columns have the order of Hugging Face folders.
func (f ggufForm) inOrder() bool { return f.ropePairs == 0 && f.tiled.Groups == 0 }

// check reports a shape that does not have the rows or columns that the form needs.
func (f ggufForm) check(shape []int64) error {
	count, length := rows(shape)
	if f.ropePairs != 0 && count%(2*f.ropePairs) != 0 {
		return fmt.Errorf("%d rows are not whole heads of %d", count, 2*f.ropePairs)
	}
	if f.tiled.Columns {
		count = length
	}
	if t := f.tiled; t.Groups != 0 && count != t.First+t.Groups*t.Each*t.Size {
		return fmt.Errorf("shape %v does not have %d heads of %d after %d others", shape, t.Groups*t.Each, t.Size, t.First)
	}
	return nil
}

// storedRow returns the row of the file that holds a Hugging Face row.
func (f ggufForm) storedRow(row int64) int64 {
	switch {
	case f.ropePairs != 0:
		pairs := f.ropePairs
		head, within := row/(2*pairs), row%(2*pairs)
		return head*2*pairs + 2*(within%pairs) + within/pairs
	case f.tiled.Columns:
		return row
	}
	return f.tiled.Stored(row)
}

// columns calls move for each head of a row whose columns are heads: size columns at `from` in folders are at `to` in the file.
func (f ggufForm) columns(length int64, move func(from, to, size int64)) {
	if !f.tiled.Columns {
		return
	}
	for from := int64(0); from < length; from += f.tiled.Size {
		move(from, f.tiled.Stored(from), f.tiled.Size)
	}
}

// decode converts values of the file to those of folders.
func (f ggufForm) decode(values []float32) error {
	if f.offset == 0 && !f.decay {
		return nil
	}
	for i, v := range values {
		values[i] = v - f.offset
		if !f.decay {
			continue
		}
		if !(v < 0) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("value %d is %g: the factor of a decay must be negative and finite", i, v)
		}
		values[i] = float32(math.Log(-float64(v)))
	}
	return nil
}

// encode converts values of folders to those of the file.
func (f ggufForm) encode(values []float32) error {
	if f.offset == 0 && !f.decay {
		return nil
	}
	for i, v := range values {
		values[i] = v + f.offset
		if !f.decay {
			continue
		}
		values[i] = float32(-math.Exp(float64(v)))
		if values[i] == 0 || math.IsInf(float64(values[i]), 0) || math.IsNaN(float64(values[i])) {
			return fmt.Errorf("value %d is %g: its exponential is not a positive float32", i, v)
		}
	}
	return nil
}
