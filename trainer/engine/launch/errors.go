package launch

import (
	"fmt"
	"time"
)

// LostError reports a follower that is gone or no longer answers. The cause may be unrelated to the order that it was
// executing.
type LostError struct {
	Follower string // rank, agent and device
	How      string // how it was lost
	Output   string // the end of its output; may be ""
	GPU      bool   // a CUDA failure took its GPU
}

func (e *LostError) Error() string {
	text := fmt.Sprintf("%s %s", e.Follower, e.How)
	if e.Output != "" {
		text += "; its last output: " + e.Output
	}
	return text
}

// FailedError reports an order that a follower could not execute.
type FailedError struct {
	Follower string // rank, agent and device
	Reason   string
	Memory   bool // an allocation failed
	Alone    bool // another rank was lost
}

func (e *FailedError) Error() string { return fmt.Sprintf("%s: %s", e.Follower, e.Reason) }

// RunEndedError reports a run that ended before it was complete.
type RunEndedError struct {
	Agent string
	RunEnd
}

func (e *RunEndedError) Error() string {
	return fmt.Sprintf("the worker of %s has ended: %s", e.Agent, e.Why)
}

// AbsentError reports that another machine did not connect in time.
type AbsentError struct {
	Who     string
	Waited  time.Duration
	Because string // the reason or a remedy
}

func (e *AbsentError) Error() string {
	return fmt.Sprintf("%s did not connect within %v: %s", e.Who, e.Waited, e.Because)
}
