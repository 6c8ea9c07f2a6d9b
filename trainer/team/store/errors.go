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

// ErrPhaseEnded is returned by Claim when the phase has ended: none of its invocations needs an answer any longer.
var ErrPhaseEnded = errors.New("store: the phase has ended")

// ErrRunComplete is returned by Join when all workers have finished the run and nothing is left to do.
var ErrRunComplete = errors.New("store: the run is over")

// ErrClosed is the error of operations on a Store that was closed.
var ErrClosed = errors.New("store: closed")

// TimeoutError is the error of a wait that took longer than the store's timeout.
type TimeoutError struct {
	Whom  string        // the awaited agents, and whether their workers are alive
	What  string        // the awaited action
	Since time.Time     // when the wait began
	After time.Duration // how long it lasted
	Last  error         // last failure to reach the store, if there was one
}

func (e *TimeoutError) Error() string {
	s := fmt.Sprintf("store: waited %v, since %s, for %s: %s", e.After.Round(time.Millisecond), e.Since.Format(time.TimeOnly), e.Whom, e.What)
	if e.Last != nil {
		s += fmt.Sprintf(" (last failure to reach the store: %v)", e.Last)
	}
	return s
}

// Unwrap returns context.DeadlineExceeded.
func (e *TimeoutError) Unwrap() error { return context.DeadlineExceeded }

// ConflictError is returned if a key that is written once already has another value, or if a version does not follow the
// stored one. The stored value does not change.
type ConflictError struct {
	What string
	Why  string // "": the stored value differs
}

func (e *ConflictError) Error() string {
	if e.Why != "" {
		return "store: " + e.What + ": " + e.Why
	}
	return "store: " + e.What + " was already written with another value, which cannot be changed"
}

// FencedError is returned if this member's epoch is over: another worker has taken the agent's place, or the store has lost
// its data. The write has no effect now. If it was sent before, the first attempt may have had its effect.
type FencedError struct {
	Agent string
	Epoch int64  // the member's own epoch
	Now   string // the agent's epoch in the store; "": the store has lost it
}

func (e *FencedError) Error() string {
	if e.Now == "" {
		return fmt.Sprintf("store: the store has lost epoch %d of %s: it was wiped or restarted without its data; resume all agents from a checkpoint",
			e.Epoch, e.Agent)
	}
	return fmt.Sprintf("store: this worker of %s (epoch %d) was replaced by another (epoch %s)", e.Agent, e.Epoch, e.Now)
}

// StopKind is the kind of reason for which a round was ended.
type StopKind string

// A round is ended because the user asked for it, because of an error, or to continue from an earlier version.
const (
	Asked   StopKind = "asked"
	Failure StopKind = "failed"
	Rewind  StopKind = "rewind"
)

// StopError is returned after an agent has ended the round for all agents.
type StopError struct {
	Agent  string // agent whose worker ended the round
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

// EndsRoundOnly reports whether an error ended only the round and not the run. Then the team goes back
// to a checkpoint, this worker was replaced, or the store has lost the round. The worker may join again.
func EndsRoundOnly(err error) bool {
	var stop *StopError
	var fenced *FencedError
	return errors.As(err, &stop) && stop.Kind == Rewind || errors.As(err, &fenced)
}

// MalformedError is returned if a key has a value that this program cannot have written.
type MalformedError struct{ Key, Msg string }

func (e *MalformedError) Error() string {
	return fmt.Sprintf("store: %s has a malformed value: %s; this program did not write it", e.Key, e.Msg)
}

// errLoading is returned if the server answers but is still reading its data from disk.
var errLoading = errors.New("the server is still loading its data")

// advisedError marks an error to which advise has already added advice.
type advisedError struct{ error }

func (a advisedError) Unwrap() error { return a.error }

// advise completes an error with which the server refused a password, a command or a key: it names the user or the server, and a remedy.
func (s *Store) advise(err error) error {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.As(err, new(advisedError)) {
		return err
	}
	redisOpt, bad := parseURL(s.opt.URL)
	if bad != nil {
		return err
	}
	user := cmp.Or(s.opt.Username, redisOpt.Username, "default")
	switch text := reply.Error(); {
	case strings.HasPrefix(text, "WRONGPASS"), strings.HasPrefix(text, "NOAUTH"):
		return advisedError{fmt.Errorf("%w: %s refuses the password of user %s: correct store.username, or store.password_env or store.password_file",
			err, strings.Join(redisOpt.Addrs, ", "), user)}
	case strings.HasPrefix(text, "MOVED "), strings.HasPrefix(text, "ASK "):
		return advisedError{fmt.Errorf("%w: %s is a node of a cluster: add ?cluster=true to store.url", err, strings.Join(redisOpt.Addrs, ", "))}
	case strings.Contains(text, "cluster support disabled"):
		return advisedError{fmt.Errorf("%w: remove cluster=true and addr from store.url", err)}
	case strings.Contains(strings.ToLower(text), "unknown command 'sentinel'"):
		return advisedError{fmt.Errorf("%w: %s is not a Sentinel: name the Sentinels' port, or remove master_name from store.url",
			err, strings.Join(redisOpt.Addrs, ", "))}
	case errors.Is(err, redis.Nil) && strings.Contains(err.Error(), "sentinels"):
		return advisedError{fmt.Errorf("the Sentinels at %s do not know the master %q: correct master_name in store.url",
			strings.Join(redisOpt.Addrs, ", "), redisOpt.MasterName)}
	case strings.HasPrefix(text, "NOPERM"), strings.Contains(text, "can't run this command"), strings.Contains(text, "can't access"):
		return advisedError{fmt.Errorf("%w: user %s of %s lacks the permission to do this, or is the user of another agent; `mgrpo store acl` prints "+
			"the permissions of each user",
			err, user, strings.Join(redisOpt.Addrs, ", "))}
	}
	return err
}

// transient reports whether an operation may succeed later: the network failed, or the server is starting, failing over or busy.
// All operations are idempotent, so they may be repeated even if they took effect.
func transient(err error) bool {
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, redis.ErrPoolTimeout) ||
		errors.Is(err, errLoading) {
		return true
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		text := reply.Error()
		if _, inner, ok := strings.Cut(text, ": -"); ok { // before Redis 7 the error of a command inside a script has a prefix
			text = inner
		}
		for _, prefix := range []string{"LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "BUSY "} {
			if strings.HasPrefix(text, prefix) {
				return true
			}
		}
	}
	return false
}
