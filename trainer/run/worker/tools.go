package worker

import (
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// maxExample is the largest number of bytes of an error in a warning.
const maxExample = 300

// describeTools adds the calls of the agent's tools since the last record, and warns of lost servers and of failing
// tools: agents may learn wrong behaviour from such conversations.
func (rp *reports) describeTools(r *metrics.Record) {
	usage, lost := rp.player.Usage()
	for _, why := range lost {
		rp.observer.Note(metrics.Warnf(rp.name, metrics.TopicTools, "the server of a tool was lost and is being restarted: %s", why))
	}
	if len(usage) == 0 {
		return
	}
	for _, v := range metrics.ByTool.Values {
		r.Counts[v.Name] = map[string]int64{}
	}
	for name, u := range usage {
		r.Counts[metrics.ToolCalls][name] = u.Calls
		r.Counts[metrics.ToolErrors][name] = u.Errors
		r.Counts[metrics.ToolFailures][name] = u.Failures
		r.Counts[metrics.ToolTimeouts][name] = u.Timeouts
		r.Counts[metrics.ToolRefused][name] = u.Refused
		r.Counts[metrics.ToolRetries][name] = u.Retries
		r.Counts[metrics.ToolMilliseconds][name] = u.Time.Milliseconds()
	}
	for _, u := range metrics.ToolUses(r.Counts) {
		if u.Failing() {
			rp.observer.Note(metrics.Warnf(rp.name, metrics.TopicTools,
				"the tool %s failed in %d of %d calls: %d took too long, "+
					"%d were answered with an error, %d of them independent of the arguments; the newest: %s",
				u.Tool, u.Errors+u.Timeouts, u.Made(), u.Timeouts, u.Errors, usage[u.Tool].Failures, tool.Truncate(usage[u.Tool].Example, maxExample)))
		}
	}
}
