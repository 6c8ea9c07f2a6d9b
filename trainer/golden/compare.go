package golden

import (
	"encoding/json"
	"math"
	"os"
	"reflect"
	"testing"
)

// Read decodes a golden JSON file.
func Read(t testing.TB, kind, name string, into any) {
	t.Helper()
	ReadJSON(t, File(t, kind, name), into)
}

// ReadJSON decodes a JSON file.
func ReadJSON(t testing.TB, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// Near checks the goldens' err: the difference relative to the larger of 1 and the expected value.
func Near(t testing.TB, what string, got, want, tolerance float64) {
	t.Helper()
	if got == want {
		return
	}
	if err := math.Abs(got-want) / max(1, math.Abs(want)); !(err <= tolerance) {
		t.Errorf("%s: got %v, want %v (error %.2g > %.2g)", what, got, want, err, tolerance)
	}
}

// NearAll checks the goldens' gerr: the largest difference relative to the largest expected value.
func NearAll[T, F ~float32 | ~float64](t testing.TB, what string, got []T, want []F, tolerance float64) {
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

// SameError checks that an error encodes to the expected JSON object, apart from its message.
func SameError(t testing.TB, what string, got error, want any) {
	t.Helper()
	g, w := object(t, got), object(t, want)
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s: got error %v, want %v", what, got, w)
	}
}

func object(t testing.TB, v any) map[string]any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, "message")
	return fields
}
