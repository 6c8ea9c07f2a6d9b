package kernels

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// number is a golden JSON number: a double, or one of the strings NaN, Infinity, -Infinity.
type number float64

func (n *number) UnmarshalJSON(b []byte) error {
	text := string(b)
	if b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	*n = number(f)
	return err
}

// float is what tests are run over: the float64 and the float32 instantiation of a kernel.
type float interface{ float32 | float64 }

func dtypeOf[T float]() DType {
	if _, ok := any(T(0)).(float32); ok {
		return Float32
	}
	return Float64
}

func convert[T, F ~float32 | ~float64](in []F) []T {
	if in == nil {
		return nil
	}
	out := make([]T, len(in))
	for i, v := range in {
		out[i] = T(v)
	}
	return out
}

// tolerances of one instantiation, from the goldens' README.
type tolerances struct {
	name                        string
	loss, gradient, long        float64
	rowValue, rowGradient, head float64
	advantage, groupMean        float64
}

var (
	inFloat64 = tolerances{name: "float64", loss: 1e-12, gradient: 1e-12, long: 1e-11, rowValue: 1e-12, rowGradient: 1e-12,
		head: 1e-11, advantage: 1e-9, groupMean: 1e-12}
	inFloat32 = tolerances{name: "float32", loss: 2e-5, gradient: 2e-5, long: 5e-5, rowValue: 2e-6, rowGradient: 2e-6,
		head: 2e-5, advantage: 1e-5, groupMean: 1e-6}
)

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

// near checks the goldens' err: the difference relative to the larger of 1 and the expected value.
func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if got == want {
		return
	}
	if err := math.Abs(got-want) / max(1, math.Abs(want)); !(err <= tolerance) {
		t.Errorf("%s: got %v, want %v (error %.2g > %.2g)", what, got, want, err, tolerance)
	}
}

// nearAll checks the goldens' gerr: the largest difference relative to the largest expected value.
func nearAll[T float, F ~float64](t *testing.T, what string, got []T, want []F, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	worst, scale, at := 0.0, 0.0, 0
	for i := range want {
		scale = max(scale, math.Abs(float64(want[i])))
		if d := math.Abs(float64(got[i]) - float64(want[i])); d > worst || math.IsNaN(d) {
			worst, at = d, i
		}
	}
	if !(worst <= tolerance*scale) {
		t.Errorf("%s: element %d is %v, want %v (error %.2g of %.2g)", what, at, got[at], want[at], worst, scale)
	}
}
