package weights

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// slowHalf widens a binary16 by its definition.
func slowHalf(h uint16) float64 {
	sign := 1.0
	if h&0x8000 != 0 {
		sign = -1
	}
	exp, frac := int(h>>10&31), float64(h&1023)
	switch exp {
	case 0:
		return sign * math.Ldexp(frac, -24)
	case 31:
		if frac == 0 {
			return math.Inf(int(sign))
		}
		return math.NaN()
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		want, got := slowHalf(uint16(h)), halfToFloat(uint16(h))
		if float64(got) != want && !(got != got && want != want) || math.Signbit(float64(got)) != (h >= 0x8000) {
			t.Fatalf("%#04x is %v, want %v", h, got, want)
		}
		if back := floatToHalf(got); back != uint16(h) && got == got {
			t.Fatalf("%#04x came back as %#04x", h, back)
		}
	}
}

// TestNarrowing compares rounding with the nearest of the two neighbours, ties to even.
func TestNarrowing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	narrow := func(name string, widen func(uint16) float64, round func(float32) uint16, infinity uint16) {
		for range 200_000 {
			v := math.Float32frombits(random.Uint32())
			if name == "F16" { // more of the samples are where binary16 has values
				v = float32(math.Ldexp(random.Float64()*2-1, random.IntN(48)-30))
			}
			if v != v {
				continue
			}
			got := round(v)
			best := math.Abs(widen(got) - float64(v))
			for _, other := range []uint16{got - 1, got + 1} {
				if got&0x7fff == 0 && other == got-1 || got&0x7fff == infinity {
					continue
				}
				distance := math.Abs(widen(other) - float64(v))
				if distance < best || distance == best && got&1 == 1 {
					t.Fatalf("%s: %v became %v, nearer is %v", name, v, widen(got), widen(other))
				}
			}
		}
	}
	narrow("F16", slowHalf, floatToHalf, 0x7c00)
	narrow("BF16", func(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }, floatToBF16, 0x7f80)
	if floatToHalf(65519.99) != 0x7bff || floatToHalf(65520) != 0x7c00 || floatToBF16(math.MaxFloat32) != 0x7f80 {
		t.Error("overflow")
	}
}

// bitsOf reads n bits from a bit position on, least significant first.
func bitsOf(b []byte, at, n int) (v int) {
	for i := range n {
		v |= int(b[(at+i)/8]>>((at+i)%8)&1) << i
	}
	return v
}

// slowDequant computes value i of a block in float64, directly from the description of the layout.
func slowDequant(dtype DType, b []byte, i int) float64 {
	f16 := func(at int) float64 { return slowHalf(binary.LittleEndian.Uint16(b[at:])) }
	nibble := func(at int) int { return bitsOf(b, 8*(at+i%16)+4*(i/16), 4) } // two halves of 16
	switch dtype {
	case F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
	case F16:
		return f16(0)
	case Q8_0:
		return f16(0) * float64(int8(b[2+i]))
	case Q4_0:
		return f16(0) * float64(nibble(2)-8)
	case Q4_1:
		return f16(0)*float64(nibble(4)) + f16(2)
	case Q5_0:
		return f16(0) * float64(nibble(6)+16*bitsOf(b, 16+i, 1)-16)
	case Q5_1:
		return f16(0)*float64(nibble(8)+16*bitsOf(b, 32+i, 1)) + f16(2)
	case Q4_K:
		group := i / 32
		scale, minimum := slowScales(b[4:], group)
		q := bitsOf(b[16:], 8*(32*(group/2)+i%32)+4*(group%2), 4)
		return f16(0)*float64(scale)*float64(q) - f16(2)*float64(minimum)
	case Q5_K:
		group := i / 32
		q := bitsOf(b[48:], 8*(32*(group/2)+i%32)+4*(group%2), 4) + 16*bitsOf(b[16:], 8*(i%32)+group, 1)
		scale, minimum := slowScales(b[4:], group)
		return f16(0)*float64(scale)*float64(q) - f16(2)*float64(minimum)
	case Q6_K:
		part, within := i/128, i%128
		run, j := within/32, within%32
		low := bitsOf(b[64*part:], 8*(j+32*(run%2))+4*(run/2), 4)
		high := bitsOf(b[128+32*part:], 8*j+2*run, 2)
		scale := int8(b[192+i/16])
		return f16(208) * float64(scale) * float64(low+16*high-32)
	case ggufMXFP4:
		if b[0] == 255 {
			return math.NaN()
		}
		size := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[nibble(1)&7]
		return math.Ldexp(math.Copysign(size, float64(7-nibble(1))), int(b[0])-127)
	}
	panic(dtype)
}

// slowScales reads the scale and the minimum of a group of Q4_K or Q5_K from their 12 bytes.
func slowScales(b []byte, group int) (scale, minimum int) {
	if group < 4 {
		return bitsOf(b, 8*group, 6), bitsOf(b[4:], 8*group, 6)
	}
	return bitsOf(b[8:], 8*(group-4), 4) + 16*bitsOf(b, 8*(group-4)+6, 2), bitsOf(b[8:], 8*(group-4)+4, 4) + 16*bitsOf(b[4:], 8*(group-4)+6, 2)
}

// TestDequantise compares random blocks with slowDequant: they differ only by one rounding to float32.
func TestDequantise(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for dtype, e := range encodings {
		if e.scaled {
			continue // TestCodes tests all of their values
		}
		const blocks = 50
		data := make([]byte, blocks*e.blockBytes)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		finiteScales(dtype, data)
		got := make([]float32, blocks*e.blockLen)
		e.decode(got, data)
		for i, v := range got {
			block := int64(i) / e.blockLen
			want := float32(slowDequant(dtype, data[block*e.blockBytes:(block+1)*e.blockBytes], i%int(e.blockLen)))
			if v != want && !(v != v && want != want) {
				t.Fatalf("%s value %d: %v, want %v", dtype, i, v, want)
			}
		}
	}
}

// finiteScales clears the top exponent bit of the binary16 scales.
func finiteScales(dtype DType, data []byte) {
	scales := map[DType][]int64{Q8_0: {0}, Q4_0: {0}, Q4_1: {0, 2}, Q5_0: {0}, Q5_1: {0, 2}, Q4_K: {0, 2}, Q5_K: {0, 2}, Q6_K: {208}}
	e := encodings[dtype]
	for block := int64(0); block < int64(len(data)); block += e.blockBytes {
		for _, at := range scales[dtype] {
			data[block+at+1] &^= 0x40
		}
	}
}

// TestGoldenBlocks compares with the gguf package's values of the same blocks (testdata/quant/make.py).
func TestGoldenBlocks(t *testing.T) {
	blocks := golden.QuantisedBlocks(t)
	if len(blocks) != 8 {
		t.Fatalf("%d types", len(blocks))
	}
	for name, b := range blocks {
		e := encodings[DType(name)]
		got := make([]float32, int64(len(b.Data))/e.blockBytes*e.blockLen)
		e.decode(got, b.Data)
		if !slices.EqualFunc(got, b.Values, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }) {
			t.Errorf("%s: the values differ from the gguf package's", name)
		}
	}
}
