package metrics

import (
	"maps"
	"slices"
)

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
