// Package openai requests chat completions from a model behind an OpenAI-compatible API. It does not trust the server:
// replies are bounded and checked, redirects are not followed, and no error contains the key.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/retry"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// Options hold the API's address, and time-outs and retries.
type Options struct {
	URL     string        // base, such as https://host/v1
	KeyEnv  string        // environment variable with the API key; empty: no key is sent
	Timeout time.Duration // for one reply; 0: one minute
	Retries int           // number of times that a request is repeated after transient errors
}

const (
	maxReply  = 1 << 20 // bytes of a reply
	maxQuoted = 200     // bytes of a quoted reply in an error
	maxIdle   = 64      // connections kept open between requests
)

// Client sends requests to one API. Any number of goroutines may use it.
type Client struct {
	endpoint, key string
	timeout       time.Duration
	retries       int
	wait          func(context.Context, time.Duration) error
	http          *http.Client
	newName       atomic.Bool // the server refused max_tokens and expects max_completion_tokens
	noTemperature atomic.Bool // the server refused a temperature
}

// New returns a client. It does not contact the server.
func New(opt Options) (*Client, error) {
	base, err := url.Parse(opt.URL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil {
		return nil, errors.New("url: must be an http or https address without a user name; put the key into the environment variable that key_env names")
	}
	c := &Client{
		endpoint: base.JoinPath("chat", "completions").String(), timeout: opt.Timeout, retries: opt.Retries, wait: retry.Sleep,
		http: &http.Client{
			Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: time.Minute},
			// A redirect could carry the key to another host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if c.key, err = secret.FromEnv("key", opt.KeyEnv); err != nil {
		return nil, err
	}
	if c.timeout <= 0 {
		c.timeout = time.Minute
	}
	return c, nil
}

// Close closes the connections that are kept open.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Complete requests a completion. It repeats the request after a time-out, after a broken connection, if the server is
// busy or failing, and if r.Check rejects the reply. A busy or failing server may report this by the HTTP status, or by an
// error inside a reply with status 200. Errors that the server reports are a *StatusError.
func (c *Client) Complete(ctx context.Context, r Request) (Reply, error) {
	reply, err := retry.Do(ctx, c.retries, c.wait, func() (Reply, error) {
		reply, err := c.ask(ctx, r)
		if err == nil && r.Check != nil {
			if unfit := r.Check(reply); unfit != nil {
				return Reply{}, &retry.Transient{Err: unfit}
			}
		}
		return reply, err
	})
	if err != nil {
		return Reply{}, fmt.Errorf("%s: %w", c.endpoint, err)
	}
	return reply, nil
}

// ask sends a request. If the server refuses the name of the limit on the reply's tokens, or the temperature, ask sends the request again
// in a form that the server accepts.
func (c *Client) ask(ctx context.Context, r Request) (Reply, error) {
	w := requestForm{c.newName.Load(), c.noTemperature.Load()}
	for {
		reply, err := c.post(ctx, r, w)
		var refused *StatusError
		if !errors.As(err, &refused) || refused.Code != http.StatusBadRequest {
			return reply, err
		}
		switch {
		case !w.newName && r.MaxTokens > 0 && strings.Contains(refused.body, "max_completion_tokens"):
			w.newName = true
			c.newName.Store(true)
		case !w.noTemperature && refused.refusesTemperature():
			w.noTemperature = true
			c.noTemperature.Store(true)
		default:
			return reply, err
		}
	}
}

// post sends one request. An error is a *retry.Transient if another attempt may succeed.
func (c *Client) post(parent context.Context, r Request, w requestForm) (Reply, error) {
	body, err := r.body(w)
	if err != nil {
		return Reply{}, err
	}
	ctx, cancel := context.WithTimeout(parent, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint, bytes.NewReader(body))
	if err != nil {
		return Reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, raw, err := retry.Attempt(parent, c.http, req, maxReply) // Complete names the address
	switch {
	case err != nil:
		return Reply{}, err
	case resp.StatusCode != http.StatusOK:
		return Reply{}, c.statusError(resp, string(raw))
	}
	return c.read(raw)
}

// read reads the body of a reply with status 200. Some servers report errors in such a reply, next to choices or
// instead of them.
func (c *Client) read(raw []byte) (Reply, error) {
	var answer struct {
		Choices []struct {
			Message *Message        `json:"message"`
			Finish  string          `json:"finish_reason"`
			Error   json.RawMessage `json:"error"`
		} `json:"choices"`
		Usage  json.RawMessage `json:"usage"`
		Object string          `json:"object"`
		Error  json.RawMessage `json:"error"`
	}
	err := json.Unmarshal(bytes.TrimPrefix(raw, []byte("\ufeff")), &answer)
	if !noError(answer.Error) {
		return Reply{}, c.bodyError(raw, answer.Error)
	}
	if err != nil {
		return Reply{}, fmt.Errorf("no chat completion (%v): %s", err, c.quote(string(raw)))
	}
	if len(answer.Choices) == 0 {
		if answer.Object == "error" { // older vLLM servers
			return Reply{}, c.bodyError(raw, raw)
		}
		return Reply{}, fmt.Errorf("no chat completion: %s", c.quote(string(raw)))
	}
	first := answer.Choices[0]
	reply := Reply{Finish: finish(first.Finish), Usage: usageOf(answer.Usage)}
	switch {
	case !noError(first.Error) || reply.Finish == finishError:
		return Reply{}, c.bodyError(raw, first.Error)
	case first.Message != nil:
		reply.Message = *first.Message
	case reply.Finish != "content_filter" && reply.Finish != "length":
		return Reply{}, &retry.Transient{Err: fmt.Errorf("a choice without a message: %s", c.quote(string(raw)))}
	}
	return reply, nil
}

// quote shortens a server's reply for an error and removes the key from it.
func (c *Client) quote(s string) string {
	return strconv.Quote(texts.Excerpt(c.Redact(s), maxQuoted))
}

// Redact removes the key from text that the server wrote.
func (c *Client) Redact(s string) string {
	if c.key == "" {
		return s
	}
	return strings.ReplaceAll(s, c.key, "[key]")
}
