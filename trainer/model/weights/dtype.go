package weights

import (
	"encoding/binary"
	"math"
)

// DType is the storage type of a tensor, with its name in the file format.
type DType string

// Storage types that can be read. The types from Q8_0 to Q6_K occur in GGUF only.
const (
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	Q8_0 DType = "Q8_0"
	Q4_0 DType = "Q4_0"
	Q4_1 DType = "Q4_1"
	Q5_0 DType = "Q5_0"
	Q5_1 DType = "Q5_1"
	Q4_K DType = "Q4_K"
	Q5_K DType = "Q5_K"
	Q6_K DType = "Q6_K"

	// Types of folders with quantization_config, in which other tensors hold the scales.
	F8_E4M3 DType = "F8_E4M3"
	MXFP4   DType = "MXFP4"

	ggufMXFP4 DType = "MXFP4 blocks" // values and scales together, in another order than in folders
	F8_E8M0   DType = "F8_E8M0"      // for scales only
)

// encoding is the layout of a DType: blocks of blockLen values in blockBytes bytes. A block never spans two rows.
type encoding struct {
	blockLen   int64
	blockBytes int64
	decode     func(dst []float32, src []byte) // whole blocks
	scaled     bool                            // for quantised folders: the values need scales, or are scales
}

// bytes returns the size of n values, which must be whole blocks.
func (e encoding) bytes(n int64) int64 { return n / e.blockLen * e.blockBytes }

var encodings = map[DType]encoding{
	F32:  {1, 4, decodeF32, false},
	F16:  {1, 2, decodeF16, false},
	BF16: {1, 2, decodeBF16, false},
	Q8_0: {32, 34, decodeQ8_0, false},
	Q4_0: {32, 18, decodeQ4_0, false},
	Q4_1: {32, 20, decodeQ4_1, false},
	Q5_0: {32, 22, decodeQ5_0, false},
	Q5_1: {32, 24, decodeQ5_1, false},
	Q4_K: {256, 144, decodeK(false), false},
	Q5_K: {256, 176, decodeK(true), false},
	Q6_K: {256, 210, decodeQ6_K, false},

	ggufMXFP4: {32, 17, decodeMXFP4Blocks, false},

	F8_E4M3: {1, 1, decodeE4M3, true},
	MXFP4:   {32, 16, decodeE2M1, true},
	F8_E8M0: {1, 1, decodeE8M0, true},
}

// Size returns the bytes of one element of F32, F16 and BF16, and 0 for a quantised or unknown type.
func (d DType) Size() int64 {
	if e := encodings[d]; e.blockLen == 1 && !e.scaled {
		return e.blockBytes
	}
	return 0
}

// RowBytes returns the number of bytes of a row of k values, which must be whole blocks. It returns 0 for a type that
// cannot be read.
func (d DType) RowBytes(k int64) int64 {
	e, ok := encodings[d]
	if !ok {
		return 0
	}
	return e.bytes(k)
}

// Decode writes the values of whole blocks to dst, whose length must be the number of values in src.
func (d DType) Decode(dst []float32, src []byte) { encodings[d].decode(dst, src) }

func decodeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func decodeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = halfToFloat(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func decodeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// halfToFloat widens an IEEE 754 binary16, which is exact.
func halfToFloat(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch exp {
	case 0: // zero or subnormal: frac * 2^-24
		v := float32(frac) * 0x1p-24
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 31:
		return math.Float32frombits(sign | 255<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// encodeAs rounds float32 values to nearest even in dtype (F32, BF16 or F16) and appends their bytes.
func encodeAs(dst []byte, dtype DType, src []float32) []byte {
	switch dtype {
	case BF16:
		for _, v := range src {
			dst = binary.LittleEndian.AppendUint16(dst, floatToBF16(v))
		}
	case F16:
		for _, v := range src {
			dst = binary.LittleEndian.AppendUint16(dst, floatToHalf(v))
		}
	default:
		for _, v := range src {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
		}
	}
	return dst
}

func floatToBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		return uint16(bits>>16) | 0x40 // keep it a NaN
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

func floatToHalf(v float32) uint16 {
	bits := math.Float32bits(v)
	sign, abs := uint16(bits>>16)&0x8000, bits&0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x477ff000: // rounds to 65536 or more
		return sign | 0x7c00
	case abs < 0x38800000: // subnormal: adding 0.5 leaves round(v * 2^24) in the low bits
		sum := math.Float32frombits(abs) + 0.5
		return sign | uint16(math.Float32bits(sum)-0x3f000000)
	}
	abs += 0xfff + abs>>13&1
	return sign | uint16((abs-0x38000000)>>13)
}
