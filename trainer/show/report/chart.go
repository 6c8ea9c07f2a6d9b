package report

import (
	"encoding/json"
	"fmt"
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// point is a point of a curve. x is a step.
type point struct {
	x, y   float64
	spread float64 // half the error bar of y; 0: unknown
}

// MarshalJSON writes [x, y] or [x, y, spread] with four significant digits, for the pointer's read-out.
func (p point) MarshalJSON() ([]byte, error) {
	if p.spread > 0 {
		return fmt.Appendf(nil, "[%g,%.4g,%.4g]", p.x, p.y, p.spread), nil
	}
	return fmt.Appendf(nil, "[%g,%.4g]", p.x, p.y), nil
}

// curve is one line of a chart.
type curve struct {
	Name   string
	Class  string // c0 … c7: the agent's colour
	Style  string // "", "dashed" or "dotted"
	Dots   bool   // mark every point, for curves with few points
	points []point
}

// chart is a card with curves over the steps of the run.
type chart struct {
	Title  string
	Note   string // subtitle
	Curves []curve
	free   bool // the axis starts at the data, otherwise at 0 or lower
	share  bool // the axis ends at 1 or higher, otherwise at the data
}

// Size of a chart in SVG units; it is scaled to its card.
const (
	chartWidth, chartHeight               = 400.0, 190.0
	chartLeft, chartRight, chartTop, base = 46.0, 10.0, 8.0, 168.0
)

const maxPoints = 400 // points of a curve

// drawn returns the curves with points.
func (c chart) drawn() []curve {
	var out []curve
	for _, v := range c.Curves {
		if len(v.points) > 0 {
			out = append(out, v)
		}
	}
	return out
}

// svg draws the chart over steps from..to.
func (c chart) svg(from, to float64) template.HTML {
	low, high := math.Inf(1), math.Inf(-1)
	if !c.free {
		low = 0
	}
	if c.share {
		high = 1
	}
	for _, v := range c.Curves {
		for _, p := range v.points {
			low, high = min(low, p.y-p.spread), max(high, p.y+p.spread)
		}
	}
	ticks := niceTicks(low, high)
	low, high = math.Min(low, ticks[0]), math.Max(high, ticks[len(ticks)-1])
	x, y := scale(from, to, chartLeft, chartWidth-chartRight), scale(low, high, base, chartTop)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="chart" viewBox="0 0 %g %g" role="img" aria-label="%s" tabindex="0" `+
		`data-x="%g %g %g %g" data-y="%g %g %g %g" data-curves="%s">`,
		chartWidth, chartHeight, html.EscapeString(c.description()), from, to, chartLeft, chartWidth-chartRight, low, high, base, chartTop, c.data())
	for _, t := range ticks {
		fmt.Fprintf(&b, `<path class="grid" d="M%g %.1fH%g"/><text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`,
			chartLeft, y(t), chartWidth-chartRight, chartLeft-6, y(t)+3.5, number(t))
	}
	drawSteps(&b, from, to, x)
	for _, v := range c.drawn() {
		v.draw(&b, x, y)
	}
	b.WriteString(`<path class="hair" d=""/></svg>`)
	return template.HTML(b.String())
}

// drawSteps draws the axis of steps.
func drawSteps(b *strings.Builder, from, to float64, x func(float64) float64) {
	for _, t := range niceTicks(from, to) {
		if t == math.Trunc(t) && t >= from && t <= to {
			fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%g" text-anchor="middle">%g</text>`, x(t), base+15, t)
		}
	}
	fmt.Fprintf(b, `<path class="axis" d="M%g %gH%g"/>`, chartLeft, base, chartWidth-chartRight)
}

// draw draws a curve with many points as a smoothed line over a faint line of the points, and a curve with Dots with its
// points and error bars.
func (c curve) draw(b *strings.Builder, x, y func(float64) float64) {
	points := thin(c.points)
	class := strings.TrimSpace("line " + c.Class + " " + c.Style)
	if !c.Dots && len(points) >= fewestToSmooth {
		drawLine(b, class+" raw", points, x, y)
		drawLine(b, class+" smooth", smooth(points), x, y)
		return
	}
	drawLine(b, class, points, x, y)
	if c.Dots || len(points) == 1 {
		for _, p := range points {
			if p.spread > 0 {
				fmt.Fprintf(b, `<path class="spread %s" d="M%.1f %.1fV%.1f"/>`, c.Class, x(p.x), y(p.y-p.spread), y(p.y+p.spread))
			}
			fmt.Fprintf(b, `<circle class="dot %s" cx="%.1f" cy="%.1f" r="3.2"/>`, c.Class, x(p.x), y(p.y))
		}
	}
}

func drawLine(b *strings.Builder, class string, points []point, x, y func(float64) float64) {
	b.WriteString(`<path class="` + class + `" d="`)
	for i, p := range points {
		fmt.Fprintf(b, "%c%.1f %.1f", "ML"[min(i, 1)], x(p.x), y(p.y))
	}
	b.WriteString(`"/>`)
}

const fewestToSmooth = 20 // points; shorter curves are not smoothed

// smooth averages each point with its neighbours: a twentieth of the curve on either side, less at the ends.
func smooth(points []point) []point {
	n := len(points)
	out := make([]point, n)
	for i, p := range points {
		reach := min(max(n/20, 1), i, n-1-i)
		sum := 0.0
		for _, near := range points[i-reach : i+reach+1] {
			sum += near.y
		}
		out[i] = point{x: p.x, y: sum / float64(2*reach+1)}
	}
	return out
}

// data returns the curves as JSON for the pointer's read-out: name, class and points.
func (c chart) data() string {
	type one struct {
		Name   string  `json:"n"`
		Class  string  `json:"c"`
		Points []point `json:"p"`
	}
	var out []one
	for _, v := range c.drawn() {
		out = append(out, one{v.Name, v.Class, thin(v.points)})
	}
	text, _ := json.Marshal(out) // finite numbers and strings: cannot fail
	return html.EscapeString(string(text))
}

// description describes the chart in words, for screen readers.
func (c chart) description() string {
	parts := []string{c.Title}
	for _, v := range c.drawn() {
		first, last := v.points[0], v.points[len(v.points)-1]
		parts = append(parts, fmt.Sprintf("%s from %s at step %g to %s at step %g", v.Name, number(first.y), first.x, number(last.y), last.x))
	}
	return strings.Join(parts, "; ")
}

// thin averages neighbours until a curve has at most maxPoints.
func thin(points []point) []point {
	n := (len(points) + maxPoints - 1) / maxPoints
	if n <= 1 {
		return points
	}
	var out []point
	for i := 0; i < len(points); i += n {
		part := points[i:min(i+n, len(points))]
		var sum point
		for _, p := range part {
			sum.x, sum.y, sum.spread = sum.x+p.x, sum.y+p.y, sum.spread+p.spread
		}
		n := float64(len(part))
		out = append(out, point{math.Round(sum.x / n), sum.y / n, sum.spread / n})
	}
	return out
}

// scale maps lo..hi to a..b, or to the middle of a..b if lo..hi is empty.
func scale(lo, hi, a, b float64) func(float64) float64 {
	return func(v float64) float64 {
		if hi <= lo {
			return (a + b) / 2
		}
		return a + (v-lo)/(hi-lo)*(b-a)
	}
}

// niceTicks returns three to six round numbers that cover lo..hi.
func niceTicks(lo, hi float64) []float64 {
	if math.IsNaN(lo-hi) || math.IsInf(lo-hi, 0) {
		lo, hi = 0, 1
	}
	if hi <= lo {
		pad := math.Max(math.Abs(lo)*0.1, 1e-6)
		lo, hi = lo-pad, hi+pad
	}
	raw := (hi - lo) / 4
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	step := unit
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if step = m * unit; step >= raw {
			break
		}
	}
	var out []float64
	for i := math.Floor(lo/step + 1e-9); ; i++ {
		out = append(out, i*step)
		if i*step >= hi-step*1e-9 || len(out) > 20 {
			return out
		}
	}
}

// formatShort formats a number with three significant digits.
func formatShort(v float64) string {
	if size := math.Abs(v); size >= 1e-3 && size < 1e3 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return number(v)
}

// number formats a number for an axis: 0.05, 1.25, 12.5k, 3.4M, 2e-06.
func number(v float64) string {
	size := math.Abs(v)
	for _, unit := range []struct {
		above float64
		name  string
	}{{1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if size >= unit.above {
			if unit.name == "k" {
				unit.above = 1e3
			}
			return strconv.FormatFloat(v/unit.above, 'g', 3, 64) + unit.name
		}
	}
	switch {
	case size < 1e-12:
		return "0"
	case size < 1e-3:
		return strings.Replace(strconv.FormatFloat(v, 'g', 2, 64), "e-0", "e-", 1)
	}
	return strconv.FormatFloat(math.Round(v*1e4)/1e4, 'g', 4, 64)
}
