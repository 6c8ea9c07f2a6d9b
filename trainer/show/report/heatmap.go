package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// heatmap holds a histogram for each step: the share of each integer in the step.
type heatmap struct {
	Title string
	Note  string
	Class string
	steps []heatColumn
}

type heatColumn struct {
	step   float64
	counts map[int64]int64
}

const (
	maxColumns = 60 // with more steps, neighbouring steps share a column
	maxRows    = 13 // the last row adds up all larger integers
)

// callsOf returns the heatmap of an agent's d_k.
func (c charts) callsOf(agent string) heatmap {
	var h heatmap
	for _, l := range c.run.records {
		if l.Kind == metrics.KindStep && l.Agent == agent && len(l.Counts[metrics.Calls]) > 0 {
			_, counts := metrics.Integers(l.Counts[metrics.Calls])
			h.steps = append(h.steps, heatColumn{float64(l.Step), counts})
		}
	}
	return h
}

// svg draws the heatmap: columns are steps, rows are integers, darker cells have larger shares.
func (h heatmap) svg() template.HTML {
	columns := h.columns()
	rows := int64(1)
	for _, c := range columns {
		for k := range c.counts {
			rows = max(rows, k+1)
		}
	}
	rows = min(rows, maxRows)
	width, height := (chartWidth-chartLeft-chartRight)/float64(len(columns)), (base-chartTop)/float64(rows)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="heat %s" viewBox="0 0 %g %g" role="img" aria-label="%s">`, h.Class, chartWidth, chartHeight,
		html.EscapeString(h.Title+", "+h.Note))
	for i, c := range columns {
		shares := c.shares(rows)
		for k, share := range shares {
			if share == 0 {
				continue
			}
			sign := "="
			if k == maxRows-1 {
				sign = "≥"
			}
			fmt.Fprintf(&b, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" opacity="%.3f"><title>step %g: d %s %d in %.1f %% of rollouts</title></rect>`,
				chartLeft+float64(i)*width, base-float64(k+1)*height, max(width-1, 0.5), max(height-1, 0.5), 0.06+0.94*math.Sqrt(share), c.step,
				sign, k, 100*share)
		}
	}
	h.drawAxes(&b, columns, rows, width, height)
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

func (h heatmap) drawAxes(b *strings.Builder, columns []heatColumn, rows int64, width, height float64) {
	for k := range rows {
		if rows > 7 && k%2 == 1 {
			continue
		}
		label := fmt.Sprint(k)
		if k == maxRows-1 {
			label += "+"
		}
		fmt.Fprintf(b, `<text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`, chartLeft-6, base-(float64(k)+0.5)*height+3.5, label)
	}
	every := max(1, int(math.Ceil(float64(len(columns))/8)))
	for i := 0; i < len(columns); i += every {
		fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%g" text-anchor="middle">%g</text>`, chartLeft+(float64(i)+0.5)*width, base+15, columns[i].step)
	}
	fmt.Fprintf(b, `<path class="axis" d="M%g %gH%g"/>`, chartLeft, base, chartWidth-chartRight)
}

// columns merges neighbouring steps until there are at most maxColumns.
func (h heatmap) columns() []heatColumn {
	n := (len(h.steps) + maxColumns - 1) / maxColumns
	if n <= 1 {
		return h.steps
	}
	var out []heatColumn
	for i, s := range h.steps {
		if i%n == 0 {
			out = append(out, heatColumn{s.step, map[int64]int64{}})
		}
		for k, c := range s.counts {
			out[len(out)-1].counts[k] += c
		}
	}
	return out
}

// shares returns the share of each integer in a column; the last row adds up all larger integers.
func (c heatColumn) shares(rows int64) []float64 {
	out := make([]float64, rows)
	total := 0.0
	for k, n := range c.counts {
		if k >= 0 && n > 0 {
			out[min(k, rows-1)] += float64(n)
			total += float64(n)
		}
	}
	for k := range out {
		if total > 0 {
			out[k] /= total
		}
	}
	return out
}
