package weights

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

const ggufAlignment = 32 // of tensors' data in bytes, unless general.alignment is set

// ggufFileTypes holds general.file_type for files whose matrices all have one type.
var ggufFileTypes = map[DType]int64{F32: 0, F16: 1, Q8_0: 7, BF16: 32}

// ggufOut is a tensor to write. If it has several parts, they are stacked.
type ggufOut struct {
	name   string
	dtype  DType
	shape  []int64 // rows first
	parts  []arch.Tensor
	values []float32 // instead of parts
}

// bytes returns the size of the tensor in the file.
func (t ggufOut) bytes() int64 {
	n := t.dtype.RowBytes(t.shape[len(t.shape)-1])
	for _, d := range t.shape[:len(t.shape)-1] {
		n *= d
	}
	return n
}

// WriteGGUF writes a GGUF file (version 3, little endian) that llama.cpp and Open can read. Matrices are
// rounded to dtype: F32, F16, BF16 or Q8_0. Q8_0 needs rows that are multiples of 32 values; other rows become
// F16. Norms, biases and the weights of convolutions are F32. meta is the tokenizer's metadata; read fills dst
// with all values of a tensor by its Hugging Face name. After a crash the file is either complete or missing.
func WriteGGUF(path string, cfg arch.Config, meta map[string]any, read func(name string, dst []float32) error, dtype DType) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // a device must not be replaced
		return fmt.Errorf("weights: %s is not a file: name another one", path)
	}
	fileType, ok := ggufFileTypes[dtype]
	if !ok {
		return fmt.Errorf("weights: GGUF files are written in F32, F16, BF16 or Q8_0, not %s", dtype)
	}
	own, ropeFactors, err := cfg.GGUF()
	if err != nil {
		return err
	}
	all := maps.Clone(meta)
	maps.Copy(all, own)
	all["general.file_type"], all["general.quantization_version"], all["general.alignment"] = fileType, int64(2), int64(ggufAlignment)
	tensors := ggufTensors(cfg, ropeFactors, dtype)
	err = durable.ReplaceWith(durable.OS{}, path, func(to io.Writer) error {
		w := &ggufEncoder{to: &durable.CountingWriter{W: to}}
		w.header(all, tensors)
		for _, t := range tensors {
			w.tensor(t, read)
		}
		return w.err
	})
	if err != nil {
		return fmt.Errorf("weights: writing %s: %w", path, err)
	}
	return nil
}

// ggufTensors lists the tensors of a file in the order of the layout.
func ggufTensors(cfg arch.Config, ropeFactors []float32, dtype DType) (out []ggufOut) {
	if ropeFactors != nil {
		out = append(out, ggufOut{name: arch.GGUFRopeFactors, dtype: F32, shape: []int64{int64(len(ropeFactors))}, values: ropeFactors})
	}
	at := map[string]int{}
	for _, leaf := range cfg.Layout().Leaves {
		for _, t := range leaf.Parts {
			if i, ok := at[t.GGUF]; ok {
				out[i].parts = append(out[i].parts, t)
				continue
			}
			at[t.GGUF] = len(out)
			one := ggufOut{name: t.GGUF, dtype: dtype, shape: t.GGUFShape(), parts: []arch.Tensor{t}}
			if t.Stack > 0 {
				one.shape = append([]int64{t.Stack}, t.Shape...)
			}
			switch {
			case leaf.Vector():
				one.dtype = F32
			case dtype == Q8_0 && t.Shape[len(t.Shape)-1]%encodings[Q8_0].blockLen != 0:
				one.dtype = F16
			}
			out = append(out, one)
		}
	}
	for i := range out {
		slices.SortFunc(out[i].parts, func(a, b arch.Tensor) int { return int(a.Index - b.Index) })
	}
	return out
}

// ggufEncoder writes the parts of a file. It keeps the first error.
type ggufEncoder struct {
	to      *durable.CountingWriter
	err     error
	buffer  []float32
	rows    []float32
	encoded []byte
}

func (w *ggufEncoder) bytes(p []byte) {
	if w.err == nil {
		_, w.err = w.to.Write(p)
	}
}

func (w *ggufEncoder) u32(v uint32) { w.bytes(binary.LittleEndian.AppendUint32(nil, v)) }
func (w *ggufEncoder) u64(v uint64) { w.bytes(binary.LittleEndian.AppendUint64(nil, v)) }
func (w *ggufEncoder) boolean(v bool) {
	b := byte(0)
	if v {
		b = 1
	}
	w.bytes([]byte{b})
}
func (w *ggufEncoder) text(s string) { w.u64(uint64(len(s))); w.bytes([]byte(s)) }

// pad writes zeros up to the next multiple of the alignment.
func (w *ggufEncoder) pad() { w.bytes(make([]byte, aligned(w.to.N)-w.to.N)) }

func aligned(n int64) int64 { return (n + ggufAlignment - 1) / ggufAlignment * ggufAlignment }

func (w *ggufEncoder) header(meta map[string]any, tensors []ggufOut) {
	w.bytes([]byte("GGUF"))
	w.u32(3)
	w.u64(uint64(len(tensors)))
	w.u64(uint64(len(meta)))
	w.keyValue("general.architecture", meta["general.architecture"]) // readers look for it first
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		if key != "general.architecture" {
			w.keyValue(key, meta[key])
		}
	}
	offset := int64(0)
	for _, t := range tensors {
		w.text(t.name)
		w.u32(uint32(len(t.shape)))
		for _, d := range slices.Backward(t.shape) {
			w.u64(uint64(d))
		}
		w.u32(ggufNumber(t.dtype))
		w.u64(uint64(offset))
		offset = aligned(offset + t.bytes())
	}
	w.pad()
}

func ggufNumber(dtype DType) uint32 {
	for number, d := range ggufTypes {
		if d == dtype {
			return number
		}
	}
	panic("weights: GGUF has no tensor type " + string(dtype))
}

// keyValue writes a value, numbers in 32 bits.
func (w *ggufEncoder) keyValue(key string, value any) {
	w.text(key)
	switch v := value.(type) {
	case string:
		w.u32(ggufString)
		w.text(v)
	case bool:
		w.u32(ggufBool)
		w.boolean(v)
	case int64:
		w.u32(ggufUint32)
		w.u32(uint32(v))
	case float64:
		w.u32(ggufFloat32)
		w.u32(math.Float32bits(float32(v)))
	case []string:
		writeArray(w, ggufString, v, w.text)
	case []bool:
		writeArray(w, ggufBool, v, w.boolean)
	case []int64:
		writeArray(w, ggufInt32, v, func(n int64) { w.u32(uint32(n)) })
	default:
		w.err = fmt.Errorf("metadata %s is of type %T", key, value)
	}
}

func writeArray[T any](w *ggufEncoder, kind uint32, values []T, write func(T)) {
	w.u32(ggufArray)
	w.u32(kind)
	w.u64(uint64(len(values)))
	for _, v := range values {
		write(v)
	}
}

// tensor writes the values of a tensor, in GGUF's order of rows.
func (w *ggufEncoder) tensor(t ggufOut, read func(name string, dst []float32) error) {
	if t.values != nil {
		w.encode(t.dtype, t.values)
	}
	for _, part := range t.parts {
		n := int(part.Numel())
		w.buffer = slices.Grow(w.buffer[:0], n)[:n]
		if w.err == nil {
			w.err = read(part.Name, w.buffer)
		}
		if w.err == nil {
			w.err = formOf(part).encode(w.buffer)
		}
		w.encode(t.dtype, w.ordered(part))
		if w.err != nil {
			w.err = fmt.Errorf("tensor %s: %w", part.Name, w.err)
			return
		}
	}
	w.pad()
}

// ordered returns the values in the buffer with rows and columns in GGUF's order.
func (w *ggufEncoder) ordered(part arch.Tensor) []float32 {
	form := formOf(part)
	if form.inOrder() {
		return w.buffer
	}
	count, length := rows(part.Shape)
	w.rows = slices.Grow(w.rows[:0], len(w.buffer))[:len(w.buffer)]
	for row := range count {
		one, stored := w.buffer[row*length:][:length], w.rows[form.storedRow(row)*length:][:length]
		copy(stored, one)
		form.columns(length, func(from, to, size int64) { copy(stored[to:to+size], one[from:from+size]) })
	}
	return w.rows
}

func (w *ggufEncoder) encode(dtype DType, values []float32) {
	const chunk = 1 << 16 // a multiple of every block
	for from := 0; from < len(values) && w.err == nil; from += chunk {
		part := values[from:min(from+chunk, len(values))]
		if dtype == Q8_0 {
			w.encoded = encodeQ8_0(w.encoded[:0], part)
			w.bytes(w.encoded)
			continue
		}
		w.err = WriteFloats(w.to, dtype, part)
	}
}

// encodeQ8_0 appends blocks of 32 values. A block is a scale (the largest magnitude divided by 127, as float16) and the
// values divided by it, as rounded integers. As in ggml, halves are rounded away from zero, and values are divided by the
// scale before it is rounded to float16.
func encodeQ8_0(dst []byte, src []float32) []byte {
	for block := range slices.Chunk(src, 32) {
		largest := float32(0)
		for _, v := range block {
			largest = max(largest, float32(math.Abs(float64(v))))
		}
		scale, inverse := largest/127, float32(0)
		if scale != 0 {
			inverse = 1 / scale
		}
		dst = binary.LittleEndian.AppendUint16(dst, floatToHalf(scale))
		for _, v := range block {
			dst = append(dst, byte(int8(math.Round(float64(v*inverse)))))
		}
	}
	return dst
}
