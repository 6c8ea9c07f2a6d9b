package score

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// SpreadWithin returns the standard deviation within groups: the square root of the mean of their unbiased variances.
// Groups of one have no variance and are omitted; known is false if there are no other groups.
func SpreadWithin(groups map[string][]int) (std float64, known bool) {
	var variances []float64
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		values := groups[name]
		n, sum, squares := len(values), 0, 0
		for _, v := range values {
			sum += v
			squares += v * v
		}
		if n > 1 {
			variances = append(variances, float64(n*squares-sum*sum)/float64(n*(n-1)))
		}
	}
	return math.Sqrt(mean(variances)), len(variances) > 0
}

// Interval returns the interval that contains the mean in 95 % of resamples with replacement. It depends on the values,
// the seed and the name only.
func Interval(values []float64, seed uint64, name string) [2]float64 {
	const resamples = 2000
	rng := rand.New(rand.NewPCG(seed, task.Hash("bootstrap "+name)))
	means := make([]float64, resamples)
	for i := range means {
		var sum float64
		for range values {
			sum += values[rng.IntN(len(values))]
		}
		means[i] = sum / float64(len(values))
	}
	slices.Sort(means)
	return [2]float64{means[resamples*25/1000], means[resamples*975/1000-1]}
}

// mean returns the average; NaN if there is no value.
func mean(values []float64) float64 {
	var sum float64
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// PassAtK returns the unbiased estimate of the probability that at least one of k samples of a query is right, averaged
// over queries (Chen et al. 2021). Each query has n samples; right[c] is the number of queries with c right ones, and
// 1 <= k <= n. Without queries it returns NaN.
func PassAtK(right map[int]int64, n, k int) float64 {
	var sum float64
	var queries int64
	for c := range n + 1 { // in a fixed order, since sums of floats depend on it
		missed := 1.0 // C(n-c, k) / C(n, k)
		for i := n - c + 1; i <= n; i++ {
			missed *= max(1-float64(k)/float64(i), 0)
		}
		sum += float64(right[c]) * (1 - missed)
		queries += right[c]
	}
	return sum / float64(queries)
}

// Mean accumulates an average. The zero value is empty.
type Mean struct {
	sum float64
	n   int
}

// Add adds a value.
func (m *Mean) Add(v float64) { m.sum += v; m.n++ }

// AddBool adds 1 for true and 0 for false.
func (m *Mean) AddBool(b bool) { m.Add(Indicator(b)) }

// Sum returns the sum of the values.
func (m *Mean) Sum() float64 { return m.sum }

// Value returns the average; NaN if there is no value.
func (m *Mean) Value() float64 { return m.sum / float64(m.n) }

// Into sets values[name] to the average, unless there is no value.
func (m *Mean) Into(values map[string]float64, name string) {
	if m.n > 0 {
		values[name] = m.Value()
	}
}

// Spread returns the standard deviation of averages, without those that have no value. known is false for fewer than two averages.
func Spread(averages []Mean) (std float64, known bool) {
	var all Mean
	for _, one := range averages {
		if one.n > 0 {
			all.Add(one.Value())
		}
	}
	squares := 0.0
	for _, one := range averages {
		if one.n > 0 {
			squares += (one.Value() - all.Value()) * (one.Value() - all.Value())
		}
	}
	return math.Sqrt(squares / float64(all.n-1)), all.n > 1
}

// Indicator returns 1 for true and 0 for false.
func Indicator(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
