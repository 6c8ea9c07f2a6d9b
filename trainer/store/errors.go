package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrEnded is what Claim returns when the phase has ended: nothing of it needs an answer any more.
var ErrEnded = errors.New("store: the phase has ended")

// ErrClosed is the cause of everything that fails because the Store was closed.
var ErrClosed = errors.New("store: closed")

// TimeoutError is a wait that took too long.
type TimeoutError struct {
	Whom  string        // who is waited for, and whether it is alive
	What  string        // what it has not done
	Since time.Time     // when the wait began
	After time.Duration // how long it lasted
	Last  error         // the last failure to reach the store, if there was one
}

func (e *TimeoutError) Error() string {
	s := fmt.Sprintf("store: waited %v, since %s, for %s: %s", e.After.Round(time.Millisecond), e.Since.Format(time.TimeOnly), e.Whom, e.What)
	if e.Last != nil {
		s += fmt.Sprintf(" (last failure to reach the store: %v)", e.Last)
	}
	return s
}

// Unwrap makes a TimeoutError a deadline that was exceeded.
func (e *TimeoutError) Unwrap() error { return context.DeadlineExceeded }

// ConflictError is a second, different value for what is written once. The first one stands.
type ConflictError struct{ What string }

func (e *ConflictError) Error() string {
	return "store: " + e.What + " is there already with another value; what is written once cannot change"
}

// FencedError says that this member's epoch is over: another worker has taken the agent's place, or
// the store has lost its memory of it. Nothing was written.
type FencedError struct {
	Agent string
	Epoch int64  // the member's own
	Now   string // the agent's epoch in the store; "" if the store has none
}

func (e *FencedError) Error() string {
	if e.Now == "" {
		return fmt.Sprintf("store: the store has lost epoch %d of %s: it was wiped or restarted without its data; resume all agents from a checkpoint", e.Epoch, e.Agent)
	}
	return fmt.Sprintf("store: this worker of %s (epoch %d) was replaced by another (epoch %s)", e.Agent, e.Epoch, e.Now)
}

// StopError is the end of a run, as broadcast by one of its agents.
type StopError struct {
	Agent  string // who stopped it
	Reason string
	Failed bool // false: a stop that was asked for
}

func (e *StopError) Error() string {
	if e.Failed {
		return fmt.Sprintf("store: the run failed: %s: %s", e.Agent, e.Reason)
	}
	return fmt.Sprintf("store: the run was stopped by %s: %s", e.Agent, e.Reason)
}

// MalformedError is an entry of the store that this program cannot have written.
type MalformedError struct{ Key, Msg string }

func (e *MalformedError) Error() string {
	return fmt.Sprintf("store: %s holds a malformed entry: %s", e.Key, e.Msg)
}

// transient says whether an operation that failed so may succeed when the store is back: the network
// failed, or the server is starting or failing over. All operations are idempotent, so they may be
// repeated whether or not they took effect.
func transient(err error) bool {
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, redis.ErrPoolTimeout) {
		return true
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		for _, prefix := range []string{"LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"} {
			if strings.HasPrefix(reply.Error(), prefix) {
				return true
			}
		}
	}
	return false
}
