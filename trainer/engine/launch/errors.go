package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
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

// FailedError reports an order or a request for a turn that failed at a follower.
type FailedError struct {
	Follower    string // rank, agent and device
	Reason      string
	OutOfMemory bool // an allocation failed
	OtherLost   bool // another rank was lost
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

// AbsentError reports that the worker and another machine of its agent did not find each other in time.
type AbsentError struct {
	Who     string // the machine, or the worker, that was missing
	Waited  time.Duration
	Because string // the reason or a remedy
}

func (e *AbsentError) Error() string {
	return fmt.Sprintf("no connection with %s within %v: %s", e.Who, e.Waited, e.Because)
}

// Failed returns the reply for an order or a request that failed.
func Failed(err error) Reply {
	var group *torch.GroupError
	return Reply{Error: err.Error(), OutOfMemory: OutOfMemory(err), OtherLost: errors.As(err, &group), Missing: errors.Is(err, fs.ErrNotExist)}
}

// OutOfMemory reports whether an allocation failed, here or at a follower.
func OutOfMemory(err error) bool {
	var op *torch.Error
	var kernel *kernels.Error
	var follower *FailedError
	return errors.As(err, &op) && op.OutOfMemory() || errors.As(err, &kernel) && kernel.Status == kernels.OutOfMemory ||
		errors.As(err, &follower) && follower.OutOfMemory
}
