package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/retry"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// Client leases rollouts from another machine and plays each with a command.
type Client struct {
	URL       string // address of the main agent's gateway, such as http://node0:9464
	Token     string
	Command   []string
	Dir       string
	HiddenEnv []string     // environment variables of this process that the command does not get
	Note      func(string) // receives progress messages; may be nil
}

// Play leases rollouts and plays them one after another until ctx ends. It waits while the gateway does not answer. It
// drops a rollout that was given to another program. After each program in a row that cannot be started or fails at once, it waits
// longer: the cause may be on this machine, and other machines may play the rollouts.
func (c *Client) Play(ctx context.Context) error {
	if err := checkCommand(c.Command, c.Dir); err != nil {
		return err
	}
	const pause, longest, atOnce = 2 * time.Second, time.Minute, time.Second
	silent, failed := false, 0
	for ctx.Err() == nil {
		offer, err := c.lease(ctx)
		var refused *refusedError
		switch {
		case errors.As(err, &refused) && refused.status == http.StatusUnauthorized:
			return err
		case err != nil:
			if !silent && ctx.Err() == nil {
				silent = true
				c.note("waiting for %s: %v", c.URL, err)
			}
			_ = retry.Sleep(ctx, pause)
			continue
		case offer == nil:
			continue
		}
		silent = false
		began := time.Now()
		ok, err := c.play(ctx, offer)
		if err != nil && ctx.Err() == nil {
			c.note("rollout %s, attempt %d: %v", offer.ID, offer.Attempt, err)
		}
		if failed++; ok || time.Since(began) > atOnce {
			failed = 0
		}
		if failed > 1 {
			_ = retry.Sleep(ctx, min(pause<<min(failed-2, 10), longest))
		}
	}
	return ctx.Err()
}

func (c *Client) note(format string, args ...any) {
	if c.Note != nil {
		c.Note(fmt.Sprintf(format, args...))
	}
}

// lease requests a rollout. It returns nil if no rollout becomes available for a while.
func (c *Client) lease(ctx context.Context) (*Lease, error) {
	body, err := c.do(ctx, "POST", "/rollouts/lease", c.Token, nil)
	if err != nil || len(body) == 0 {
		return nil, err
	}
	var o Lease
	if err := json.Unmarshal(body, &o); err != nil || o.ID == "" || strings.ContainsAny(o.ID, "/?#") {
		return nil, fmt.Errorf("%s/rollouts/lease returned something other than a lease: %.200q", c.URL, body)
	}
	return &o, nil
}

// play plays a rollout with the command, renews the lease meanwhile, and reports the result. ok is false if the command failed. If it could
// not be started, there is no result, and the lease expires.
func (c *Client) play(ctx context.Context, o *Lease) (ok bool, err error) {
	playing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		c.renew(playing, o, cancel)
	}()
	defer func() {
		cancel(nil)
		<-renewed
	}()
	p := Programs{ProgramOptions: ProgramOptions{Command: c.Command, Dir: c.Dir, Timeout: time.Until(time.Unix(o.Deadline, 0)),
		BaseURL: o.BaseURL, HiddenEnv: c.HiddenEnv}}
	result, stderr, err := p.start(playing, o.Query, o.Rollout, o.Key)
	if lost := context.Cause(playing); lost != nil {
		return true, lost
	}
	if errors.Is(err, errNotStarted) {
		return false, err
	}
	if ok = err == nil; !ok {
		c.note("rollout %s: %v\n%s", o.ID, err, stderr)
		result, _ = json.Marshal(map[string]string{"error": fmt.Sprintf("%v: %s", err, texts.LastLine(stderr))}) // texts always marshal
	}
	return ok, c.report(playing, o, result)
}

// report reports the result of a rollout. If that fails, it tries again until the rollout's deadline.
func (c *Client) report(ctx context.Context, o *Lease, result []byte) error {
	ctx, cancel := context.WithDeadline(ctx, time.Unix(o.Deadline, 0))
	defer cancel()
	const retries = 20
	_, err := retry.Do(ctx, retries, retry.Sleep, func() ([]byte, error) {
		body, err := c.do(ctx, "PUT", "/rollouts/"+o.ID+"/result", o.Key, result)
		var refused *refusedError
		if err == nil || errors.As(err, &refused) && refused.status < 500 && refused.status != http.StatusTooManyRequests {
			return body, err
		}
		return nil, &retry.Transient{Err: err}
	})
	return err
}

// renew renews a lease until ctx ends. If the gateway refuses, another program has the rollout, and renew calls lost to end
// the command.
func (c *Client) renew(ctx context.Context, o *Lease, lost context.CancelCauseFunc) {
	every := time.NewTicker(max(time.Duration(o.Renew*float64(time.Second))/3, 100*time.Millisecond))
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		var refused *refusedError
		if _, err := c.do(ctx, "POST", "/rollouts/"+o.ID+"/renew", o.Key, nil); errors.As(err, &refused) && slices.Contains(lostStatuses, refused.status) {
			lost(err)
			return
		}
	}
}

// refusedError is a reply with the status of an error.
type refusedError struct {
	status int
	text   string
}

func (e *refusedError) Error() string { return e.text }

// lostStatuses are the statuses of the gateway if another program has the rollout. Others may be temporary failures of a proxy.
var lostStatuses = []int{http.StatusUnauthorized, http.StatusNotFound, http.StatusConflict}

// do sends a request and returns the body of the reply.
func (c *Client) do(ctx context.Context, method, path, key string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		var failure struct {
			Error struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		_ = json.Unmarshal(answer, &failure)
		if failure.Error.Message == "" {
			failure.Error.Message = string(answer[:min(len(answer), 200)])
		}
		return nil, &refusedError{resp.StatusCode, fmt.Sprintf("%s: %s: %s", path, resp.Status, failure.Error.Message)}
	}
	return answer, nil
}
