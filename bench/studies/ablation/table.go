package main

import (
	"fmt"
	"math"
	"strings"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// table returns the results in Markdown: one row for each arm, with means and sample standard deviations over the seeds.
func table(r *Results, arms []arm) string {
	var b strings.Builder
	b.WriteString("| arm | seeds | steps | k tokens | start | over the run | final T=1 | final greedy | " +
		"1, 2, ... hops or parts (T=1) | calls, s.d. within a question | researcher expert | over the run, difference [95 %] | final, difference [95 %] |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, a := range arms {
		c := columnsOf(r, a)
		if len(c.final) == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %.2f | %.3f | %s | %.2f | %s | %.1f, %.1f -> %.1f, %.1f | %s | %s | %s |\n", a.title, len(c.final),
			mean(c.steps), mean(c.tokens)/1000, mean(c.start), mean(c.average), spread(c.final), mean(c.greedy), hops(c.hops),
			mean(c.callsStart), mean(c.withinStart), mean(c.callsEnd), mean(c.withinEnd), expert(c),
			difference(a, c.pairedAverage), difference(a, c.pairedFinal))
	}
	return b.String() + factorial(r) + declineTable(r, arms)
}

// columns holds an arm's numbers, one for each seed.
type columns struct {
	steps, tokens, start, average, final, greedy                         []float64
	callsStart, withinStart, callsEnd, withinEnd, expertStart, expertEnd []float64
	pairedAverage, pairedFinal                                           []float64

	hops [][]float64 // [hops-1][seed]
}

func columnsOf(r *Results, a arm) (c columns) {
	for _, x := range r.Runs {
		if x.Arm != a.name {
			continue
		}
		c.steps = append(c.steps, float64(x.Steps))
		c.tokens, c.average = append(c.tokens, x.Tokens), append(c.average, average(x.Curve))
		c.final = append(c.final, x.Final.Accuracy)
		c.greedy = append(c.greedy, x.Final.Greedy)
		c.callsEnd, c.withinEnd = append(c.callsEnd, x.Final.Calls.Mean), append(c.withinEnd, x.Final.Calls.Deviation)
		if s := r.start(a.start, x.Seed); s != nil {
			c.start = append(c.start, s.Outcome.Accuracy)
			c.callsStart, c.withinStart = append(c.callsStart, s.Outcome.Calls.Mean), append(c.withinStart, s.Outcome.Calls.Deviation)
			c.expertStart = known(c.expertStart, s.Outcome.Expert)
		}
		c.expertEnd = known(c.expertEnd, x.Final.Expert)
		for i, v := range x.Final.Hops {
			if i == len(c.hops) {
				c.hops = append(c.hops, nil)
			}
			c.hops[i] = append(c.hops[i], v)
		}
		if base := r.run(a.base(), x.Seed); base != nil && a.name != base.Arm {
			c.pairedAverage = append(c.pairedAverage, average(x.Curve)-average(base.Curve))
			c.pairedFinal = append(c.pairedFinal, x.Final.Accuracy-base.Final.Accuracy)
		}
	}
	return c
}

func known(values []float64, v *float64) []float64 {
	if v == nil {
		return values
	}
	return append(values, *v)
}

func mean(v []float64) float64 { return stat.Mean(v, nil) }

// spread returns the mean of at least one value with the sample standard deviation.
func spread(v []float64) string {
	if len(v) == 1 {
		return fmt.Sprintf("%.3f", v[0])
	}
	return fmt.Sprintf("%.3f +- %.3f", mean(v), stat.StdDev(v, nil))
}

func share(v []float64) string {
	if len(v) == 0 {
		return "-"
	}
	return strings.TrimPrefix(fmt.Sprintf("%.2f", mean(v)), "0")
}

func hops(h [][]float64) string {
	parts := make([]string, len(h))
	for i, v := range h {
		parts[i] = share(v)
	}
	return strings.Join(parts, " ")
}

func expert(c columns) string {
	if len(c.expertEnd) == 0 {
		return "-"
	}
	return share(c.expertStart) + " -> " + share(c.expertEnd)
}

// difference returns the mean difference between an arm and the arm for comparison, with its interval. Each difference is between two
// runs with the same seed, cold start and held-out questions.
func difference(a arm, paired []float64) string {
	switch len(paired) {
	case 0:
		return "-"
	case 1:
		return fmt.Sprintf("%+.3f to %s", paired[0], a.base())
	}
	return interval(paired) + " to " + a.base()
}

// interval returns the mean of at least two values with its 95 % interval.
func interval(values []float64) string {
	half := halfWidth(values)
	return fmt.Sprintf("%+.3f [%+.3f, %+.3f]", mean(values), mean(values)-half, mean(values)+half)
}

// halfWidth returns half the width of the 95 % interval of a mean, by Student's t. There are few seeds, and the interval must hold for
// other seeds, not only for other questions.
func halfWidth(values []float64) float64 {
	n := float64(len(values))
	t := distuv.StudentsT{Sigma: 1, Nu: n - 1}
	return t.Quantile(0.975) * stat.StdDev(values, nil) / math.Sqrt(n)
}

// twoByTwo holds one seed's values in the 2 x 2 of staleness (0 or up to 4 versions) and alignment (duplicate/drop or none).
type twoByTwo struct{ fresh, freshUnaligned, stale, staleUnaligned float64 }

// factorial returns the effects of the two factors and their interaction, over the seeds that have all four arms. The effect of a factor is
// the mean over both values of the other. The interaction is the effect of no alignment among stale arms minus that among fresh arms.
// factorial returns "" for fewer than two such seeds.
func factorial(r *Results) string {
	var final, curve []twoByTwo // by seed
	for _, fresh := range r.Runs {
		freshUnaligned, stale, staleUnaligned := r.run("lag-0-none", fresh.Seed), r.run("lag-4", fresh.Seed), r.run("lag-4-none", fresh.Seed)
		if fresh.Arm != "lag-0" || freshUnaligned == nil || stale == nil || staleUnaligned == nil {
			continue
		}
		final = append(final, twoByTwo{fresh.Final.Accuracy, freshUnaligned.Final.Accuracy, stale.Final.Accuracy, staleUnaligned.Final.Accuracy})
		curve = append(curve, twoByTwo{average(fresh.Curve), average(freshUnaligned.Curve), average(stale.Curve), average(staleUnaligned.Curve)})
	}
	if len(final) < 2 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n| effect, %d seeds | over the run [95 %%] | final [95 %%] |\n|---|---|---|\n", len(final))
	for _, e := range []struct {
		name string
		of   func(twoByTwo) float64
	}{
		{"four versions stale, mean over both alignments", func(c twoByTwo) float64 { return (c.stale + c.staleUnaligned - c.fresh - c.freshUnaligned) / 2 }},
		{"no alignment, mean over both ages", func(c twoByTwo) float64 { return (c.freshUnaligned + c.staleUnaligned - c.fresh - c.stale) / 2 }},
		{"interaction: no alignment when stale minus when not", func(c twoByTwo) float64 { return c.staleUnaligned - c.stale - (c.freshUnaligned - c.fresh) }},
	} {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", e.name, interval(each(curve, e.of)), interval(each(final, e.of)))
	}
	return b.String()
}

func each(seeds []twoByTwo, of func(twoByTwo) float64) (values []float64) {
	for _, c := range seeds {
		values = append(values, of(c))
	}
	return values
}

// declineTable returns a table that shows whether an arm's accuracy falls after it has learned. It has the accuracy in the middle third and
// in the last third of the tokens, the highest evaluation, and the end. The highest of many evaluations is above the true accuracy,
// because each is a sample of answers, so the thirds are the better test. declineTable returns "" if a run has too few evaluations.
func declineTable(r *Results, arms []arm) string {
	const fewest = 9
	var b strings.Builder
	b.WriteString("\n| arm | seeds | middle third | last third | last minus middle [95 %] | highest evaluation | end | highest minus end [95 %] |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	rows := 0
	for _, a := range arms {
		var middle, last, change, highest, end, fall []float64 // by seed
		for _, x := range r.Runs {
			if x.Arm != a.name {
				continue
			}
			if len(x.Curve) < fewest {
				return ""
			}
			final, top := x.Curve[len(x.Curve)-1], 0.0
			for _, p := range x.Curve {
				top = max(top, p.Accuracy)
			}
			m, l := averageBetween(x.Curve, final.Tokens/3, final.Tokens*2/3), averageBetween(x.Curve, final.Tokens*2/3, final.Tokens)
			middle, last, change = append(middle, m), append(last, l), append(change, l-m)
			highest, end, fall = append(highest, top), append(end, final.Accuracy), append(fall, top-final.Accuracy)
		}
		if len(change) < 2 {
			continue
		}
		rows++
		fmt.Fprintf(&b, "| %s | %d | %.3f | %.3f | %s | %.3f | %.3f | %s |\n", a.title, len(change), mean(middle), mean(last),
			interval(change), mean(highest), mean(end), interval(fall))
	}
	if rows == 0 {
		return ""
	}
	return b.String()
}
