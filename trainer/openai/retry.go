package openai

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	firstWait = 500 * time.Millisecond // before the first retry; doubled for each further one
	longWait  = 30 * time.Second       // longest wait between two attempts, even if the server asks for a longer wait
)

// transient is an error after which another attempt may succeed.
type transient struct {
	error
	after time.Duration // wait that the server asks for; 0: not given
}

func (t *transient) Unwrap() error { return t.error }

// retry calls f until it succeeds, fails with an error that is not transient, or was called retries+1 times. The wait
// between calls doubles each time and is shortened at random, so that requests that failed together are not repeated
// together.
func retry[T any](ctx context.Context, retries int, wait func(context.Context, time.Duration) error, f func() (T, error)) (T, error) {
	var none T
	for attempt := 0; ; attempt++ {
		reply, err := f()
		var again *transient
		if err == nil || !errors.As(err, &again) {
			return reply, err
		}
		if attempt == retries {
			return none, fmt.Errorf("after %d attempts: %w", attempt+1, err)
		}
		if again.after > longWait {
			return none, fmt.Errorf("the server asks to wait %s, and the longest wait is %s: %w", again.after, longWait, err)
		}
		pause := min(firstWait<<min(attempt, 16), longWait)
		pause = max(pause/2+rand.N(pause/2), again.after)
		if ended := wait(ctx, pause); ended != nil {
			return none, fmt.Errorf("%w, last: %v", ended, err)
		}
	}
}

// sleep waits for d, or returns the context's error if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
