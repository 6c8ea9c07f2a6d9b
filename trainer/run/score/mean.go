package score

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Mean accumulates an average. The zero value is empty.
type Mean struct {
	Sum float64
	N   int
}

// Add adds a value.
func (m *Mean) Add(v float64) { m.Sum += v; m.N++ }

// AddBool adds 1 for true and 0 for false.
func (m *Mean) AddBool(b bool) { m.Add(Indicator(b)) }

// Value returns the average; NaN if there is no value.
func (m *Mean) Value() float64 { return m.Sum / float64(m.N) }

// Into sets values[name] to the average, unless there is no value.
func (m *Mean) Into(values map[string]float64, name string) {
	if m.N > 0 {
		values[name] = m.Value()
	}
}

// Indicator returns 1 for true and 0 for false.
func Indicator(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// SpreadWithin returns the standard deviation within groups: the square root of the mean of their unbiased variances.
// Groups of one have no variance and are omitted; known is false if there are no other groups.
func SpreadWithin(groups map[string][]int) (std float64, known bool) {
	var variance Mean
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		values := groups[name]
		n, sum, squares := len(values), 0, 0
		for _, v := range values {
			sum += v
			squares += v * v
		}
		if n > 1 {
			variance.Add(float64(n*squares-sum*sum) / float64(n*(n-1)))
		}
	}
	return math.Sqrt(variance.Value()), variance.N > 0
}

// bootstrap returns the interval that contains the mean in 95 % of resamples with replacement. It depends on the values,
// the seed and the name only.
func bootstrap(values []float64, seed uint64, name string) [2]float64 {
	const resamples = 2000
	rng := rand.New(rand.NewPCG(seed, task.Hash("bootstrap "+name)))
	means := make([]float64, resamples)
	for i := range means {
		var m Mean
		for range values {
			m.Add(values[rng.IntN(len(values))])
		}
		means[i] = m.Value()
	}
	slices.Sort(means)
	return [2]float64{means[resamples*25/1000], means[resamples*975/1000-1]}
}
