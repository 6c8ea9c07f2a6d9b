package main

import (
	"fmt"
	"strings"
)

// cells holds one seed's values in the 2 x 2 of staleness (0 or up to 4 versions) and alignment (duplicate/drop or none).
type cells struct{ fresh, freshUnaligned, stale, staleUnaligned float64 }

// factorial returns the effects of the two factors and their interaction, over the seeds that have all four arms. The effect of a factor is
// the mean over both values of the other. The interaction is the effect of no alignment among stale arms minus that among fresh arms.
// factorial returns "" for fewer than two such seeds.
func factorial(r *Results) string {
	var final, curve []cells // by seed
	for _, fresh := range r.Runs {
		freshUnaligned, stale, staleUnaligned := r.run("lag-0-none", fresh.Seed), r.run("lag-4", fresh.Seed), r.run("lag-4-none", fresh.Seed)
		if fresh.Arm != "lag-0" || freshUnaligned == nil || stale == nil || staleUnaligned == nil {
			continue
		}
		final = append(final, cells{fresh.Final.Accuracy, freshUnaligned.Final.Accuracy, stale.Final.Accuracy, staleUnaligned.Final.Accuracy})
		curve = append(curve, cells{average(fresh.Curve), average(freshUnaligned.Curve), average(stale.Curve), average(staleUnaligned.Curve)})
	}
	if len(final) < 2 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n| effect, %d seeds | over the run [95 %%] | final [95 %%] |\n|---|---|---|\n", len(final))
	for _, e := range []struct {
		name string
		of   func(cells) float64
	}{
		{"four versions stale, mean over both alignments", func(c cells) float64 { return (c.stale + c.staleUnaligned - c.fresh - c.freshUnaligned) / 2 }},
		{"no alignment, mean over both ages", func(c cells) float64 { return (c.freshUnaligned + c.staleUnaligned - c.fresh - c.stale) / 2 }},
		{"interaction: no alignment when stale minus when not", func(c cells) float64 { return c.staleUnaligned - c.stale - (c.freshUnaligned - c.fresh) }},
	} {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", e.name, interval(each(curve, e.of)), interval(each(final, e.of)))
	}
	return b.String()
}

func each(seeds []cells, of func(cells) float64) (values []float64) {
	for _, c := range seeds {
		values = append(values, of(c))
	}
	return values
}
