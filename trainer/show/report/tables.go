package report

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// tiles returns the figures at the top of the report.
func tiles(r *run) []tile {
	out := heldOutTiles(comparableOf(r))
	for _, name := range r.agents[:min(maxTiles, len(r.agents))] {
		if t, ok := rewardTile(r, name); ok {
			out = append(out, t)
		}
	}
	if sampled := r.sum(metrics.SampledTokens).value; sampled > 0 {
		out = append(out, tile{"Tokens sampled", number(sampled), number(r.sum(metrics.TrainedTokens).value) + " learned from"})
	}
	if n := len(r.records); n > 1 {
		first, last := r.records[0].Time, r.records[n-1].Time
		out = append(out, tile{"Wall time", last.Sub(first).Round(time.Second).String(), "first to last record"})
	}
	return out
}

const maxTiles = 6 // agents with a tile

func heldOutTiles(heldOut []point) []tile {
	switch len(heldOut) {
	case 0:
		return nil
	case 1:
		return []tile{{"Held-out accuracy", fmt.Sprintf("%.2f", heldOut[0].y), fmt.Sprintf("after step %g, the only evaluation", heldOut[0].x)}}
	}
	first, last := heldOut[0], heldOut[len(heldOut)-1]
	best := slices.MaxFunc(heldOut, func(a, b point) int { return cmp.Compare(a.y, b.y) })
	span := fmt.Sprintf("before step 1 → step %g", last.x)
	if first.x > 0 { // eval.before: false
		span = fmt.Sprintf("step %g → step %g; none before", first.x, last.x)
	}
	return []tile{
		{"Held-out accuracy", fmt.Sprintf("%.2f → %.2f", first.y, last.y), span},
		{"Best held-out", fmt.Sprintf("%.2f", best.y), fmt.Sprintf("after step %g", best.x)},
	}
}

// rewardTile returns the tile of an agent's reward. If the agent was never called, the tile states this. ok is false for an
// agent without a training step.
func rewardTile(r *run, name string) (t tile, ok bool) {
	steps := r.computed(metrics.KindStep, name, func(map[string]float64) (float64, bool) { return 0, true })
	reward := r.series(metrics.KindStep, name, metrics.RewardMean)
	switch {
	case len(steps) == 0:
		return tile{}, false
	case len(reward) == 0:
		return tile{"Reward of " + name, "idle", "not called in " + metrics.Steps(int64(len(steps)))}, true
	}
	first, last := reward[0], reward[len(reward)-1]
	t = tile{"Reward of " + name, fmt.Sprintf("%.2f → %.2f", first.y, last.y), fmt.Sprintf("step %g → step %g", first.x, last.x)}
	if idle := len(steps) - len(reward); idle > 0 {
		t.Detail += fmt.Sprintf("; idle in %d", idle)
	}
	return t, true
}

// evaluations returns a table with a row for each evaluation.
func evaluations(r *run) table {
	t := table{Head: []string{"after step", "accuracy", "± over samples", "pass@N", "d_k", "valid format"}}
	subs := slices.DeleteFunc(slices.Clone(r.agents), func(name string) bool { return name == r.main })
	for _, name := range subs {
		t.Head = append(t.Head, name+" expert")
	}
	bySub := map[string]map[int64]map[string]float64{} // values of evaluations by sub-agent and step
	for _, name := range subs {
		bySub[name] = map[int64]map[string]float64{}
	}
	for _, l := range r.records {
		if steps := bySub[l.Agent]; steps != nil && l.Kind == metrics.KindEval {
			steps[l.Step] = l.Values
		}
	}
	for _, l := range r.records {
		if _, ok := l.Values[metrics.Accuracy]; l.Kind != metrics.KindEval || !ok && l.Unknown == "" {
			continue
		}
		accuracy := formatKnown(l.Values, metrics.Accuracy, 3)
		if l.Unknown != "" {
			accuracy = l.Unknown
		}
		row := []string{fmt.Sprint(l.Step), accuracy, formatKnown(l.Values, metrics.AccuracyStd, 3), passAt(l.Values),
			formatKnown(l.Values, metrics.CallsMean, 2), formatKnown(l.Values, metrics.FormatValid, 3)}
		for _, name := range subs {
			row = append(row, formatKnown(bySub[name][l.Step], metrics.ExpertMean, 3))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// scores returns a table of the last evaluation by set, kind, level and number of parts.
func scores(r *run) table {
	t := table{Head: []string{"questions", "n", "accuracy", "95 %", "pass@N", "best of N", "d_k", "tokens"}}
	evaluations := metrics.Evaluations(r.records)
	if len(evaluations) == 0 {
		return t
	}
	last := evaluations[len(evaluations)-1].Scores
	if len(last) < 2 { // the accuracy alone is shown elsewhere
		return t
	}
	for _, s := range last {
		name := cmp.Or(s.Set, "task.eval")
		if s.By != "" {
			name += ", " + s.By + " " + cmp.Or(s.Of, "–")
		}
		tokens := "–"
		if s.Tokens > 0 {
			tokens = fmt.Sprintf("%.0f", s.Tokens)
		}
		t.Rows = append(t.Rows, []string{name, fmt.Sprint(s.Questions), fmt.Sprintf("%.3f", s.Accuracy),
			fmt.Sprintf("%.3f – %.3f", s.Interval[0], s.Interval[1]),
			fmt.Sprintf("%.3f (N = %d)", s.Pass[s.Samples], s.Samples), fmt.Sprintf("%.3f", s.Best[s.Samples]), fmt.Sprintf("%.2f", s.Calls), tokens})
	}
	return t
}

func formatKnown(values map[string]float64, name string, digits int) string {
	if v, ok := values[name]; ok {
		return fmt.Sprintf("%.*f", digits, v)
	}
	return "–"
}

func passAt(values map[string]float64) string {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if n, ok := strings.CutPrefix(name, metrics.PassAtPrefix); ok {
			return fmt.Sprintf("%.3f (N = %s)", values[name], n)
		}
	}
	return "–"
}

// totals returns a table with a row for each agent: tokens, updates, seconds and memory of the whole run.
func totals(r *run) table {
	t := table{Head: []string{"agent", "trajectories", "tokens", "sampled", "learned from", "updates", "rollout", "learning", "peak memory"}}
	for _, name := range r.agents {
		sum := map[string]float64{}
		learning, peak := 0.0, 0.0
		for _, l := range r.records {
			if l.Agent != name {
				continue
			}
			for k, v := range l.Values {
				sum[k] += v
			}
			learning += metrics.LearningTime(l.Values)
			peak = max(peak, l.Values[metrics.MemoryPeakBytes])
		}
		t.Rows = append(t.Rows, []string{name, number(sum[metrics.Trajectories]), number(sum[metrics.Tokens]), number(sum[metrics.SampledTokens]),
			number(sum[metrics.TrainedTokens]), fmt.Sprintf("%.0f", sum[metrics.Updates]-sum[metrics.UpdatesSkipped]-sum[metrics.UpdatesFailed]),
			fmt.Sprintf("%.1f s", sum[metrics.RolloutSeconds]),
			fmt.Sprintf("%.1f s", learning), fmt.Sprintf("%.0f MiB", peak/(1<<20))})
	}
	return t
}

// tools returns a table with a row for each tool of each agent, and a sentence for each tool that often fails.
func tools(r *run) (t table, failing []string) {
	t.Head = []string{"agent", "tool", "calls", "errors", "independent of the arguments", "time-outs", "refused", "retries", "failed", "ms per call"}
	for _, agent := range r.agents {
		counts := map[string]map[string]int64{}
		for _, name := range metrics.ByTool {
			counts[name] = map[string]int64{}
			for _, l := range r.records {
				if l.Agent != agent {
					continue
				}
				for tool, n := range l.Counts[name] {
					counts[name][tool] += n
				}
			}
		}
		for _, u := range metrics.ToolUses(counts) {
			t.Rows = append(t.Rows, []string{agent, clip(u.Tool), number(float64(u.Calls)), number(float64(u.Errors)), number(float64(u.Failures)),
				number(float64(u.Timeouts)), number(float64(u.Refused)), number(float64(u.Retries)),
				fmt.Sprintf("%.1f %%", 100*u.FailedShare()), number(float64(u.Milliseconds) / float64(max(u.Made(), 1)))})
			if u.Failing() {
				failing = append(failing, fmt.Sprintf("%s of %s failed in %.0f %% of its %d calls: rewards of rollouts that called it are a poor "+
					"measure of the agent.",
					clip(u.Tool), agent, 100*u.FailedShare(), u.Made()))
			}
		}
	}
	return t, failing
}

// explainBatches explains a chart of decode batches.
func explainBatches(total map[int64]int64) string {
	var passes, rows int64
	for size, n := range total {
		passes += n
		rows += n * size
	}
	text := fmt.Sprintf("A forward pass computes the next token of every conversation that waits for one. A bar counts the passes with that many "+
		"conversations: %.1f on average.",
		float64(rows)/float64(passes))
	if alone := float64(total[1]) / float64(passes); alone >= 0.3 {
		text += fmt.Sprintf(" In %.0f %% of the passes there was only one conversation. This happens at the end of a phase, when few conversations are "+
			"left, or throughout, if too few rollouts are in flight or conversations wait much longer for tools and other agents than a pass takes.", 100*alone)
	}
	return text
}

// histogram draws counts of integers, in at most maxColumns ranges of equal width.
func histogram(counts map[int64]int64, class, name string) template.HTML {
	largest, most := slices.Max(slices.Collect(maps.Keys(counts))), int64(0)
	width := max(1, (largest+maxColumns-1)/maxColumns)
	sums := make([]int64, (largest+width-1)/width)
	for k, c := range counts {
		if k > 0 {
			sums[(k-1)/width] += c
		}
	}
	most = slices.Max(sums)
	x, y := scale(0, float64(len(sums)), chartLeft, chartWidth-chartRight), scale(0, float64(most), base, chartTop)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="heat %s" viewBox="0 0 %g %g" role="img" aria-label="%s">`, class, chartWidth, chartHeight,
		html.EscapeString("Decode batches of "+name))
	for i, c := range sums {
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%d–%d sequences: %d passes</title></rect>`,
			x(float64(i)), y(float64(c)), max(x(1)-x(0)-1, 0.5), base-y(float64(c)), int64(i)*width+1, int64(i+1)*width, c)
	}
	for _, t := range niceTicks(0, float64(most)) {
		if t <= float64(most) {
			fmt.Fprintf(&b, `<text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`, chartLeft-6, y(t)+3.5, number(t))
		}
	}
	every := max(1, len(sums)/8)
	for i := 0; i < len(sums); i += every {
		fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%g" text-anchor="middle">%d</text>`, (x(float64(i))+x(float64(i+1)))/2, base+15, int64(i)*width+1)
	}
	fmt.Fprintf(&b, `<path class="axis" d="M%g %gH%g"/></svg>`, chartLeft, base, chartWidth-chartRight)
	return template.HTML(b.String())
}
