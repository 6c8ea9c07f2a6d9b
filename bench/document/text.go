package main

import (
	"cmp"
	"embed"
	"fmt"
	"slices"
	"strings"
	"text/template"

	"github.com/mgrpo/mgrpo/bench/kernels"
	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/phases"
	"github.com/mgrpo/mgrpo/bench/store"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

//go:embed *.md.tmpl
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"seconds": measure.Seconds, "bytes": measure.Bytes, "families": arch.Families, "costHead": func() []string { return store.CostHead },
	"loadHead": func() []string { return store.LoadHead }, "next": func(i int) int { return i + 1 }, "over": func(a, b float64) float64 { return a / b },
	"title": func(s string) string { return strings.ToUpper(s[:1]) + s[1:] }, "tls": overTLS, "peers": peersOf, "unfinished": unfinished,
	"warm": maybeWarm, "fast": fast, "failed": failed,
}).ParseFS(files, "*.tmpl"))

// text fills in a template.
func text(name string, data any) (string, error) {
	var b strings.Builder
	err := templates.ExecuteTemplate(&b, name, data)
	return b.String(), err
}

func overTLS(yes bool) string {
	if yes {
		return "with TLS"
	}
	return "without TLS"
}

// Unmeasured returns the rows of a GPU that have a target and that none of the machines has.
func (all machines) Unmeasured() []measure.Row {
	rows := slices.Concat(kernels.OnGPU(), phases.OnGPU("rollout"), phases.OnGPU("learner"), phases.OnGPU("step"))
	return slices.DeleteFunc(rows, func(row measure.Row) bool {
		has := func(m *machine) bool { return m.Is().GPU != "" && slices.ContainsFunc(m.rows(), row.SameCase) }
		return len(row.Targets) == 0 || slices.ContainsFunc(all, has)
	})
}

// Of returns the machine with a slug.
func (all machines) Of(slug string) (*machine, error) {
	i := slices.IndexFunc(all, func(m *machine) bool { return m.Slug == slug })
	if i < 0 {
		return nil, fmt.Errorf("bench/results has no results of %s", slug)
	}
	return all[i], nil
}

// Ratio returns a peer's time over ours, in the row of this name with a cold cache, and of this shape if one is given.
func (m *machine) Ratio(suite, name, peer string, shape ...string) (string, error) {
	for _, row := range m.rows() {
		if row.Suite == suite && row.Name == name && (len(shape) == 0 || row.Shape == shape[0]) && row.Cache == measure.Cold && row.Ratio[peer] > 0 {
			return fmt.Sprintf("%.2f", row.Ratio[peer]), nil
		}
	}
	return "", fmt.Errorf("%s: %s %s %v has no time of %s", m.Slug, suite, name, shape, peer)
}

func (m *machine) rows() (all []measure.Row) {
	for _, r := range m.Results {
		all = append(all, r.Rows...)
	}
	return all
}

// Again returns the rows that were measured again.
func (m *machine) Again() []measure.Row {
	return slices.DeleteFunc(m.rows(), func(r measure.Row) bool { return r.Again == nil })
}

// targets holds the rows of the table of targets, and remarks about them, each once.
type targets struct {
	Rows    []struct{ What, Target, Measured, Verdict string }
	Remarks []string
}

// add adds a row. The verdict gets the number of its remark, if there is one.
func (t *targets) add(what, target, measured, verdict, remark string) {
	if remark != "" {
		if !slices.Contains(t.Remarks, remark) {
			t.Remarks = append(t.Remarks, remark)
		}
		verdict += fmt.Sprintf(" (%d)", slices.Index(t.Remarks, remark)+1)
	}
	t.Rows = append(t.Rows, struct{ What, Target, Measured, Verdict string }{what, target, measured, verdict})
}

// Targets returns a table with the measured value and the verdict of each target. It returns nil if there are no targets.
func (m *machine) Targets() *targets {
	all, on := &targets{}, ""
	if m.Is().GPU != "" {
		on = "gpu "
	}
	for _, r := range m.rows() {
		row := on + r.Suite + " " + r.Name
		for _, t := range r.Targets {
			value, verdict, remark := "-", "not measured", ""
			if t.Value != nil {
				value, verdict = fmt.Sprintf("%.3g", *t.Value), "met"
				switch {
				case !t.Met:
					verdict, remark = "missed", about(remarks.Missed, row, t.Kind)
				case t.Peer != "" && m.emulated(r):
					verdict = "not counted: the peer's bf16 is emulated"
				default:
					remark = about(remarks.Met, row, t.Kind)
				}
			}
			all.add(r.Name+", "+r.Shape, t.Text, value, verdict, remark)
		}
	}
	m.addStoreTargets(all)
	if all.Rows == nil {
		return nil
	}
	return all
}

// addStoreTargets adds the loads at the target rate on one Redis.
func (m *machine) addStoreTargets(to *targets) {
	if m.Store == nil {
		return
	}
	for _, l := range m.Store.Loads {
		if l.Rate != store.TargetRate {
			continue
		}
		memory, verdict, remark := "flat", "met", ""
		if !l.Flat() {
			memory = "growing"
		}
		if !l.Prompt() || !l.Flat() {
			verdict, remark = "missed", about(remarks.Missed, "store", "")
		}
		to.add(fmt.Sprintf("store, %d workers on one Redis, %s", l.Workers, overTLS(l.TLS)),
			fmt.Sprintf("%d invocations/s, p99 < %s, memory flat", store.TargetRate, measure.Seconds(store.TargetP99)),
			fmt.Sprintf("%.0f/s, p99 %s, memory %s", l.PerSecond, measure.Seconds(l.ExchangeP99), memory), verdict, remark)
	}
}

// emulated reports whether the peers of a row emulate their type of numbers.
func (m *machine) emulated(row measure.Row) bool {
	return slices.ContainsFunc(m.Results, func(r *measure.Results) bool { return r.Suite == row.Suite && row.Emulated(r.Ceilings) })
}

type loss struct {
	Comparison string
	Ratio      float64
}

// standings summarises comparisons with peers. We are faster in Wins of Counted comparisons, and slower in Losses. If we are faster
// than a peer that emulates bf16, the comparison is counted in Emulated only.
type standings struct {
	Wins, Counted, Emulated int
	Losses                  []loss
}

// Standings compares every row with its peers.
func (m *machine) Standings() (s standings) {
	for _, r := range m.rows() {
		for peer, ratio := range r.Ratio {
			switch {
			case ratio < 1:
				s.Losses = append(s.Losses, loss{fmt.Sprintf("%s, %s | %s | %s", r.Name, r.Shape, r.Cache, peer), ratio})
			case m.emulated(r):
				s.Emulated++
			default:
				s.Wins++
			}
		}
	}
	s.Counted = s.Wins + len(s.Losses)
	slices.SortFunc(s.Losses, func(x, y loss) int {
		return cmp.Or(cmp.Compare(x.Ratio, y.Ratio), strings.Compare(x.Comparison, y.Comparison))
	})
	return s
}

type counts struct{ Measured, All int }

// unfinished returns how many of the kernels' cases are measured, or nil if all are.
func unfinished(r *measure.Results) *counts {
	all := casesOf(r)
	c := &counts{All: len(all)}
	for _, row := range all {
		if slices.ContainsFunc(r.Rows, row.SameCase) {
			c.Measured++
		}
	}
	if r.Suite != "kernels" || c.Measured == c.All {
		return nil
	}
	return c
}

// fast returns the names of the rows that are faster than their floor, with the reasons.
func fast(r *measure.Results) (all []string) {
	for _, row := range r.Rows {
		if beatsFloor(row, r.Machine) {
			all = append(all, row.Name+": "+about(remarks.Fast, row.Suite+" "+row.Name, ""))
		}
	}
	return slices.Compact(all)
}

// failed returns the peers that did not run, with the reasons.
func failed(r *measure.Results) (all []string) {
	for _, row := range r.Rows {
		for _, name := range peersOf(r) {
			if p := row.Of(name); p != nil && p.Status != "ok" && row.Of(measure.Ours) != nil {
				all = append(all, fmt.Sprintf("%s, %s, %s: %s", row.Name, row.Shape, name, p.Status))
			}
		}
	}
	return slices.Compact(all)
}

// beatsFloor reports whether a row is faster than its floor by more than medians on a shared machine differ, and was not warm.
func beatsFloor(row measure.Row, m measure.Machine) bool {
	const noise = 115 // percent
	ours := row.Of(measure.Ours)
	return ours != nil && ours.PercentOfFloor > noise && !maybeWarm(row, m)
}

// maybeWarm reports whether a row's cold calls may have found inputs in the cache.
func maybeWarm(row measure.Row, m measure.Machine) bool { return row.Cache == measure.Cold && m.Hot() }

// peersOf returns the names of a suite's peers in the order of their appearance.
func peersOf(r *measure.Results) (names []string) {
	for _, row := range r.Rows {
		for _, p := range row.Providers {
			if p.Name != measure.Ours && !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	return names
}
