package measure

import (
	"math"
	"slices"
)

// Quantiles summarises samples, with linear interpolation between order statistics, as numpy does by default.
type Quantiles struct {
	Median float64 `json:"median"`
	P20    float64 `json:"p20"`
	P80    float64 `json:"p80"`
}

func quantiles(samples []float64) Quantiles {
	s := slices.Sorted(slices.Values(samples))
	at := func(q float64) float64 {
		x := q * float64(len(s)-1)
		i := int(x)
		return s[i] + (x-math.Floor(x))*(s[min(i+1, len(s)-1)]-s[i])
	}
	return Quantiles{Median: at(0.5), P20: at(0.2), P80: at(0.8)}
}
