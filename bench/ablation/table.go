package main

import (
	"fmt"
	"math"
	"strings"
)

// table is the results in Markdown: a row an arm, means over seeds with the sample standard deviation.
func table(r *Results, arms []arm) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| arm | seeds | steps | start | final T=1 | final greedy | 1/2/3 hops (T=1) | calls | researcher expert | T=1 at 100 k / 200 k tokens | final, paired with %s |\n", arms[0].name)
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, a := range arms {
		c := columnsOf(r, a, arms[0])
		if len(c.final) == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.2f | %s | %.2f | %s | %.1f -> %.1f | %s | %s / %s | %s |\n", a.title, len(c.final),
			mean(c.steps), mean(c.start), spread(c.final), mean(c.greedy), hops(c.hops), mean(c.callsStart), mean(c.callsEnd),
			expert(c), share(c.at100k), share(c.at200k), difference(a, arms[0], c.paired))
	}
	return b.String()
}

// columns are an arm's numbers, one a seed.
type columns struct {
	steps, start, final, greedy, callsStart, callsEnd, expertStart, expertEnd, at100k, at200k, paired []float64
	hops                                                                                              [][]float64 // [hops-1][seed]
}

func columnsOf(r *Results, a, first arm) (c columns) {
	for _, x := range r.Runs {
		if x.Arm != a.name {
			continue
		}
		c.steps = append(c.steps, float64(x.Steps))
		c.final = append(c.final, x.Final.Accuracy)
		c.greedy = append(c.greedy, x.Final.Greedy)
		c.callsEnd = append(c.callsEnd, x.Final.Calls)
		if s := r.start(a.start, x.Seed); s != nil {
			c.start = append(c.start, s.Outcome.Accuracy)
			c.callsStart = append(c.callsStart, s.Outcome.Calls)
			c.expertStart = known(c.expertStart, s.Outcome.Expert)
		}
		c.expertEnd = known(c.expertEnd, x.Final.Expert)
		for i, v := range x.Final.Hops {
			if i == len(c.hops) {
				c.hops = append(c.hops, nil)
			}
			c.hops[i] = append(c.hops[i], v)
		}
		if v, ok := at(x.Curve, 100e3); ok {
			c.at100k = append(c.at100k, v)
		}
		if v, ok := at(x.Curve, 200e3); ok {
			c.at200k = append(c.at200k, v)
		}
		if base := r.run(first.name, x.Seed); base != nil {
			c.paired = append(c.paired, x.Final.Accuracy-base.Final.Accuracy)
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

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// deviation is the sample standard deviation.
func deviation(v []float64) float64 {
	m, squares := mean(v), 0.0
	for _, x := range v {
		squares += (x - m) * (x - m)
	}
	return math.Sqrt(squares / float64(len(v)-1))
}

func spread(v []float64) string {
	if len(v) == 0 {
		return "-"
	}
	if len(v) == 1 {
		return fmt.Sprintf("%.3f", v[0])
	}
	return fmt.Sprintf("%.3f +- %.3f", mean(v), deviation(v))
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

func difference(a, first arm, v []float64) string {
	if a.name == first.name || len(v) == 0 {
		return "-"
	}
	sign := ""
	if mean(v) >= 0 {
		sign = "+"
	}
	return sign + spread(v)
}
