package store

import (
	"cmp"
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

// ConflictError is a second, different value for what is written once, or one that does not follow what is
// there. What is there stands.
type ConflictError struct {
	What string
	Why  string // "": there is another value
}

func (e *ConflictError) Error() string {
	if e.Why != "" {
		return "store: " + e.What + ": " + e.Why
	}
	return "store: " + e.What + " is there already with another value; what is written once cannot change"
}

// FencedError says that this member's epoch is over: another worker has taken the agent's place, or
// the store has lost its memory of it. What was asked for has no effect, or had it before.
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

// StopKind is how a round ends before its time.
type StopKind string

// A round ends because somebody asked for it, because of an error, or to go on from an earlier version.
const (
	Asked   StopKind = "asked"
	Failure StopKind = "failed"
	Rewind  StopKind = "rewind"
)

// StopError is the end of a round, as broadcast by one of its agents.
type StopError struct {
	Agent  string // who stopped it
	Reason string
	Kind   StopKind
}

func (e *StopError) Error() string {
	switch e.Kind {
	case Failure:
		return fmt.Sprintf("store: the run failed: %s: %s", e.Agent, e.Reason)
	case Rewind:
		return fmt.Sprintf("store: the team goes back: %s: %s", e.Agent, e.Reason)
	}
	return fmt.Sprintf("store: the run was stopped by %s: %s", e.Agent, e.Reason)
}

// Rewinds says whether an error ended the round and not the run: the team was asked to go back, or this
// worker was taken for lost, or the store has forgotten the round. Whoever sees it may join again.
func Rewinds(err error) bool {
	var stop *StopError
	var fenced *FencedError
	return errors.As(err, &stop) && stop.Kind == Rewind || errors.As(err, &fenced)
}

// MalformedError is an entry of the store that this program cannot have written.
type MalformedError struct{ Key, Msg string }

func (e *MalformedError) Error() string {
	return fmt.Sprintf("store: %s holds a malformed entry: %s", e.Key, e.Msg)
}

// errLoading is a server that answers, but has not read its data yet.
var errLoading = errors.New("the server is still loading its data")

// advised is an error to which advise has added.
type advised struct{ error }

func (a advised) Unwrap() error { return a.error }

// advise adds to a refusal of the server who was refused, and what can be done about it.
func (s *Store) advise(err error) error {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.As(err, new(advised)) {
		return err
	}
	opts, bad := parseURL(s.opts.URL)
	if bad != nil {
		return err
	}
	user := cmp.Or(s.opts.Username, opts.Username, "default")
	switch text := reply.Error(); {
	case strings.HasPrefix(text, "WRONGPASS"), strings.HasPrefix(text, "NOAUTH"):
		return advised{fmt.Errorf("%w: %s does not take the password of user %s: look at store.username, and at store.password_env or store.password_file",
			err, strings.Join(opts.Addrs, ", "), user)}
	case strings.HasPrefix(text, "NOPERM"), strings.Contains(text, "can't run this command"), strings.Contains(text, "can't access"):
		return advised{fmt.Errorf("%w: user %s of %s may not do this; it may be another agent's. `mgrpo store acl` prints what each user needs",
			err, user, strings.Join(opts.Addrs, ", "))}
	}
	return err
}

// transient says whether an operation that failed so may succeed when the store is back: the network
// failed, or the server is starting or failing over. All operations are idempotent, so they may be
// repeated whether or not they took effect.
func transient(err error) bool {
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, errLoading) {
		return true
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		text := reply.Error()
		if _, inner, ok := strings.Cut(text, ": -"); ok { // of a command inside a script, before Redis 7
			text = inner
		}
		for _, prefix := range []string{"LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS"} {
			if strings.HasPrefix(text, prefix) {
				return true
			}
		}
	}
	return false
}
