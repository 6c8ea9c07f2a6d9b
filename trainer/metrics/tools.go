package metrics

import (
	"maps"
	"slices"
)

// ToolUse is what the calls of a tool came to.
type ToolUse struct {
	Tool             string
	Calls            int64
	Errors, Timeouts int64 // calls that were answered with an error, and that took too long
	Failures         int64 // those of the errors that no other arguments would have prevented
	Milliseconds     int64 // of all calls
}

// ToolUses reads what Record.Counts says of tools, in the order of their names.
func ToolUses(counts map[string]map[string]int64) []ToolUse {
	var out []ToolUse
	for _, tool := range slices.Sorted(maps.Keys(counts[ToolCalls])) {
		u := ToolUse{Tool: tool, Calls: counts[ToolCalls][tool], Errors: counts[ToolErrors][tool], Timeouts: counts[ToolTimeouts][tool],
			Failures: counts[ToolFailures][tool], Milliseconds: counts[ToolMilliseconds][tool]}
		if u.Calls > 0 {
			out = append(out, u)
		}
	}
	return out
}

// FailedShare is the share of calls that were answered with an error or took too long.
func (u ToolUse) FailedShare() float64 { return float64(u.Errors+u.Timeouts) / float64(u.Calls) }

// Failing says whether so many calls failed that somebody should look at the tool: rewards of rollouts that called it
// say little about the agent.
func (u ToolUse) Failing() bool {
	const share, fewest = 0.1, 10
	return u.Calls >= fewest && u.FailedShare() > share
}
