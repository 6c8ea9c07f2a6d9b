package golden

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"testing"
)

// Tensors are the arrays of one safetensors file by name.
type Tensors map[string]Tensor

// Tensor is one array with its shape; Data is widened to float64 (exact for every dtype used here).
type Tensor struct {
	Shape []int64
	Data  []float64
}

// Float32s returns the data as float32, exact for arrays stored as F32.
func (t Tensor) Float32s() []float32 { return convert[float32](t.Data) }

// Int32s returns the data as int32.
func (t Tensor) Int32s() []int32 { return convert[int32](t.Data) }

// Int64s returns the data as int64.
func (t Tensor) Int64s() []int64 { return convert[int64](t.Data) }

func convert[T int32 | int64 | float32](data []float64) []T {
	out := make([]T, len(data))
	for i, v := range data {
		out[i] = T(v)
	}
	return out
}

// Rows returns the rows of input_ids, [rows, width], without the padding after their lengths.
func (a Tensors) Rows() (rows [][]int32) {
	ids, width := a["input_ids"].Int32s(), a["input_ids"].Shape[1]
	for r, n := range a["lengths"].Int64s() {
		rows = append(rows, ids[int64(r)*width:][:n])
	}
	return rows
}

// ReadTensors reads a safetensors file of expected numbers. It trusts the file. It shares no code with the loader under
// test, trainer/model/weights.
func ReadTensors(t testing.TB, path string) Tensors {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := binary.LittleEndian.Uint64(raw)
	var header map[string]struct {
		DType   string  `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets [2]int  `json:"data_offsets"`
	}
	if err := json.Unmarshal(raw[8:8+size], &header); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	out, body := Tensors{}, raw[8+size:]
	for name, h := range header {
		if name == "__metadata__" {
			continue
		}
		read, width := decoder(h.DType)
		if read == nil {
			t.Fatalf("%s: %s: dtype %s", path, name, h.DType)
		}
		bytes := body[h.Offsets[0]:h.Offsets[1]]
		data := make([]float64, len(bytes)/width)
		for i := range data {
			data[i] = read(bytes[i*width:])
		}
		out[name] = Tensor{Shape: h.Shape, Data: data}
	}
	return out
}

func decoder(dtype string) (read func([]byte) float64, width int) {
	le := binary.LittleEndian
	switch dtype {
	case "F64":
		return func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }, 8
	case "F32":
		return func(b []byte) float64 { return float64(math.Float32frombits(le.Uint32(b))) }, 4
	case "BF16":
		return func(b []byte) float64 { return float64(math.Float32frombits(uint32(le.Uint16(b)) << 16)) }, 2
	case "I64":
		return func(b []byte) float64 { return float64(int64(le.Uint64(b))) }, 8
	case "I32":
		return func(b []byte) float64 { return float64(int32(le.Uint32(b))) }, 4
	case "U8", "BOOL":
		return func(b []byte) float64 { return float64(b[0]) }, 1
	}
	return nil, 0
}
