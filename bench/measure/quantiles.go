package measure

import (
	"math"
	"slices"
)

// Quantiles summarises samples.
type Quantiles struct {
	Median float64 `json:"median"`
	P20    float64 `json:"p20"`
	P80    float64 `json:"p80"`
}

func quantiles(samples []float64) Quantiles {
	s := slices.Sorted(slices.Values(samples))
	return Quantiles{Median: quantileOfSorted(s, 0.5), P20: quantileOfSorted(s, 0.2), P80: quantileOfSorted(s, 0.8)}
}

// Quantile returns the q-quantile of samples, with linear interpolation between order statistics, as numpy does by default. It returns 0
// for an empty slice.
func Quantile(samples []float64, q float64) float64 {
	return quantileOfSorted(slices.Sorted(slices.Values(samples)), q)
}

// quantileOfSorted returns the q-quantile of samples that are sorted.
func quantileOfSorted(s []float64, q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	x := q * float64(len(s)-1)
	i := int(x)
	return s[i] + (x-math.Floor(x))*(s[min(i+1, len(s)-1)]-s[i])
}

// MaxError accumulates the error of an output: the largest difference over the largest expected value.
type MaxError struct{ difference, scale float64 }

// Add adds an element of the output. A NaN makes the error NaN.
func (e *MaxError) Add(got, want float64) {
	e.difference, e.scale = max(e.difference, math.Abs(got-want)), max(e.scale, math.Abs(want))
}

// Value returns the error. It is not divided if all expected values are 0.
func (e *MaxError) Value() float64 {
	if e.scale == 0 {
		return e.difference
	}
	return e.difference / e.scale
}
