package console

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// column is one number of an agent's row.
type column struct {
	title  string
	width  int
	values []string // names; the table shows the first that the record has
	format func(float64) string
}

// columns and the agent's name take 79 columns of the terminal.
var columns = []column{
	{"reward", 6, []string{metrics.RewardMean}, fixed(3)},
	{"score", 6, []string{metrics.Accuracy, metrics.ExpertMean}, fixed(3)},
	{"form", 5, []string{metrics.FormatValid}, fixed(2)},
	{"d_k", 5, []string{metrics.CallsMean}, fixed(2)},
	{"entr", 7, []string{metrics.EntropyMean}, fixed(3)},
	{"clip-", 6, []string{metrics.ClipFracLow}, fixed(3)},
	{"clip+", 6, []string{metrics.ClipFracHigh}, fixed(3)},
	{"|grad|", 7, []string{metrics.GradNorm}, formatNumber},
	{"gap", 7, []string{metrics.GapMean}, formatNumber},
	{"roll/s", 7, []string{metrics.RolloutTokensPerSecond}, formatCount},
	{"lrn/s", 7, []string{metrics.LearnTokensPerSecond}, formatCount},
}

const nameWidth = 10

func fixed(digits int) func(float64) string {
	return func(v float64) string { return fmt.Sprintf("%.*f", digits, v) }
}

// formatNumber formats a number in at most six columns. It has three significant digits or, below 0.01 and from 1000 on, a single
// digit and an exponent.
func formatNumber(v float64) string {
	switch size := math.Abs(v); {
	case v == 0:
		return "0"
	case size < 0.01 || size >= 1000:
		return strings.NewReplacer("e-0", "e-", "e+0", "e").Replace(fmt.Sprintf("%.0e", v))
	}
	return strings.TrimSuffix(fmt.Sprintf("%#.3g", v), ".")
}

// stepTable returns a line for the team and a row for each agent.
func (c *Console) stepTable(t *table) string {
	var b strings.Builder
	b.WriteString(c.paint(bold, c.stepTitle(t)) + "\n")
	head := strings.Repeat(" ", nameWidth)
	for _, col := range columns {
		head += fmt.Sprintf("%*s", col.width, col.title)
	}
	b.WriteString(c.paint(dim, head) + "\n")
	for _, r := range inOrder(c.opt.Agents, t.records) {
		fmt.Fprintf(&b, "%-*s", nameWidth, truncate(r.Agent, nameWidth))
		for _, col := range columns {
			fmt.Fprintf(&b, "%*s", col.width, cell(r.Values, col))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func cell(values map[string]float64, col column) string {
	for _, name := range col.values {
		if v, ok := values[name]; ok {
			return col.format(v)
		}
	}
	return "-"
}

// stepTitle returns the team's line: the step, its time and tokens, and unusual counts.
func (c *Console) stepTitle(t *table) string {
	title := fmt.Sprintf("step %d", t.step)
	if c.opt.Steps > 0 {
		title += fmt.Sprintf("/%d", c.opt.Steps)
	}
	var seconds, sampled, trained, removed, failed, skipped, refused float64
	for _, r := range t.records {
		seconds = max(seconds, r.Values[metrics.RolloutSeconds]+metrics.LearningTime(r.Values))
		sampled += r.Values[metrics.SampledTokens]
		trained += r.Values[metrics.TrainedTokens]
		removed = max(removed, r.Values[metrics.RolloutsRemoved])
		failed = max(failed, r.Values[metrics.RolloutsFailed])
		skipped += r.Values[metrics.UpdatesSkipped]
		refused += r.Values[metrics.UpdatesFailed]
	}
	title += fmt.Sprintf("  %.1fs  %s tokens sampled, %s trained", seconds, formatCount(sampled), formatCount(trained))
	for _, odd := range []struct {
		n    float64
		what string
	}{{failed, "failed"}, {removed, "removed"}, {refused, "refused"}, {skipped, "skipped"}} {
		if odd.n > 0 {
			title += fmt.Sprintf(", %.0f %s", odd.n, odd.what)
		}
	}
	clock := formatDuration(c.opt.Now().Sub(c.start))
	room := 79 - len(clock) - 1
	return fmt.Sprintf("%-*s %s", room, truncate(title, room), clock)
}

// inOrder returns the values of a map by agent, in the order of the agents; agents that are not configured come last.
func inOrder[T any](agents []string, byAgent map[string]T) []T {
	var out []T
	for _, name := range agents {
		if v, here := byAgent[name]; here {
			out = append(out, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byAgent)) {
		if !slices.Contains(agents, name) {
			out = append(out, byAgent[name])
		}
	}
	return out
}

// evaluation returns a line with the team's held-out accuracy, if the main agent reports here, and the expert score of
// each sub-agent.
func (c *Console) evaluation(t *table) string {
	var parts []string
	seconds := 0.0
	for _, r := range inOrder(c.opt.Agents, t.records) {
		seconds = max(seconds, r.Values[metrics.RolloutSeconds])
		if accuracy, ok := r.Values[metrics.Accuracy]; ok {
			parts = append(parts, c.paint(green, fmt.Sprintf("held-out accuracy %.3f", accuracy))+passAt(r.Values)+
				fmt.Sprintf(", d_k %.2f", r.Values[metrics.CallsMean]))
		} else if r.Unknown != "" {
			parts = append(parts, c.paint(yellow, "held-out "+Printable(r.Unknown)))
		} else if expert, ok := r.Values[metrics.ExpertMean]; ok {
			parts = append(parts, fmt.Sprintf("%s %.3f", r.Agent, expert))
		}
	}
	if len(parts) == 0 {
		parts = []string{"not called"}
	}
	when := fmt.Sprintf("after step %d", t.step)
	if t.step == 0 {
		when = "before step 1"
	}
	return fmt.Sprintf("%s: %s  (%.1fs)\n", c.paint(bold, when), strings.Join(parts, "; "), seconds)
}

func passAt(values map[string]float64) string {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if n, ok := strings.CutPrefix(name, metrics.PassAtPrefix); ok {
			return fmt.Sprintf(", pass@%s %.3f", n, values[name])
		}
	}
	return ""
}

func (c *Console) coldStart(r metrics.Record) string {
	v := r.Values
	return fmt.Sprintf("cold start of %s: loss %.3f after %.0f updates, %s tokens in %.1fs\n",
		r.Agent, v[metrics.Loss], v[metrics.Updates], formatCount(v[metrics.TrainedTokens]), v[metrics.LearnSeconds])
}
