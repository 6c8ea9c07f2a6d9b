package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// Figures returns a machine's pictures. It leaves out pictures without numbers.
func (m *machine) Figures() (all []*figure) {
	for _, r := range m.Results {
		if r.Suite == "kernels" {
			all = append(all, roofline(r, "roofline-"+m.Slug+".svg"))
		}
	}
	for _, g := range []struct {
		file, title, row, shape, x, y string
		of                            func(p *measure.Result) float64
	}{
		{"groups", "Group advantages: time against the number of groups", "group_advantage", `rewards in (\d+) groups$`, "groups", "seconds", seconds},
		{"tokens", "Policy loss from logits, vocabulary 49,152: time against tokens", "policy_loss_from_logits", `^(\d+) x 49152$`, "tokens",
			"seconds", seconds},
		{"head", "Policy loss from hidden states, 576 x 49,152: time against tokens", "linear_policy_loss", `^(\d+) x 576 x 49152$`, "tokens",
			"seconds", seconds},
		{"memory", "Policy loss from hidden states, 576 x 49,152: memory in addition to inputs against tokens", "linear_policy_loss",
			`^(\d+) x 576 x 49152$`, "tokens", "bytes", extra},
	} {
		f := &figure{File: fmt.Sprintf("bench-%s-%s.svg", g.file, m.Slug), Title: g.title, xTitle: g.x, yTitle: g.y}
		f.grow(m.rows(), g.row, regexp.MustCompile(g.shape), g.of)
		if len(f.series) > 0 && len(f.series[0].points) > 1 {
			all = append(all, f)
		}
	}
	return all
}

func seconds(p *measure.Result) float64 { return p.Median }
func extra(p *measure.Result) float64   { return float64(p.PeakExtraBytes) }

// grow adds one number of each provider against the number in the rows' shape, for the rows with this name.
func (f *figure) grow(rows []measure.Row, name string, shape *regexp.Regexp, of func(*measure.Result) float64) {
	for _, row := range rows {
		number := shape.FindStringSubmatch(row.Shape)
		if row.Name != name || number == nil {
			continue
		}
		x, _ := strconv.ParseFloat(number[1], 64)
		for _, p := range row.Providers {
			if y := of(&p); p.Status == "ok" && y > 0 {
				f.add(p.Name, point{x: x, y: y})
			}
		}
	}
}

// add adds a point of a provider.
func (f *figure) add(provider string, p point) {
	i := slices.IndexFunc(f.series, func(s *series) bool { return s.name == provider })
	if i < 0 {
		i = len(f.series)
		f.series = append(f.series, &series{name: provider})
	}
	f.series[i].points = append(f.series[i].points, p)
}

// roofline returns a figure of operations a second against operations a byte, for each kernel with a cold cache at its largest size.
func roofline(r *measure.Results, file string) *figure {
	title, rows, copyRate, peak := fmt.Sprintf("Roofline of %s, bfloat16", r.Machine.GPU), r.Rows, r.Ceilings.Copy.Median, r.Ceilings.GEMMBF16.Median
	if r.Machine.GPU == "" { // rows in bf16 have a higher roof
		title, peak = fmt.Sprintf("Roofline of %s, %d threads, float32", r.Machine.CPU, r.Machine.Threads), r.Ceilings.GEMM.Median
		rows = slices.DeleteFunc(slices.Clone(rows), func(row measure.Row) bool { return row.DType != "float32" })
	}
	f := &figure{File: file, Title: title, xTitle: "operations a byte", yTitle: "GFLOP/s",
		roof: []point{{x: 0.05, y: 0.05 * copyRate}, {x: peak / copyRate, y: peak}, {x: 2000, y: peak}}}
	for i, row := range largest(rows) {
		x := row.FLOPs.Value / row.Bytes.Value
		for _, p := range row.Providers {
			if p.Status != "ok" {
				continue
			}
			label := ""
			if p.Name == measure.Ours {
				label = strconv.Itoa(i + 1)
				f.legend = append(f.legend, fmt.Sprintf("%d  %s, %s", i+1, row.Name, row.Shape))
			}
			f.add(p.Name, point{x: x, y: p.GFLOPs, label: label})
		}
	}
	return f
}

// largest returns the costliest row of each name with a cold cache, ordered by operations a byte.
func largest(rows []measure.Row) (out []measure.Row) {
	for _, row := range rows {
		if row.Cache != measure.Cold || row.FLOPs.Value == 0 {
			continue
		}
		i := slices.IndexFunc(out, func(o measure.Row) bool { return o.Name == row.Name })
		switch {
		case i < 0:
			out = append(out, row)
		case row.Bytes.Value > out[i].Bytes.Value:
			out[i] = row
		}
	}
	slices.SortStableFunc(out, func(a, b measure.Row) int {
		return cmp.Compare(a.FLOPs.Value/a.Bytes.Value, b.FLOPs.Value/b.Bytes.Value)
	})
	return out
}

// figure is a picture with two logarithmic axes.
type figure struct {
	File, Title    string
	xTitle, yTitle string
	series         []*series
	roof           []point  // the line of the highest possible rates; without it a line joins the points of each series
	legend         []string // meaning of the points' labels
}

type series struct {
	name   string
	points []point
}

type point struct {
	x, y  float64
	label string
}

// bounds returns the bounds of both axes, in whole decades around all points.
func (f *figure) bounds() (x0, x1, y0, y1 float64) {
	x0, y0, x1, y1 = math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	all := slices.Clone(f.roof)
	for _, s := range f.series {
		all = append(all, s.points...)
	}
	for _, p := range all {
		x, y := math.Log10(p.x), math.Log10(p.y)
		x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
	}
	up := func(v, low float64) float64 { return max(math.Ceil(v), low+1) }
	x0, y0 = math.Floor(x0), math.Floor(y0)
	return x0, up(x1, x0), y0, up(y1, y0)
}

var colours = []string{"#0b6e4f", "#c1440e", "#3a5fcd", "#8a6d00"}

const (
	plotWidth, plotHeight = 560.0, 340.0
	left, top             = 70.0, 44.0
)

func (f *figure) svg() string {
	var b strings.Builder
	x0, x1, y0, y1 := f.bounds()
	px := func(x float64) float64 { return left + plotWidth*(math.Log10(x)-x0)/(x1-x0) }
	py := func(y float64) float64 { return top + plotHeight*(y1-math.Log10(y))/(y1-y0) }
	height := max(top+plotHeight+60, top+20*float64(len(f.legend)+len(f.series)+2))
	width := left + plotWidth + 170
	if f.legend != nil {
		width += 190
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="sans-serif" font-size="12">`+"\n", width, height)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	fmt.Fprintf(&b, `<text x="%.0f" y="22" font-size="15">%s</text>`+"\n", left, html.EscapeString(f.Title))
	for d := x0; d <= x1; d++ {
		x := px(math.Pow(10, d))
		fmt.Fprintf(&b, `<path d="M%.1f %.1fV%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", x, top, top+plotHeight, x,
			top+plotHeight+17, decade(d))
	}
	for d := y0; d <= y1; d++ {
		y := py(math.Pow(10, d))
		fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", left, y, left+plotWidth,
			left-6, y+4, decade(d))
	}
	fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", left+plotWidth/2, top+plotHeight+38, html.EscapeString(f.xTitle))
	fmt.Fprintf(&b, `<text transform="translate(16 %.1f) rotate(-90)" text-anchor="middle">%s</text>`+"\n", top+plotHeight/2, html.EscapeString(f.yTitle))
	if f.roof != nil {
		drawLine(&b, f.roof, "black", px, py)
	}
	y := top + 12
	for i := len(f.series) - 1; i >= 0; i-- { // ours is first and is drawn last
		if f.roof == nil {
			drawLine(&b, f.series[i].points, colours[i%len(colours)], px, py)
		}
		f.series[i].svg(&b, colours[i%len(colours)], px, py)
	}
	for i, s := range f.series {
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/><text x="%.1f" y="%.1f">%s</text>`+"\n", left+plotWidth+20, y-4,
			colours[i%len(colours)], left+plotWidth+30, y, html.EscapeString(s.name))
		y += 20
	}
	for _, l := range f.legend {
		y += 18
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" font-size="11">%s</text>`+"\n", left+plotWidth+16, y, html.EscapeString(l))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (s *series) svg(b *strings.Builder, colour string, px, py func(float64) float64) {
	for _, p := range s.points {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`+"\n", px(p.x), py(p.y), colour)
		if p.label != "" {
			fmt.Fprintf(b, `<text x="%.1f" y="%.1f" font-size="11">%s</text>`+"\n", px(p.x)+5, py(p.y)-5, p.label)
		}
	}
}

func drawLine(b *strings.Builder, points []point, colour string, px, py func(float64) float64) {
	b.WriteString(`<path d="`)
	for i, p := range points {
		fmt.Fprintf(b, "%c%.1f %.1f", "ML"[min(i, 1)], px(p.x), py(p.y))
	}
	fmt.Fprintf(b, `" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", colour)
}

// decade returns 10^d as an axis label.
func decade(d float64) string {
	if d >= -2 && d <= 4 {
		return strconv.FormatFloat(math.Pow(10, d), 'f', -1, 64)
	}
	return fmt.Sprintf("1e%.0f", d)
}
