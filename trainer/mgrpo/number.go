package mgrpo

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Number is a float64 that JSON may also write as "NaN", "Infinity" or "-Infinity".
type Number float64

// UnmarshalJSON reads a number or one of the three strings.
func (n *Number) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case `"NaN"`:
		*n = Number(math.NaN())
	case `"Infinity"`:
		*n = Number(math.Inf(1))
	case `"-Infinity"`:
		*n = Number(math.Inf(-1))
	default:
		x, err := strconv.ParseFloat(string(b), 64)
		if err != nil {
			return fmt.Errorf("%.40s is not a number, \"NaN\", \"Infinity\" or \"-Infinity\"", b)
		}
		*n = Number(x)
	}
	return nil
}

// MarshalJSON writes the notation that UnmarshalJSON reads.
func (n Number) MarshalJSON() ([]byte, error) {
	switch x := float64(n); {
	case math.IsNaN(x):
		return []byte(`"NaN"`), nil
	case math.IsInf(x, 0):
		return fmt.Appendf(nil, "%q", map[bool]string{true: "Infinity", false: "-Infinity"}[x > 0]), nil
	default:
		return json.Marshal(x)
	}
}

// Floats converts numbers to float64. It returns nil for nil.
func Floats(numbers []Number) []float64 {
	if numbers == nil {
		return nil
	}
	out := make([]float64, len(numbers))
	for i, n := range numbers {
		out[i] = float64(n)
	}
	return out
}
