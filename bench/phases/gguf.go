package phases

import (
	"bufio"
	"encoding/binary"
	"errors"
	"math"
	"os"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// quantiser makes blocks of a GGUF type from float32. number is the type's number in GGUF.
type quantiser struct {
	name   string
	number uint32
	length int
	encode func(dst []byte, v []float32) []byte // encodes one block
}

var (
	q8_0 = quantiser{"Q8_0", 8, 32, encodeQ8_0}
	q4_K = quantiser{"Q4_K", 12, 256, encodeQ4_K}
)

// encodeQ8_0 rounds each value to the nearest multiple of the scale, which is the largest magnitude / 127.
func encodeQ8_0(dst []byte, v []float32) []byte {
	largest := 0.0
	for _, x := range v {
		largest = max(largest, math.Abs(float64(x)))
	}
	dst = binary16(dst, largest/127)
	for _, x := range v {
		q := 0.0
		if largest > 0 {
			q = math.RoundToEven(float64(x) * 127 / largest)
		}
		dst = append(dst, byte(int8(q)))
	}
	return dst
}

// encodeQ4_K rounds to 16 equally spaced values between the least and the largest of each 32. It does not search for better spacings.
func encodeQ4_K(dst []byte, v []float32) []byte {
	var scale, minimum [8]float64
	for g := range 8 {
		low, high := 0.0, 0.0
		for _, x := range v[32*g : 32*g+32] {
			low, high = min(low, float64(x)), max(high, float64(x))
		}
		scale[g], minimum[g] = (high-low)/15, -low
	}
	d, s := steps(scale)
	dmin, m := steps(minimum)
	dst = binary16(binary16(dst, d), dmin)
	var packed [12]byte
	for g := range 4 {
		packed[g], packed[g+4] = s[g]|s[g+4]>>4<<6, m[g]|m[g+4]>>4<<6
		packed[g+8] = s[g+4]&15 | m[g+4]<<4
	}
	dst = append(dst, packed[:]...)
	number := func(i int) byte {
		g := i / 32
		step := d * float64(s[g])
		if step == 0 {
			return 0
		}
		return byte(min(max(math.Round((float64(v[i])+dmin*float64(m[g]))/step), 0), 15))
	}
	for g := 0; g < 8; g += 2 {
		for j := range 32 {
			dst = append(dst, number(32*g+j)|number(32*g+32+j)<<4)
		}
	}
	return dst
}

// steps returns the values in 6 bits each, and their unit.
func steps(values [8]float64) (unit float64, steps [8]byte) {
	for _, v := range values {
		unit = max(unit, v/63)
	}
	for i, v := range values {
		if unit > 0 {
			steps[i] = byte(math.Round(v / unit))
		}
	}
	return unit, steps
}

// binary16 appends v, 0 <= v < 65504, as float16, rounded down.
func binary16(dst []byte, v float64) []byte {
	if v < 0x1p-14 {
		return binary.LittleEndian.AppendUint16(dst, uint16(v*0x1p24))
	}
	fraction, exponent := math.Frexp(v) // fraction in [0.5, 1)
	return binary.LittleEndian.AppendUint16(dst, uint16(exponent+14)<<10|uint16((fraction*2-1)*1024))
}

// writeGGUF writes a model with its matrices in the quantiser's blocks. read fills dst with a tensor.
func writeGGUF(path string, c arch.Config, q quantiser, read func(name string, dst []float32) error) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	defer func() { err = errors.Join(err, w.Flush(), f.Close()) }()
	tensors := c.Layout().Tensors()
	header := ggufHeader(c, q, tensors)
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range tensors {
		values := make([]float32, t.Numel())
		if err := read(t.Name, values); err != nil {
			return err
		}
		data := q.tensor(t, values)
		if _, err := w.Write(append(data, make([]byte, padding(len(data)))...)); err != nil {
			return err
		}
	}
	return nil
}

func padding(n int) int { return (32 - n%32) % 32 }

// tensor returns a tensor's bytes: matrices in blocks, other tensors in float32.
func (q quantiser) tensor(t arch.Tensor, values []float32) (data []byte) {
	if len(t.Shape) < 2 {
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		return data
	}
	for i := 0; i < len(values); i += q.length {
		data = q.encode(data, values[i:i+q.length])
	}
	return data
}

func ggufHeader(c arch.Config, q quantiser, tensors []arch.Tensor) []byte {
	var keys, list []byte
	count := uint64(0)
	text := func(dst []byte, s string) []byte {
		return append(binary.LittleEndian.AppendUint64(dst, uint64(len(s))), s...)
	}
	key := func(name string, kind, value uint32) {
		keys = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(text(keys, name), kind), value)
		count++
	}
	keys, count = text(binary.LittleEndian.AppendUint32(text(keys, "general.architecture"), 8), c.Family), 1
	for name, value := range map[string]int{"embedding_length": c.Hidden, "block_count": c.Layers, "attention.head_count": c.Heads,
		"attention.head_count_kv": c.KVHeads, "attention.key_length": c.HeadDim, "feed_forward_length": c.FFN, "context_length": c.MaxPosition} {
		key(c.Family+"."+name, 4, uint32(value))
	}
	key(c.Family+".attention.layer_norm_rms_epsilon", 6, math.Float32bits(float32(c.RMSEps)))
	key(c.Family+".rope.freq_base", 6, math.Float32bits(float32(c.RopeTheta)))
	key("tokenizer.ggml.eos_token_id", 4, uint32(c.EOS[0]))
	offset := 0
	for _, t := range tensors {
		list = binary.LittleEndian.AppendUint32(text(list, t.GGUF), uint32(len(t.Shape)))
		kind, size := uint32(0), 4*int(t.Numel())
		for i := range t.Shape {
			list = binary.LittleEndian.AppendUint64(list, uint64(t.Shape[len(t.Shape)-1-i]))
		}
		if len(t.Shape) == 2 {
			kind, size = q.number, len(q.encode(nil, make([]float32, q.length)))*int(t.Numel())/q.length
		}
		list = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(list, kind), uint64(offset))
		offset += size + padding(size)
	}
	file := binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
	file = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(file, uint64(len(tensors))), count)
	file = append(append(file, keys...), list...)
	return append(file, make([]byte, padding(len(file)))...)
}
