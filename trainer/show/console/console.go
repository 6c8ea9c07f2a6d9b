// Package console prints a run for people.
package console

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// options describes the terminal and the run of a Console.
type options struct {
	Agents   []string // agents whose records are reported here, main agent first; a step's table is printed when all have reported
	Steps    int64    // steps of the whole run; 0: unknown
	Terminal bool     // the output is a terminal: a single progress line is redrawn in place
	Color    bool     // use colours; set it only for a terminal, and not if NO_COLOR is set
	Width    int      // columns of the terminal; 0 means 80
	Now      func() time.Time
}

// Time between progress lines: redrawn in place on a terminal, new lines elsewhere.
const (
	redrawEvery = 100 * time.Millisecond
	lineEvery   = 5 * time.Second
)

// Console prints a run for people: progress during a phase, a table of 79 columns for each step, and a line for each
// evaluation, cold start and note.
type Console struct {
	out io.Writer
	opt options

	mu       sync.Mutex
	start    time.Time
	shown    time.Time         // when progress was last shown
	status   bool              // the cursor is on a progress line
	progress map[string]string // by agent
	pending  map[string]*table // by kind and step, until every agent has reported
	order    []string          // keys of pending, oldest first

	run     metrics.History // records of the whole run, for the summary
	resumed bool            // the run has records from an earlier process
	made    int             // number of steps whose tables this process printed
}

// table collects the records of one step or evaluation, by agent.
type table struct {
	kind    string
	step    int64
	records map[string]metrics.Record
}

// New returns the console of a run. agents are those that run in this process; nil means all. If out is a
// terminal, it is used as one.
func New(out io.Writer, cfg *config.Config, agents []string) *Console {
	opt := options{Agents: agents, Steps: cfg.Run.Steps}
	if agents == nil {
		opt.Agents = cfg.AgentNames()
	}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb" {
		opt.Terminal = true
		opt.Color = os.Getenv("NO_COLOR") == ""
		opt.Width, _, _ = term.GetSize(int(file.Fd()))
	}
	return newConsole(out, opt)
}

// newConsole returns an Observer that writes to out.
func newConsole(out io.Writer, opt options) *Console {
	opt.Width = cmp.Or(opt.Width, 80)
	if opt.Now == nil {
		opt.Now = time.Now
	}
	return &Console{out: out, opt: opt, start: opt.Now(), progress: map[string]string{}, pending: map[string]*table{}}
}

// Recall adds the earlier records of a resumed run, for the summary. New records of the same step replace them.
func (c *Console) Recall(before metrics.Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range before.Records {
		if slices.Contains(c.opt.Agents, l.Agent) {
			c.run.Add(l)
			c.resumed = true
		}
	}
}

// Progress shows the progress of an agent's phase, at most once in each interval. On a terminal it also shows the first
// progress after finished lines.
func (c *Console) Progress(p metrics.Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress[p.Agent] = p.String()
	now := c.opt.Now()
	every := lineEvery
	if c.opt.Terminal {
		every = redrawEvery
	}
	if now.Sub(c.shown) < every {
		return
	}
	c.shown = now
	c.showProgress(now)
}

func (c *Console) showProgress(now time.Time) {
	line := formatDuration(now.Sub(c.start)) + "  " + strings.Join(inOrder(c.opt.Agents, c.progress), "  ")
	if !c.opt.Terminal {
		fmt.Fprintln(c.out, line)
		return
	}
	fmt.Fprintf(c.out, "\r\x1b[K%s", c.paint(dim, truncate(line, c.opt.Width-1)))
	c.status = true
}

// Report prints a record: a cold start at once, a step or an evaluation when all agents have reported it.
func (c *Console) Report(r metrics.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.progress, r.Agent)
	c.run.Add(metrics.Line{Record: r})
	if r.Kind == metrics.KindColdStart {
		c.print(c.coldStart(r))
		return
	}
	key := fmt.Sprint(r.Kind, r.Step)
	t := c.pending[key]
	if t == nil {
		t = &table{kind: r.Kind, step: r.Step, records: map[string]metrics.Record{}}
		c.pending[key], c.order = t, append(c.order, key)
	}
	t.records[r.Agent] = r
	for _, name := range c.opt.Agents {
		if _, here := t.records[name]; !here {
			return
		}
	}
	c.finish(key)
}

// finish prints a table and removes it from pending.
func (c *Console) finish(key string) {
	t := c.pending[key]
	delete(c.pending, key)
	c.order = slices.DeleteFunc(c.order, func(k string) bool { return k == key })
	if t.kind == metrics.KindEval {
		c.print(c.evaluation(t))
		return
	}
	c.made++
	c.print(c.stepTable(t))
}

// Note prints a line. A warning is highlighted.
func (c *Console) Note(n metrics.Note) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := Printable(n.Text)
	if n.Severity == metrics.Warning {
		text = "warning: " + text
	}
	if n.Agent != "" {
		text = n.Agent + ": " + text
	}
	if n.Severity == metrics.Warning {
		text = c.paint(yellow, text)
	}
	c.print(text + "\n")
}

// Print prints lines, each with its newline.
func (c *Console) Print(lines string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.print(lines)
}

// Summary prints unfinished tables and a summary of the run, including recalled records. err is the error with which the
// run ended. Summary does not print it. If a resumed run failed before its first step, there is nothing to summarise.
func (c *Console) Summary(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.order) > 0 {
		c.finish(c.order[0])
	}
	if err != nil && c.resumed && c.made == 0 {
		c.print("")
		return
	}
	steps := map[int64]bool{}
	var sampled, trained float64
	for _, l := range c.run.Lines() {
		sampled += l.Values[metrics.SampledTokens]
		trained += l.Values[metrics.TrainedTokens]
		if l.Kind == metrics.KindStep {
			steps[l.Step] = true
		}
	}
	heldOut := metrics.Evaluations(c.run.Lines())
	if len(steps) == 0 && len(heldOut) == 0 {
		c.print("")
		return
	}
	summary := fmt.Sprintf("%s in %s", metrics.Steps(int64(len(steps))), formatDuration(c.opt.Now().Sub(c.start)))
	if c.resumed {
		summary = fmt.Sprintf("%s (%d since the resume, in %s)", metrics.Steps(int64(len(steps))), c.made, formatDuration(c.opt.Now().Sub(c.start)))
	}
	if n := len(heldOut); slices.ContainsFunc(heldOut, func(l metrics.Line) bool { return l.Unknown != "" }) {
		summary += "; held-out accuracy unknown, see above"
	} else if n > 0 {
		best := slices.MaxFunc(heldOut, func(a, b metrics.Line) int {
			return cmp.Compare(a.Values[metrics.Accuracy], b.Values[metrics.Accuracy])
		})
		summary += fmt.Sprintf("; held-out accuracy %.2f -> %.2f (best %.2f after step %d)",
			heldOut[0].Values[metrics.Accuracy], heldOut[n-1].Values[metrics.Accuracy], best.Values[metrics.Accuracy], best.Step)
		if heldOut[0].Step > 0 { // eval.before: false
			summary += fmt.Sprintf(", the first after step %d", heldOut[0].Step)
		}
	}
	c.print(summary + "\n")
	c.print(fmt.Sprintf("%s tokens sampled, %s learned from\n", formatCount(sampled), formatCount(trained)))
}

// print replaces the progress line by finished lines.
func (c *Console) print(lines string) {
	if c.status {
		fmt.Fprint(c.out, "\r\x1b[K")
		c.status = false
		c.shown = time.Time{} // show the next progress at once
	}
	io.WriteString(c.out, lines)
}

// Colours, as ANSI attributes.
const (
	dim    = "2"
	bold   = "1"
	yellow = "33"
	green  = "32"
)

func (c *Console) paint(attribute, text string) string {
	if !c.opt.Color {
		return text
	}
	return "\x1b[" + attribute + "m" + text + "\x1b[0m"
}

// Printable replaces newlines and tabs by spaces, and other characters that cannot be printed by question marks, so that
// text from outside cannot control the terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, s)
}

// truncate shortens text to a number of columns.
func truncate(s string, columns int) string {
	if utf8.RuneCountInString(s) <= columns {
		return s
	}
	return string([]rune(s)[:max(columns-1, 0)]) + "…"
}

// formatDuration formats a duration as m:ss or h:mm:ss.
func formatDuration(d time.Duration) string {
	s := int(d.Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// formatCount formats a number in at most five columns: 7, 940, 12.3k, 4.5M.
func formatCount(v float64) string {
	for _, unit := range []string{"", "k", "M", "G"} {
		switch {
		case v < 1000 && unit == "":
			return fmt.Sprintf("%.0f", v)
		case v < 99.95:
			return fmt.Sprintf("%.1f%s", v, unit)
		case v < 999.5:
			return fmt.Sprintf("%.0f%s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.0fT", v)
}
