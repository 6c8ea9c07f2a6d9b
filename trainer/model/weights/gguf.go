package weights

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// ggufTypes maps the numbers of tensor types in files to types. Types without an entry in encodings cannot be read; they
// are here for error messages.
var ggufTypes = map[uint32]DType{
	0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 6: Q5_0, 7: Q5_1, 8: Q8_0, 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: Q4_K, 13: Q5_K,
	14: Q6_K, 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
	23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: BF16, 34: "TQ1_0", 35: "TQ2_0", 39: ggufMXFP4,
}

// Limits on GGUF metadata. The largest vocabularies have 256k tokens and twice as many merges.
const (
	maxGGUFKeys     = 1 << 14
	maxGGUFElements = 1 << 22 // in all arrays together
	maxGGUFText     = 1 << 26 // bytes of all strings together
)

// ggufTensor is a tensor of the file. Its shape has the rows first; in the file the columns are first.
type ggufTensor struct {
	name   string
	dtype  DType
	shape  []int64
	offset uint64
	data   []byte
}

// parseGGUF reads the header of a GGUF file, version 2 or 3, little endian. The tensors' data are slices of file.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
func parseGGUF(file []byte) (meta map[string]any, tensors []ggufTensor, err error) {
	r := &ggufReader{byteReader: byteReader{data: file}}
	if string(r.take(4)) != "GGUF" {
		return nil, nil, errors.New("not a GGUF file: does not start with GGUF")
	}
	if version := r.u32(); r.err == nil && version != 2 && version != 3 {
		return nil, nil, fmt.Errorf("GGUF version %d: only versions 2 and 3 (little endian) are supported", version)
	}
	tensorCount, keyCount := r.u64(), r.u64()
	if tensorCount > maxTensors || keyCount > maxGGUFKeys {
		return nil, nil, fmt.Errorf("header announces %d tensors and %d keys: at most %d and %d", tensorCount, keyCount, maxTensors, maxGGUFKeys)
	}
	meta = map[string]any{}
	for range keyCount {
		if err := r.keyValue(meta); err != nil {
			return nil, nil, fmt.Errorf("metadata: %w", err)
		}
	}
	for range tensorCount {
		t := r.tensorInfo()
		if r.err != nil {
			return nil, nil, fmt.Errorf("tensor list: %w", r.err)
		}
		tensors = append(tensors, t)
	}
	return meta, tensors, locateGGUF(file, r, meta, tensors)
}

// locateGGUF finds every tensor's slice of the data section.
func locateGGUF(file []byte, r *ggufReader, meta map[string]any, tensors []ggufTensor) error {
	if r.err != nil {
		return r.err
	}
	alignment := uint64(ggufAlignment)
	if v, ok := meta["general.alignment"]; ok {
		n, _ := v.(int64)
		if n < 8 || n > 1<<16 || n&(n-1) != 0 {
			return fmt.Errorf("general.alignment is %v: must be a power of two from 8 to 65536", v)
		}
		alignment = uint64(n)
	}
	start := (uint64(r.at) + alignment - 1) / alignment * alignment
	if start > uint64(len(file)) {
		if len(tensors) > 0 {
			return errors.New("file ends before its tensor data")
		}
		start = uint64(len(file))
	}
	data := file[start:]
	seen := map[string]bool{}
	for i := range tensors {
		t := &tensors[i]
		if seen[t.name] {
			return fmt.Errorf("tensor %s occurs twice", t.name)
		}
		seen[t.name] = true
		size, err := storedBytes(t.shape, t.dtype)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", t.name, err)
		}
		if t.offset%alignment != 0 {
			return fmt.Errorf("tensor %s: offset %d is not a multiple of the alignment %d", t.name, t.offset, alignment)
		}
		if t.offset > uint64(len(data)) || uint64(size) > uint64(len(data))-t.offset {
			return fmt.Errorf("tensor %s: %d bytes at offset %d reach past the end of the file (%d bytes of data)", t.name, size, t.offset, len(data))
		}
		t.data = data[t.offset : t.offset+uint64(size)]
	}
	return checkGGUFOverlap(tensors)
}

func checkGGUFOverlap(tensors []ggufTensor) error {
	order := slices.SortedFunc(slices.Values(tensors), func(a, b ggufTensor) int { return cmp.Compare(a.offset, b.offset) })
	for i := 1; i < len(order); i++ {
		if before := order[i-1]; before.offset+uint64(len(before.data)) > order[i].offset {
			return fmt.Errorf("tensor %s overlaps tensor %s", order[i].name, before.name)
		}
	}
	return nil
}

// ggufReader reads values of a GGUF header.
type ggufReader struct {
	byteReader
	text     int // bytes of strings so far
	elements int // array elements so far
}

func (r *ggufReader) u32() uint32 { return uint32(r.number(4)) }
func (r *ggufReader) u64() uint64 { return r.number(8) }

func (r *ggufReader) str() string {
	n := r.u64()
	if n > uint64(maxGGUFText-r.text) {
		r.fail("strings take more than %d bytes", maxGGUFText)
		return ""
	}
	b := r.take(n)
	r.text += len(b)
	return string(b)
}

func (r *ggufReader) keyValue(meta map[string]any) error {
	key := r.str()
	if len(key) > strictjson.MaxKeyBytes || !utf8.ValidString(key) {
		r.fail("a key is not UTF-8 or longer than %d bytes", strictjson.MaxKeyBytes)
	}
	if _, twice := meta[key]; twice {
		r.fail("key %q occurs twice", key)
	}
	kind := r.u32()
	if kind == ggufArray {
		meta[key] = r.array(key)
	} else {
		meta[key] = r.scalar(kind, key)
	}
	return r.err
}

// Value types of GGUF metadata.
const (
	ggufUint8, ggufInt8     = 0, 1
	ggufUint16, ggufInt16   = 2, 3
	ggufUint32, ggufInt32   = 4, 5
	ggufFloat32, ggufBool   = 6, 7
	ggufString, ggufArray   = 8, 9
	ggufUint64, ggufInt64   = 10, 11
	ggufFloat64             = 12
	ggufLargestType         = ggufFloat64
	ggufSmallestStringBytes = 8
)

var ggufWidths = [ggufLargestType + 1]int{ggufUint8: 1, ggufInt8: 1, ggufUint16: 2, ggufInt16: 2, ggufUint32: 4, ggufInt32: 4,
	ggufFloat32: 4, ggufBool: 1, ggufString: ggufSmallestStringBytes, ggufUint64: 8, ggufInt64: 8, ggufFloat64: 8}

// scalar reads a value as string, bool, int64, uint64 (above int64's range) or float64.
func (r *ggufReader) scalar(kind uint32, key string) any {
	if kind == ggufString {
		return r.str()
	}
	if kind > ggufLargestType || kind == ggufArray {
		r.fail("key %q: value type %d is unknown or nested", key, kind)
		return nil
	}
	bits := r.number(ggufWidths[kind])
	switch kind {
	case ggufInt8:
		return int64(int8(bits))
	case ggufInt16:
		return int64(int16(bits))
	case ggufInt32:
		return int64(int32(bits))
	case ggufFloat32:
		return float64(math.Float32frombits(uint32(bits)))
	case ggufFloat64:
		return math.Float64frombits(bits)
	case ggufBool:
		return bits != 0
	}
	if bits > math.MaxInt64 && kind == ggufUint64 {
		return bits
	}
	return int64(bits)
}

// array reads []string, []bool, []int64 or []float64.
func (r *ggufReader) array(key string) any {
	kind, n := r.u32(), r.u64()
	if r.err != nil {
		return nil
	}
	if kind > ggufLargestType || kind == ggufArray {
		r.fail("key %q: array of type %d is unknown or nested", key, kind)
		return nil
	}
	if n > uint64(maxGGUFElements-r.elements) || n*uint64(ggufWidths[kind]) > uint64(len(r.data)-r.at) {
		r.fail("key %q: array of %d values is cut short or above the limit of %d", key, n, maxGGUFElements)
		return nil
	}
	r.elements += int(n)
	switch kind {
	case ggufString:
		return collect[string](r, kind, key, n)
	case ggufBool:
		return collect[bool](r, kind, key, n)
	case ggufFloat32, ggufFloat64:
		return collect[float64](r, kind, key, n)
	}
	return collect[int64](r, kind, key, n)
}

func collect[T any](r *ggufReader, kind uint32, key string, n uint64) []T {
	values := make([]T, 0, n)
	for range n {
		v, ok := r.scalar(kind, key).(T)
		if r.err != nil {
			return nil
		}
		if !ok {
			r.fail("key %q: a value is above 2^63-1", key)
			return nil
		}
		values = append(values, v)
	}
	return values
}

func (r *ggufReader) tensorInfo() ggufTensor {
	t := ggufTensor{name: r.str()}
	if len(t.name) > strictjson.MaxKeyBytes {
		r.fail("tensor name of %d bytes: at most %d", len(t.name), strictjson.MaxKeyBytes)
	}
	dims := r.u32()
	if dims > 4 {
		r.fail("tensor %q has %d dimensions: at most 4", t.name, dims)
		return t
	}
	t.shape = make([]int64, dims)
	for i := range t.shape {
		size := r.u64()
		if size > math.MaxInt64 {
			r.fail("tensor %q: shape overflows", t.name)
		}
		t.shape[len(t.shape)-1-i] = int64(size)
	}
	kind := r.u32()
	dtype, known := ggufTypes[kind]
	if !known {
		r.fail("tensor %q: type %d is unknown", t.name, kind)
	}
	t.dtype, t.offset = dtype, r.u64()
	return t
}
