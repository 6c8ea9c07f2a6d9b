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
	return Quantiles{Median: Quantile(samples, 0.5), P20: Quantile(samples, 0.2), P80: Quantile(samples, 0.8)}
}

// Quantile returns the q-quantile of samples, with linear interpolation between order statistics, as numpy does by default. It returns 0
// if there are no samples.
func Quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(samples))
	x := q * float64(len(s)-1)
	i := int(x)
	return s[i] + (x-math.Floor(x))*(s[min(i+1, len(s)-1)]-s[i])
}
