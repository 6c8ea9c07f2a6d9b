package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/retry"
)

// Attempts say how a call is made.
type Attempts struct {
	Timeout  time.Duration // of one attempt; 0: none
	Retries  int           // further attempts after a time-out or an error that may pass, such as a server that is busy
	Parallel int           // attempts at once; 0: any number
	Rate     float64       // attempts begun in a second; 0: any number
	Secrets  []string      // texts, such as API keys, that are replaced in outputs and errors
	Retried  func()        // called before each further attempt, if set
}

// Attempted wraps a tool: it waits for its turn, enforces the time-out, repeats what may pass, replaces secrets, and turns a
// panic into an error of the call.
func Attempted(t Tool, a Attempts) Tool {
	w := &attempted{Tool: t, how: a, wait: retry.Sleep}
	if a.Parallel > 0 {
		w.slots = make(chan struct{}, a.Parallel)
	}
	return w
}

type attempted struct {
	Tool
	how   Attempts
	wait  func(context.Context, time.Duration) error
	slots chan struct{} // holds one for each attempt in flight; nil: any number

	mu   sync.Mutex
	next time.Time // when the next attempt may begin
}

func (t *attempted) Call(ctx context.Context, args json.RawMessage) (string, error) {
	tries := 0
	out, err := retry.Do(ctx, t.how.Retries, t.wait, func() (string, error) {
		if tries++; tries > 1 && t.how.Retried != nil {
			t.how.Retried()
		}
		return t.attempt(ctx, args)
	})
	if err != nil {
		_, kind := kindOf(err)
		return "", &callError{redact(err.Error(), t.how.Secrets), kind}
	}
	return redact(out, t.how.Secrets), nil
}

// attempt makes one attempt when it may. A time-out is transient.
func (t *attempted) attempt(ctx context.Context, args json.RawMessage) (out string, err error) {
	if t.slots != nil {
		select {
		case t.slots <- struct{}{}:
			defer func() { <-t.slots }()
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	if pause := t.turn(time.Now()); pause > 0 {
		if err := t.wait(ctx, pause); err != nil {
			return "", err
		}
	}
	if t.how.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t.how.Timeout, ErrTimeout)
		defer cancel()
	}
	defer func() {
		if p := recover(); p != nil {
			out, err = "", failed(fmt.Errorf("%s crashed: %v", t.Name(), p))
		}
		if err != nil && errors.Is(context.Cause(ctx), ErrTimeout) {
			out, err = "", &retry.Transient{Err: &callError{fmt.Sprintf("%s took longer than %v", t.Name(), t.how.Timeout), ErrTimeout}}
		}
	}()
	return t.Tool.Call(ctx, args)
}

// turn takes the next turn and returns how long it is away.
func (t *attempted) turn(now time.Time) time.Duration {
	if t.how.Rate <= 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next.Before(now) {
		t.next = now
	}
	pause := t.next.Sub(now)
	t.next = t.next.Add(time.Duration(float64(time.Second) / t.how.Rate))
	return pause
}
