// Package retry sends requests, and repeats those that failed for a temporary reason.
package retry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	FirstWait = 500 * time.Millisecond // before the first retry; doubled for each further one
	longWait  = 30 * time.Second       // longest wait between two attempts, even if the server asks for a longer wait
)

// Transient is an error after which another attempt may succeed.
type Transient struct {
	Err   error
	After time.Duration // wait that the server requested; 0: not given
}

func (t *Transient) Error() string { return t.Err.Error() }
func (t *Transient) Unwrap() error { return t.Err }

// Do calls f until it succeeds, fails with an error that is not a Transient, or was called retries+1 times. wait is called
// between the calls; the wait doubles each time and is shortened at random, so that requests that failed together are not
// repeated together.
func Do[T any](ctx context.Context, retries int, wait func(context.Context, time.Duration) error, f func() (T, error)) (T, error) {
	var none T
	for attempt := 0; ; attempt++ {
		reply, err := f()
		var again *Transient
		if err == nil || !errors.As(err, &again) {
			return reply, err
		}
		if attempt == retries {
			if attempt == 0 {
				return none, err
			}
			return none, fmt.Errorf("after %d attempts: %w", attempt+1, err)
		}
		if again.After > longWait {
			return none, fmt.Errorf("the server asks to wait %s, but the longest wait is %s: %w", again.After, longWait, err)
		}
		pause := min(FirstWait<<min(attempt, 16), longWait)
		pause = max(pause/2+rand.N(pause/2), again.After)
		if ended := wait(ctx, pause); ended != nil {
			return none, fmt.Errorf("%w, last: %v", ended, err)
		}
	}
}

// Sleep waits for d, or returns the context's error if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Attempt sends a request and returns the reply and its body, which it has closed. A body of more than most bytes is an error. The error of
// a request without a complete reply is a Transient, unless the caller's ctx has ended or the server's certificate is not trusted. Errors
// do not contain the address.
func Attempt(ctx context.Context, client *http.Client, r *http.Request, most int64) (*http.Response, []byte, error) {
	var body []byte
	reply, err := client.Do(r)
	if err == nil {
		defer reply.Body.Close()
		body, err = io.ReadAll(io.LimitReader(reply.Body, most+1))
	}
	if err == nil && int64(len(body)) > most {
		return nil, nil, fmt.Errorf("the reply has more than %d bytes", most)
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	var untrusted *tls.CertificateVerificationError
	if err != nil && ctx.Err() == nil && !errors.As(err, &untrusted) {
		err = &Transient{Err: err}
	}
	if err == nil && reply.StatusCode < 300 && len(body) > 0 {
		err = Encoded(reply)
	}
	return reply, body, err
}

// Encoded returns an error if the body of a reply is compressed in a way that no request of this program accepts. A client decodes gzip.
func Encoded(r *http.Response) error {
	for coding := range strings.SplitSeq(strings.Join(r.Header.Values("Content-Encoding"), ","), ",") {
		switch coding = strings.ToLower(strings.TrimSpace(coding)); coding {
		case "br", "compress", "deflate", "gzip", "x-compress", "x-gzip", "zstd":
			return fmt.Errorf("the server sent the reply in the Content-Encoding %s, which it was not asked for", coding)
		}
	}
	return nil
}

// Refusal returns the error of a reply whose status is not a success: err, as a Transient if the server is busy or failing
// (RFC 9110, RFC 6585), or with the target of a redirect, without its user, query and fragment, which may be secret.
func Refusal(r *http.Response, err error) error {
	switch code := r.StatusCode; {
	case code >= 300 && code < 400 && r.Header.Get("Location") != "":
		target, invalid := url.Parse(r.Header.Get("Location"))
		if invalid != nil {
			return fmt.Errorf("%w: it redirects to another address; redirects are not followed", err)
		}
		target.User, target.RawQuery, target.ForceQuery, target.Fragment = nil, "", false, ""
		return fmt.Errorf("%w: it redirects to %.200q; redirects are not followed", err, target)
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		return &Transient{Err: err, After: after(r.Header.Get("Retry-After"))}
	}
	return err
}

// after parses a Retry-After header, seconds or a date. It returns 0 if the header is neither.
func after(header string) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
