package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// figure is a number of a finished run; ok is false if the run does not have it.
type figure struct {
	value  float64
	spread float64 // half the error bar; 0: unknown
	ok     bool
}

// numberRow is a row of the table of numbers.
type numberRow struct {
	label  string
	format func(float64) string
	of     func(*run) figure
}

func decimals(n int) func(float64) string {
	return func(v float64) string { return fmt.Sprintf("%.*f", n, v) }
}

// numbers returns the table that compares the runs' results: rows are numbers, columns are runs.
func (c namedRuns) numbers() table {
	t := table{Head: append([]string{""}, c.names...)}
	rows := teamRows
	for _, agent := range c.agents() {
		rows = append(rows[:len(rows):len(rows)], agentRows(agent)...)
	}
	for _, row := range rows {
		cells, any := []string{row.label}, false
		var first figure
		for i, r := range c.runs {
			f := row.of(r)
			if i == 0 {
				first = f
			}
			any = any || f.ok
			cells = append(cells, row.cell(f, first, i > 0))
		}
		if any {
			t.Rows = append(t.Rows, cells)
		}
	}
	return t
}

// cell formats a number and, if difference is set, its difference from the first run's number.
func (row numberRow) cell(f, first figure, difference bool) string {
	if !f.ok {
		return "–"
	}
	text := row.format(f.value)
	if f.spread > 0 {
		text += " ± " + row.format(f.spread)
	}
	if difference && first.ok {
		d := row.format(math.Abs(f.value - first.value))
		switch {
		case d == row.format(0):
			text += " (=)"
		case f.value < first.value:
			text += " (−" + d + ")"
		default:
			text += " (+" + d + ")"
		}
	}
	return text
}

var teamRows = []numberRow{
	{"steps", decimals(0), func(r *run) figure { return figure{value: float64(r.lastStep()), ok: r.lastStep() > 0} }},
	{"held-out accuracy before step 1", decimals(3), func(r *run) figure {
		heldOut := comparableOf(r)
		if len(heldOut) == 0 || heldOut[0].x != 0 {
			return figure{}
		}
		return figure{heldOut[0].y, heldOut[0].spread, true}
	}},
	{"held-out accuracy, last", decimals(3), func(r *run) figure {
		heldOut := comparableOf(r)
		if len(heldOut) == 0 || lastUnknown(r) {
			return figure{}
		}
		return figure{heldOut[len(heldOut)-1].y, heldOut[len(heldOut)-1].spread, true}
	}},
	{"held-out accuracy, best", decimals(3), func(r *run) figure {
		heldOut := comparableOf(r)
		if len(heldOut) == 0 {
			return figure{}
		}
		best := slices.MaxFunc(heldOut, func(a, b point) int { return cmp.Compare(a.y, b.y) })
		return figure{best.y, best.spread, true}
	}},
	{"tokens sampled", number, func(r *run) figure { return r.sum(metrics.SampledTokens) }},
	{"tokens learned from", number, func(r *run) figure { return r.sum(metrics.TrainedTokens) }},
	{"wall time, first to last record", func(s float64) string { return time.Duration(s * float64(time.Second)).Round(time.Second).String() },
		func(r *run) figure {
			n := len(r.records)
			if n < 2 {
				return figure{}
			}
			return figure{value: r.records[n-1].Time.Sub(r.records[0].Time).Seconds(), ok: true}
		}},
}

// agentRows returns the rows of an agent's training.
func agentRows(agent string) []numberRow {
	var out []numberRow
	for _, v := range []struct {
		label, value string
		format       func(float64) string
	}{
		{"reward", metrics.RewardMean, decimals(3)},
		{"training accuracy", metrics.Accuracy, decimals(3)},
		{"expert score", metrics.ExpertMean, decimals(3)},
		{"valid format", metrics.FormatValid, decimals(3)},
		{"calls a rollout", metrics.CallsMean, decimals(2)},
		{"tokens a trajectory", metrics.TokensMean, decimals(1)},
		{"entropy", metrics.EntropyMean, decimals(3)},
		{"seconds to roll out a step", metrics.RolloutSeconds, decimals(2)},
	} {
		out = append(out, numberRow{agent + ": " + v.label, v.format, func(r *run) figure { return recentMean(r.series(metrics.KindStep, agent, v.value)) }})
	}
	return out
}

// recentMean returns the mean of the last tenth of the points.
func recentMean(points []point) figure {
	n := len(points)
	if n == 0 {
		return figure{}
	}
	last := points[n-(n+9)/10:]
	sum := 0.0
	for _, p := range last {
		sum += p.y
	}
	return figure{value: sum / float64(len(last)), ok: true}
}

// sum returns the sum of a value over all records.
func (r *run) sum(name string) figure {
	var f figure
	for _, l := range r.records {
		v, known := l.Values[name]
		f.value, f.ok = f.value+v, f.ok || known
	}
	return f
}
