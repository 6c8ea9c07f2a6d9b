package mgrpo

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"strconv"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// load reads a golden JSON file; its numbers may be spelt "NaN" or "Infinity" where the type is Number.
func load(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(golden.File(t, "mgrpo", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// array is one safetensors array, its values as float64.
type array []float64

func (a array) ints() []int {
	out := make([]int, len(a))
	for i, x := range a {
		out[i] = int(x)
	}
	return out
}

// loadArrays reads the F64, I64 and U8 arrays of a golden safetensors file.
func loadArrays(t *testing.T, name string) map[string]array {
	t.Helper()
	b, err := os.ReadFile(golden.File(t, "mgrpo", name))
	if err != nil {
		t.Fatal(err)
	}
	var header map[string]json.RawMessage
	size := binary.LittleEndian.Uint64(b)
	data := b[8+size:]
	if err := json.Unmarshal(b[8:8+size], &header); err != nil {
		t.Fatal(err)
	}
	arrays := map[string]array{}
	for name, raw := range header {
		var h struct {
			DType   string `json:"dtype"`
			Offsets [2]int `json:"data_offsets"`
		}
		if name == "__metadata__" {
			continue
		}
		if err := json.Unmarshal(raw, &h); err != nil {
			t.Fatal(err)
		}
		arrays[name] = decodeArray(t, h.DType, data[h.Offsets[0]:h.Offsets[1]])
	}
	return arrays
}

func decodeArray(t *testing.T, dtype string, b []byte) (a array) {
	t.Helper()
	switch dtype {
	case "F64":
		for ; len(b) > 0; b = b[8:] {
			a = append(a, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		}
	case "I64":
		for ; len(b) > 0; b = b[8:] {
			a = append(a, float64(int64(binary.LittleEndian.Uint64(b))))
		}
	case "U8":
		for _, x := range b {
			a = append(a, float64(x))
		}
	default:
		t.Fatalf("safetensors dtype %s", dtype)
	}
	return a
}

// near is the goldens' err: the difference relative to the larger of 1 and the expected value.
func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if err := math.Abs(got-want) / max(1, math.Abs(want)); !(err <= tolerance) {
		t.Errorf("%s: got %v, want %v (error %.2g > %.2g)", what, got, want, err, tolerance)
	}
}

// nearAll is the goldens' gerr: the largest difference relative to the largest expected value.
func nearAll(t *testing.T, what string, got, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	worst, scale, at := 0.0, 0.0, 0
	for i := range want {
		scale = max(scale, math.Abs(want[i]))
		if d := math.Abs(got[i] - want[i]); d > worst || math.IsNaN(d) {
			worst, at = d, i
		}
	}
	if !(worst <= tolerance*scale) {
		t.Errorf("%s: element %d is %v, want %v (error %.2g of %.2g)", what, at, got[at], want[at], worst, scale)
	}
}

// sameRefusal compares an error with an expected error object, all fields but the message.
func sameRefusal(t *testing.T, what string, err error, want Refusal) {
	t.Helper()
	got, ok := err.(*Refusal)
	if !ok {
		t.Errorf("%s: got error %v, want %v", what, err, want.Error())
		return
	}
	bare := *got
	bare.Message = ""
	if !reflect.DeepEqual(bare, want) {
		t.Errorf("%s: got %v, want %v", what, got, want.Error())
	}
}

func parseSeed(t *testing.T, s string) uint64 {
	t.Helper()
	x, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

type words []uint32

func (w *words) UnmarshalJSON(b []byte) error {
	var hex []string
	if err := json.Unmarshal(b, &hex); err != nil {
		return err
	}
	*w = nil
	for _, h := range hex {
		x, err := strconv.ParseUint(h, 16, 32)
		if err != nil {
			return err
		}
		*w = append(*w, uint32(x))
	}
	return nil
}

func (w words) key() [2]uint32 { return [2]uint32(w) }
