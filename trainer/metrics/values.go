package metrics

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/mgrpo/mgrpo/docs"
)

// ByTool lists the names of Record.Counts whose keys are tools; they are not histograms.
var ByTool = []string{ToolCalls, ToolErrors, ToolFailures, ToolTimeouts, ToolRefused, ToolRetries, ToolMilliseconds}

// rows returns the rows of docs/metrics.md that explain values: name, unit, kinds of record, and meaning.
var rows = sync.OnceValue(func() (all [][]string) {
	for line := range strings.Lines(docs.Metrics) {
		line, isRow := strings.CutPrefix(strings.TrimSuffix(line, " |\n"), "| `")
		if row := strings.Split(line, " | "); isRow && len(row) == 4 {
			row[0], row[3] = strings.TrimSuffix(row[0], "`"), strings.ReplaceAll(row[3], `\|`, "|")
			all = append(all, row)
		}
	}
	return all
})

// Explain returns the meaning and the unit of a name of Record.Values or Record.Counts, as docs/metrics.md gives them. Both are empty if
// the page lacks the name.
func Explain(name string) (meaning, unit string) {
	for _, row := range rows() {
		prefix := namePrefix(row[0])
		if name == row[0] || prefix != row[0] && strings.HasPrefix(name, prefix) {
			return row[3], row[1]
		}
	}
	return "", ""
}

// namePrefix removes the capital letters that end the name of a row: pass_at_N is the row of all names that begin with pass_at_.
func namePrefix(row string) string { return strings.TrimRight(row, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") }

// VariesBetweenRuns reports whether a value depends on the clock, the machine or the batches that happened to form.
func VariesBetweenRuns(name string) bool {
	return strings.HasSuffix(name, "_seconds") || strings.HasSuffix(name, "_per_second") ||
		strings.HasPrefix(name, "memory_") || name == InFlightMax || name == EvictedTokens || name == RecomputedTokens
}

// LearningTime returns the seconds that a step spent on learning: learn_seconds or, if it is absent, trained_tokens divided by
// learn_tokens_per_second.
func LearningTime(values map[string]float64) float64 {
	if s, ok := values[LearnSeconds]; ok {
		return s
	}
	if rate := values[LearnTokensPerSecond]; rate > 0 {
		return values[TrainedTokens] / rate
	}
	return 0
}

// ToolUse counts the calls of a tool by outcome.
type ToolUse struct {
	Tool             string
	Calls            int64
	Errors, Timeouts int64 // calls that ended with an error, and calls that timed out
	Failures         int64 // errors that would have occurred with any arguments
	Refused, Retries int64 // calls beyond max_calls, and further attempts at calls
	Milliseconds     int64 // total of all calls
}

// ToolUses reads the tool counts of Record.Counts, sorted by tool name.
func ToolUses(counts map[string]map[string]int64) []ToolUse {
	var out []ToolUse
	for _, tool := range slices.Sorted(maps.Keys(counts[ToolCalls])) {
		u := ToolUse{Tool: tool, Calls: counts[ToolCalls][tool], Errors: counts[ToolErrors][tool], Timeouts: counts[ToolTimeouts][tool],
			Failures: counts[ToolFailures][tool], Refused: counts[ToolRefused][tool], Retries: counts[ToolRetries][tool],
			Milliseconds: counts[ToolMilliseconds][tool]}
		if u.Calls > 0 {
			out = append(out, u)
		}
	}
	return out
}

// Made returns the number of calls that were made. The others were refused, since their conversation had reached its limit.
func (u ToolUse) Made() int64 { return u.Calls - u.Refused }

// FailedShare returns the share of the calls made that ended with an error or timed out.
func (u ToolUse) FailedShare() float64 {
	return float64(u.Errors+u.Timeouts) / float64(max(u.Made(), 1))
}

// Failing reports whether enough calls failed for a warning: the rewards of rollouts that called the tool are then a poor
// measure of the agent.
func (u ToolUse) Failing() bool {
	const share, fewest = 0.1, 10
	return u.Made() >= fewest && u.FailedShare() > share
}
