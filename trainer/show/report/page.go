package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
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

func write(w io.Writer, r *run, read reading) error {
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
	p := page{
		frame: frame{Smoothed: r.smoothed()}, Tiles: r.tiles(),
		Outcome: r.cards(r.outcomeCharts()), Learn: r.cards(r.learningCharts()), Costs: append(r.cards(r.costCharts()), r.batchCards()...),
		Calls: r.callCards(), Evals: r.evaluations(), Scores: r.scores(), Totals: r.totals(),
	}
	p.Tools, p.Failing = r.tools()
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

// perAgent returns a curve for each agent.
func (r *run) perAgent(kind, value string) []curve {
	var out []curve
	for _, name := range r.agents {
		out = append(out, curve{Name: name, Class: r.class(name), points: r.series(kind, name, value)})
	}
	return out
}

// stepChart returns a chart of a value of the steps.
func (r *run) stepChart(title, note, value string) chart {
	return chart{Title: title, Note: note, Curves: r.perAgent(metrics.KindStep, value)}
}

// heldOutNote is the subtitle of charts of accuracies.
const heldOutNote = "bars: ± standard deviation over samples"

func (r *run) outcomeCharts() []chart {
	heldOut := chart{Title: "Held-out accuracy", Note: heldOutNote}
	for _, name := range r.agents {
		heldOut.Curves = append(heldOut.Curves, curve{Name: name, Class: r.class(name), Dots: true, points: r.accuracies(name)})
	}
	for _, c := range r.perAgent(metrics.KindEval, metrics.ExpertMean) {
		c.Dots, c.Style, c.Name = true, "dashed", c.Name+" (expert)"
		heldOut.Curves = append(heldOut.Curves, c)
	}
	train := r.stepChart("Training accuracy", "main: verified answers; sub-agents: expert score", metrics.Accuracy)
	train.Curves = append(train.Curves, r.perAgent(metrics.KindStep, metrics.ExpertMean)...)
	return []chart{
		r.stepChart("Reward", "mean of the trajectories, before normalisation", metrics.RewardMean),
		heldOut, train,
		{Title: "Valid format", Note: "share of trajectories", free: true, share: true, Curves: r.perAgent(metrics.KindStep, metrics.FormatValid)},
		r.stepChart("Trajectory length", "mean tokens, read and written", "tokens_mean"),
	}
}

func (r *run) learningCharts() []chart {
	clip := r.stepChart("Clipped tokens", "share; solid: above, dashed: below the trust region", "clip_frac_high")
	for _, c := range r.perAgent(metrics.KindStep, "clip_frac_low") {
		c.Style, c.Name = "dashed", c.Name+" (below)"
		clip.Curves = append(clip.Curves, c)
	}
	loss := r.stepChart("Loss", "what is minimised, mean over the step's updates", "loss")
	loss.free = true
	return []chart{
		r.stepChart("Entropy", "nats per trained token", "entropy_mean"),
		r.stepChart("KL, old to new", "k3 estimate, nats per token", "approx_kl_k3"),
		r.stepChart("KL to the reference", "nats per token", "ref_kl_mean"),
		clip,
		r.stepChart("Gradient norm", "before clipping", "grad_norm"),
		r.stepChart("Log-prob gap", "mean |trainer − sampler|, nats", "gap_mean"),
		loss,
		r.stepChart("Degenerate groups", "groups whose rewards are all equal", "groups_degenerate"),
	}
}

func (r *run) costCharts() []chart {
	seconds := r.stepChart("Seconds a step", "solid: rollout, dashed: learning", metrics.RolloutSeconds)
	memory := chart{Title: "Memory", Note: "MiB of tensors, highest so far"}
	for _, name := range r.agents {
		seconds.Curves = append(seconds.Curves, curve{Name: name + " (learning)", Class: r.class(name), Style: "dashed",
			points: r.computed(metrics.KindStep, name, func(v map[string]float64) (float64, bool) {
				s := metrics.LearnSeconds(v)
				return s, s > 0
			})})
		memory.Curves = append(memory.Curves, curve{Name: name, Class: r.class(name),
			points: r.computed(metrics.KindStep, name, func(v map[string]float64) (float64, bool) {
				b, ok := v["memory_peak_bytes"]
				return b / (1 << 20), ok
			})})
	}
	return []chart{
		seconds,
		r.stepChart("Rollout throughput", "sampled tokens per second", "rollout_tokens_per_second"),
		r.stepChart("Learning throughput", "trained tokens per second", "learn_tokens_per_second"),
		memory,
	}
}

// cards draws the charts that have points, all over the same steps.
func (r *run) cards(charts []chart) []card { return cardsOver(r.lastStep(), charts) }

func cardsOver(lastStep int64, charts []chart) []card {
	from, to := 0.0, math.Max(float64(lastStep), 1)
	var out []card
	for _, c := range charts {
		drawn := c.drawn()
		if len(drawn) == 0 {
			continue
		}
		x := card{Title: c.Title, Note: c.Note, SVG: c.svg(from, to)}
		for _, v := range drawn {
			x.Legend = append(x.Legend, legend{v.Name, v.Class, v.Style, brief(v.points[len(v.points)-1].y)})
		}
		out = append(out, x)
	}
	return out
}

// callCards returns the heatmaps of d_k, the number of calls in a rollout: one for all calls of the main agent and, if there are
// several sub-agents, one for the calls to each.
func (r *run) callCards() []card {
	var out []card
	subs := len(r.agents) - 1
	for _, name := range r.agents {
		h := r.calls(name)
		h.Class = r.class(name)
		h.Title, h.Note = "Calls to "+name, "share of rollouts with d calls, by step"
		if name == r.main {
			h.Title = "Delegations d_k"
		} else if subs == 1 && len(r.calls(r.main).steps) > 0 {
			continue // equal to the main agent's heatmap
		}
		if len(h.steps) > 0 {
			out = append(out, card{Title: h.Title, Note: h.Note, SVG: h.svg()})
		}
	}
	return out
}

func (r *run) lastNotes() (out []note, warnings int) {
	const most = 200
	for _, l := range r.notes[max(0, len(r.notes)-most):] {
		warning := l.Severity == metrics.Warning
		if warning {
			warnings++
		}
		out = append(out, note{l.Time.UTC().Format(time.DateTime) + " UTC", l.Agent, clip(l.Text), warning})
	}
	return out, warnings
}

func (d reading) describe() string {
	if len(d.Rollouts) == 0 {
		return ""
	}
	return fmt.Sprintf("%d rollouts: %d of the %d queries of %d phases, spread evenly over the run, independently of their content. For more: mgrpo "+
		"report --steps, --queries, --megabytes.",
		len(d.Rollouts), d.queries, d.of, d.steps)
}
