// Package mcp has the tools of any server of the Model Context Protocol, a program or a URL.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

// StartTime is the time that a server has to start. It may be longer than the time of a call: npx and uvx download the server first.
const StartTime = time.Minute

// reconnectPause is the least time between two attempts to start a server.
const reconnectPause = 5 * time.Second

// Client is a server and its tools. If the connection is lost during a call, Client reconnects, restarts the program if there
// is one, and repeats the call once.
type Client struct {
	cfg   Options
	tools []tool.Tool

	turn    chan struct{} // a mutex that can be awaited with a context; guards the fields below
	session *connection   // nil: closed or lost
	closed  bool
	wait    time.Time // no reconnection before this time

	life    context.Context // ends with Close
	end     context.CancelFunc
	closing sync.WaitGroup // counts lost sessions that are being closed, and a start
}

var errGone = errors.New("the server is gone and could not be started again")

func oneToken() chan struct{} {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return turn
}

// newClient returns a client without a session.
func newClient(cfg Options) *Client {
	m := &Client{cfg: cfg, turn: oneToken()}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

// Connect starts the server or connects to it, and lists its tools. ctx limits only the set-up. The caller must call
// Close.
func Connect(ctx context.Context, cfg Options) (*Client, error) {
	m := newClient(cfg)
	if cfg.Cache.Replays() {
		if err := m.readCachedTools(ctx); err != nil {
			return nil, fmt.Errorf("mcp: tools of %s: %w", cfg, err)
		}
		return m, nil
	}
	session, err := cfg.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("mcp: connecting to %s: %w", cfg, err)
	}
	m.session = session
	if err = m.list(ctx); err != nil {
		err = session.explain(errors.Join(err, m.Close()), cfg)
	} else if err = m.cacheTools(ctx); err != nil {
		err = errors.Join(err, m.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("mcp: tools of %s: %w", cfg, err)
	}
	return m, nil
}

// call makes a call. If the connection is lost, it reconnects and repeats the call once.
func (m *Client) call(ctx context.Context, params *mcp.CallToolParams) (*mcp.CallToolResult, error) {
	session, err := m.openSession(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	result, err := session.CallTool(ctx, params)
	if ctx.Err() != nil || !sessionEnded(err) {
		return result, err
	}
	if session, err = m.openSession(ctx, session, err); err != nil {
		return nil, err
	}
	return session.CallTool(ctx, params)
}

// openSession returns the session. It starts a new session if the current one is gone or does not exist. If ctx ends first, the start
// continues for later calls.
func (m *Client) openSession(ctx context.Context, gone *connection, cause error) (*connection, error) {
	select {
	case <-m.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release := func() { m.turn <- struct{}{} }
	if m.session != nil && m.session == gone {
		m.closeLost(cause)
	}
	if m.closed || m.session != nil || time.Now().Before(m.wait) {
		defer release()
		return m.session, m.unreachable()
	}
	started := make(chan struct{})
	m.closing.Go(func() {
		defer close(started)
		defer release()
		m.start()
	})
	select {
	case <-started:
		return m.openSession(ctx, nil, nil)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// unreachable returns the reason why there is no session, or nil. The caller must hold the turn.
func (m *Client) unreachable() error {
	switch {
	case m.closed:
		return errors.New("the server is closed")
	case m.session == nil:
		return &retry.Transient{Err: errGone, After: time.Until(m.wait)}
	}
	return nil
}

// start starts a session, or sets the time of the next attempt. The caller must hold the turn.
func (m *Client) start() {
	ctx, cancel := context.WithTimeout(m.life, StartTime)
	defer cancel()
	session, err := m.cfg.connect(ctx)
	if err != nil && m.life.Err() != nil {
		return // Close has cancelled it
	}
	if err != nil {
		m.wait = time.Now().Add(reconnectPause)
		m.reportFailure(err)
		return
	}
	m.session = session
}

// closeLost closes a lost session and reports the loss.
func (m *Client) closeLost(cause error) {
	gone := m.session
	m.session = nil
	if gone.stderr == nil { // other calls may be in flight, and Close waits for them
		m.closing.Go(func() { _ = gone.Close() })
	} else {
		_ = gone.Close() // kills the process if it still runs
	}
	m.reportFailure(gone.explain(cause, m.cfg))
}

// reportFailure passes the reason of a failure to Options.Lost, without secrets.
func (m *Client) reportFailure(why error) {
	if m.cfg.Lost != nil {
		m.cfg.Lost(fmt.Sprintf("%s: %v", m.cfg, tool.Redact(why.Error(), m.cfg.Secrets())))
	}
}

// Tools returns the server's tools.
func (m *Client) Tools() []tool.Tool { return slices.Clone(m.tools) }

// Close ends the session, and the program if there is one. Later calls fail.
func (m *Client) Close() error {
	m.end()
	<-m.turn
	defer func() { m.turn <- struct{}{} }()
	m.closed = true
	defer m.closing.Wait()
	if m.session == nil {
		return nil
	}
	err := m.session.Close()
	m.session = nil
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil // the exit status of a server that we ended is not an error
	}
	return err
}
