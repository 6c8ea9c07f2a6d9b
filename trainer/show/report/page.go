package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

//go:embed page.html
var pageText string

// Style is the style sheet of the report, for every page of a run.
//
//go:embed page.css
var Style string

// ChartScript makes the charts of Growing show their values under the pointer. A page calls charted(element) for each
// element that has charts, and has an element with the id "tip".
//
//go:embed charts.js
var ChartScript string

//go:embed page.js
var readerText string

var scriptText = ChartScript + readerText

//go:embed comparison.html
var comparisonText string

//go:embed shared.html
var sharedText string

var (
	pageTemplate       = template.Must(template.Must(template.New("page").Parse(sharedText)).Parse(pageText))
	comparisonTemplate = template.Must(template.Must(template.New("comparison").Parse(sharedText)).Parse(comparisonText))
)

// frame holds the data of every page.
type frame struct {
	Name     string
	Policy   string // Content-Security-Policy
	Style    template.CSS
	Script   template.JS
	Data     template.JS // JSON for the page's script
	Smoothed bool        // at least one curve is smoothed
}

func newFrame(name string, data any, smoothed bool) (frame, error) {
	text, err := json.Marshal(data) // Marshal escapes <, >, &, U+2028 and U+2029, so no text can end the script
	if err != nil {
		return frame{}, fmt.Errorf("report: %w", err)
	}
	digest := sha256.Sum256([]byte(scriptText))
	return frame{Name: name, Smoothed: smoothed,
		Policy: "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(digest[:]) +
			"'; base-uri 'none'; form-action 'none'",
		Style: template.CSS(Style), Script: template.JS(scriptText), Data: template.JS(text),
	}, nil
}

// page is the data of page.html.
type page struct {
	frame
	Subtitle        string
	Agents          []namedClass
	Tiles           []tile
	Missing         []string
	Outcome, Learn  []card
	Calls, Costs    []card
	Evals, Scores   table
	Totals          table
	Tools           table
	Failing         []string // sentences about tools that often fail
	Notes           []note
	Warnings        int
	Config          string
	Reading         string // sentence about the included trajectories
	HasTrajectories bool
}

type namedClass struct{ Name, Class, Role string }

type tile struct{ Label, Value, Detail string }

type card struct {
	Title, Note string
	Legend      []legend
	SVG         template.HTML
	Explained   string // how to read the chart, shown below it
}

type legend struct{ Name, Class, Style, Last string }

type table struct {
	Head []string
	Rows [][]string
}

type note struct {
	Time, Agent, Text string
	Warning           bool
}

func write(w io.Writer, r *run, read trajectorySample) error {
	f, err := newFrame(r.name, read, r.smoothed())
	if err != nil {
		return err
	}
	p := r.sections()
	p.frame, p.Subtitle, p.Missing, p.Config = f, r.subtitle(), r.missing, r.config
	for _, name := range r.agents {
		role := "sub-agent"
		if name == r.main {
			role = "main agent"
		}
		p.Agents = append(p.Agents, namedClass{name, r.class(name), role})
	}
	p.Reading, p.HasTrajectories = read.describe(), len(read.Rollouts) > 0
	p.Notes, p.Warnings = r.lastNotes()
	return pageTemplate.Execute(w, p)
}

// sections returns the parts of the page that depend only on the run's records.
func (r *run) sections() page {
	c := charts{r}
	p := page{
		frame: frame{Smoothed: r.smoothed()}, Tiles: tiles(r),
		Outcome: c.cards(c.outcome()), Learn: c.cards(c.learning()), Costs: append(c.cards(c.costs()), c.batches()...),
		Calls: c.calls(), Evals: evaluations(r), Scores: scores(r), Totals: totals(r),
	}
	p.Tools, p.Failing = tools(r)
	return p
}

// smoothed reports whether the run has enough steps for smoothed curves.
func (r *run) smoothed() bool {
	return slices.ContainsFunc(r.agents, func(name string) bool {
		return len(r.series(metrics.KindStep, name, metrics.RewardMean)) >= fewestToSmooth
	})
}

// class returns the CSS class of an agent's colour.
func (r *run) class(agent string) string {
	for i, name := range r.agents {
		if name == agent {
			return fmt.Sprintf("c%d", i%8)
		}
	}
	return "c7"
}

func (r *run) subtitle() string {
	parts := []string{}
	switch last := r.lastStep(); {
	case last == 0:
	case r.steps == 0:
		parts = append(parts, metrics.Steps(last))
	case last < r.steps:
		parts = append(parts, fmt.Sprintf("step %d of %d", last, r.steps))
	case r.steps == 1:
		parts = append(parts, "the only step")
	default:
		parts = append(parts, fmt.Sprintf("all %d steps", r.steps))
	}
	if n := len(r.records); n > 0 {
		parts = append(parts, "last record "+r.records[n-1].Time.UTC().Format("2 January 2006, 15:04 UTC"))
	}
	return strings.Join(parts, " · ")
}

func (r *run) lastNotes() (out []note, warnings int) {
	const maxShown = 200
	for _, l := range r.notes[max(0, len(r.notes)-maxShown):] {
		warning := l.Severity == metrics.Warning
		if warning {
			warnings++
		}
		out = append(out, note{l.Time.UTC().Format(time.DateTime) + " UTC", l.Agent, clip(l.Text), warning})
	}
	return out, warnings
}

func (d trajectorySample) describe() string {
	if len(d.Rollouts) == 0 {
		return ""
	}
	return fmt.Sprintf("%d rollouts: %d of the %d queries of %d phases, spread evenly over the run, independently of their content. For more: mgrpo "+
		"report --steps, --queries, --megabytes.",
		len(d.Rollouts), d.queries, d.of, d.steps)
}
