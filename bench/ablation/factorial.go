package main

import (
	"fmt"
	"strings"
)

// factorial returns the effects in the 2 x 2 of staleness (0 or 4 versions) and alignment (duplicate/drop or none), over the seeds that have
// all four arms: each effect is a mean over both values of the other factor. It returns "" for fewer than two such seeds.
func factorial(r *Results) string {
	var final, curve [][4]float64 // by seed: fresh and aligned, fresh, stale and aligned, stale
	for seed := range 1 + lastSeed(r) {
		var ends, means [4]float64
		complete := true
		for i, name := range []string{"lag-0", "lag-0-none", "lag-4", "lag-4-none"} {
			x := r.run(name, seed)
			if complete = complete && x != nil; complete {
				ends[i], means[i] = x.Final.Accuracy, average(x.Curve)
			}
		}
		if complete {
			final, curve = append(final, ends), append(curve, means)
		}
	}
	if len(final) < 2 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n| effect, %d seeds | over the run [95 %%] | final [95 %%] |\n|---|---|---|\n", len(final))
	for _, e := range []struct {
		name string
		of   func(cell [4]float64) float64
	}{
		{"four versions stale", func(c [4]float64) float64 { return (c[2] + c[3] - c[0] - c[1]) / 2 }},
		{"no alignment", func(c [4]float64) float64 { return (c[1] + c[3] - c[0] - c[2]) / 2 }},
		{"no alignment when stale, minus no alignment when not", func(c [4]float64) float64 { return c[3] - c[2] - (c[1] - c[0]) }},
	} {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", e.name, interval(each(curve, e.of)), interval(each(final, e.of)))
	}
	return b.String()
}

func lastSeed(r *Results) (last int) {
	for _, x := range r.Runs {
		last = max(last, x.Seed)
	}
	return last
}

func each(cells [][4]float64, of func([4]float64) float64) (values []float64) {
	for _, c := range cells {
		values = append(values, of(c))
	}
	return values
}
