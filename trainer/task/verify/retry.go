package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	firstWait = 500 * time.Millisecond // before the first retry; doubled for each further one
	longWait  = 30 * time.Second       // the longest wait between two attempts, also where the server asks for more
)

// transient is an error that another attempt may not meet.
type transient struct {
	error
	after time.Duration // how long the server asks to wait; 0: it does not say
}

func (t *transient) Unwrap() error { return t.error }

// retry calls f until it succeeds, fails for good, or has been called retries+1 times. Between two calls it waits:
// twice as long each time, less a random part, so that rollouts which failed together do not come back together.
func retry(ctx context.Context, retries int, wait func(context.Context, time.Duration) error, f func() (string, error)) (string, error) {
	for attempt := 0; ; attempt++ {
		reply, err := f()
		var again *transient
		if err == nil || !errors.As(err, &again) {
			return reply, err
		}
		if attempt == retries {
			return "", fmt.Errorf("after %d attempts: %w", attempt+1, err)
		}
		if again.after > longWait {
			return "", fmt.Errorf("it asks to wait for %s, longer than the %s that an answer's score can: %w", again.after, longWait, err)
		}
		pause := min(firstWait<<min(attempt, 16), longWait)
		pause = max(pause/2+rand.N(pause/2), again.after)
		if ended := wait(ctx, pause); ended != nil {
			return "", fmt.Errorf("%w, last: %v", ended, err)
		}
	}
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
