package report

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// tools returns a table with a row for each tool of each agent, and a sentence for each tool that often fails.
func (r *run) tools() (t table, failing []string) {
	t.Head = []string{"agent", "tool", "calls", "errors", "independent of the arguments", "time-outs", "refused", "retries", "failed", "ms per call"}
	for _, agent := range r.agents {
		counts := map[string]map[string]int64{}
		for _, v := range metrics.ByTool.Values {
			counts[v.Name] = map[string]int64{}
			for _, l := range r.records {
				if l.Agent != agent {
					continue
				}
				for tool, n := range l.Counts[v.Name] {
					counts[v.Name][tool] += n
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
