// Package mcp has the tools of any server of the Model Context Protocol, a program or a URL.
package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
	"github.com/mgrpo/mgrpo/trainer/internal/tail"
)

const (
	maxMCPTools    = 10_000   // tools that a server may list
	maxMCPResponse = 16 << 20 // bytes of one HTTP response
	mcpTermination = 2 * time.Second
	shortestSecret = 8 // bytes of a variable's value; a shorter value, such as 1, also occurs in answers by chance

	reconnectPause = 5 * time.Second // least time between two attempts to start a server

	// mcpVersion is the newest protocol version in which a client begins with initialize. Newer clients begin with
	// server/discover, and older servers then report an error or exit.
	mcpVersion = "2025-11-25"
)

// Config configures a server of the Model Context Protocol: a program on stdio, or a URL of streamable HTTP.
type Config struct {
	Name     string   // name in the configuration: servers with the same command may differ in their folder
	Command  []string // program and arguments
	Dir      string   // folder in which Command runs; "": the current folder
	Env      []string // names of environment variables passed to the program, in addition to PATH and HOME
	URL      string   // instead of Command
	TokenEnv string   // name of the environment variable with the bearer token for URL; "": no token is sent

	Prefix string   // prefix of the tools' names
	Only   []string // names of the tools to offer, as the server names them; nil: all

	Cache *recorded.Cache // stores the list of the tools; if it replays, no server is started; nil: no cache

	// Lost, if set, is called when the connection is lost. why includes the server's last output on stderr.
	Lost func(why string)

	// Note, if set, receives the lines on the standard output of Command that are not messages.
	Note func(text string)
}

// skipped reports a skipped line of the server.
func (c Config) skipped(line string) {
	if c.Note != nil {
		c.Note(fmt.Sprintf("%s: skipped a line on its standard output that is not a message: %q. A server should print such lines on standard error", c, tool.Redact(line, c.Secrets())))
	}
}

// Client is a server and its tools. If the connection is lost during a call, Client reconnects, restarts the program if there
// is one, and repeats the call once.
type Client struct {
	cfg   Config
	tools []tool.Tool

	turn    chan struct{} // a mutex that can be awaited with a context; guards the fields below
	session *connection   // nil: closed or lost
	closed  bool
	wait    time.Time // no reconnection before this time

	closing sync.WaitGroup // counts lost sessions that are being closed
}

var errGone = errors.New("the server is gone and could not be started again")

func oneToken() chan struct{} {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return turn
}

// connection is one connection to the server.
type connection struct {
	*mcp.ClientSession
	stderr *tail.Writer // nil: the server is not a program
}

// Connect starts the server or connects to it, and lists its tools. ctx limits only the set-up. The caller must call
// Close.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	m := &Client{cfg: cfg, turn: oneToken()}
	if cfg.Cache.Replays() {
		if err := m.recall(ctx); err != nil {
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
	} else if err = m.keep(ctx); err != nil {
		err = errors.Join(err, m.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("mcp: tools of %s: %w", cfg, err)
	}
	return m, nil
}

// connect starts a session.
func (c Config) connect(ctx context.Context) (*connection, error) {
	transport, err := c.transport()
	if err != nil {
		return nil, err
	}
	s := &connection{}
	if program, ok := transport.(*mcp.CommandTransport); ok {
		s.stderr = &tail.Writer{Max: 4 << 10}
		program.Command.Stderr = s.stderr
		program.Command.WaitDelay = mcpTermination // a child of the server may keep stderr open
		transport = &stdioTransport{command: program.Command, note: c.skipped}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "mgrpo", Version: "1"}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	s.ClientSession, err = client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: mcpVersion})
	if err != nil {
		return nil, s.explain(err, c)
	}
	return s, nil
}

// explain removes secrets from an error and adds the server's last output on stderr. The server must have ended.
func (s *connection) explain(err error, c Config) error {
	err = tool.RedactError(err, c.Secrets())
	if s.stderr == nil {
		return err
	}
	text := strings.TrimSpace(tool.Redact(s.stderr.Lines(), c.Secrets())) // Redact would not recognise half a secret
	if text == "" {
		return err
	}
	return fmt.Errorf("%w; its last output on stderr:\n%s", err, text)
}

// call makes a call. If the connection is lost, it reconnects and repeats the call once.
func (m *Client) call(ctx context.Context, params *mcp.CallToolParams) (*mcp.CallToolResult, error) {
	session, err := m.reach(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	result, err := session.CallTool(ctx, params)
	if ctx.Err() != nil || !lost(err) {
		return result, err
	}
	if session, err = m.reach(ctx, session, err); err != nil {
		return nil, err
	}
	return session.CallTool(ctx, params)
}

// lost reports whether an error means that the session has ended.
func lost(err error) bool {
	for _, end := range []error{mcp.ErrConnectionClosed, mcp.ErrSessionMissing, io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	var unreachable *url.Error
	return errors.As(err, &unreachable)
}

// reach returns the session. It starts a new session if the current one is gone or does not exist.
func (m *Client) reach(ctx context.Context, gone *connection, cause error) (*connection, error) {
	select {
	case <-m.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { m.turn <- struct{}{} }()
	if m.session != nil && m.session == gone {
		m.closeLost(cause)
	}
	switch {
	case m.closed:
		return nil, errors.New("the server is closed")
	case m.session != nil:
		return m.session, nil
	case time.Now().Before(m.wait):
		return nil, &retry.Transient{Err: errGone, After: time.Until(m.wait)}
	}
	session, err := m.cfg.connect(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		m.wait = time.Now().Add(reconnectPause)
		m.tell(err)
		return nil, &retry.Transient{Err: errGone, After: reconnectPause}
	}
	m.session = session
	return session, nil
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
	m.tell(gone.explain(cause, m.cfg))
}

func (m *Client) tell(why error) {
	if m.cfg.Lost != nil {
		m.cfg.Lost(fmt.Sprintf("%s: %v", m.cfg, tool.Redact(why.Error(), m.cfg.Secrets())))
	}
}

// String returns the server's name without arguments and without the URL's query, which may be secret.
func (c Config) String() string {
	if len(c.Command) > 0 {
		return c.Command[0]
	}
	address, _, _ := strings.Cut(c.URL, "?")
	return address
}

// Secrets returns the values that must not appear in the output of this server's tools. They are meant for
// CallPolicy.Secrets.
func (c Config) Secrets() []string {
	var secrets []string
	for _, name := range c.Env {
		if value := os.Getenv(name); len(value) >= shortestSecret {
			secrets = append(secrets, value)
		}
	}
	if at := strings.Index(c.URL, "?"); at >= 0 {
		query, _, _ := strings.Cut(c.URL[at:], "#")
		secrets = append(secrets, query)
	}
	if c.TokenEnv != "" {
		secrets = append(secrets, os.Getenv(c.TokenEnv))
	}
	return secrets
}

func (c Config) transport() (mcp.Transport, error) {
	switch {
	case len(c.Command) > 0 && c.URL == "":
		cmd := exec.Command(c.Command[0], c.Command[1:]...)
		cmd.Dir = c.Dir
		for _, name := range append([]string{"PATH", "HOME"}, c.Env...) {
			if value, ok := os.LookupEnv(name); ok {
				cmd.Env = append(cmd.Env, name+"="+value)
			} else if slices.Contains(c.Env, name) {
				return nil, fmt.Errorf("%s: the environment variable %s (env) is not set", c, name)
			}
		}
		return &mcp.CommandTransport{Command: cmd}, nil
	case len(c.Command) == 0 && c.URL != "":
		token := ""
		if c.TokenEnv != "" {
			if token = os.Getenv(c.TokenEnv); token == "" {
				return nil, fmt.Errorf("%s: the environment variable %s is not set", c, c.TokenEnv)
			}
		}
		return &mcp.StreamableClientTransport{
			Endpoint:             c.URL,
			HTTPClient:           &http.Client{Transport: boundedTransport{token}, CheckRedirect: refuseRedirect},
			DisableStandaloneSSE: true, // the client does not use messages that the server sends on its own
		}, nil
	}
	return nil, errors.New("an MCP server needs either a command or a URL")
}

// list asks the server for its tools, once: a model's tools do not change within a run.
func (m *Client) list(ctx context.Context) error {
	var seen []string
	for t, err := range m.session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		if seen = append(seen, t.Name); len(seen) > maxMCPTools {
			return fmt.Errorf("more than %d tools", maxMCPTools)
		}
		if !m.cfg.takes(t.Name) {
			continue
		}
		schema, err := json.Marshal(t.InputSchema)
		if err != nil {
			return fmt.Errorf("%s: its schema: %w", t.Name, err)
		}
		m.tools = append(m.tools, remoteTool{m, t.Name, t.Description, schema})
	}
	return m.cfg.missing(seen)
}

// takes reports whether a tool of the server should be offered.
func (c Config) takes(name string) bool { return len(c.Only) == 0 || slices.Contains(c.Only, name) }

// missing returns an error that names the first configured tool that the server does not have.
func (c Config) missing(have []string) error {
	for _, name := range c.Only {
		if !slices.Contains(have, name) {
			return fmt.Errorf("there is no tool %q (only): the server has %s", name, strings.Join(have, ", "))
		}
	}
	return nil
}

// listed is a tool in the cache's list.
type listed struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
}

// keep stores the list of the tools in the cache. A list that is already stored must be the same.
func (m *Client) keep(ctx context.Context) error {
	var list []listed
	for _, t := range m.tools {
		list = append(list, listed{t.(remoteTool).name, t.Description(), t.Schema()})
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	stored, err := m.cfg.Cache.Answer(ctx, m.cfg.listing(), func(context.Context) (recorded.Answer, error) { return recorded.Answer{Text: string(text)}, nil })
	if err == nil && stored.Text != string(text) {
		err = errors.New("the server's tools differ from those recorded in the cache: use another folder (cache.dir)")
	}
	return err
}

// recall reads the list of the tools from the cache.
func (m *Client) recall(ctx context.Context) error {
	stored, err := m.cfg.Cache.Answer(ctx, m.cfg.listing(), nil)
	if err != nil {
		return err
	}
	var list []listed
	if err := json.Unmarshal([]byte(stored.Text), &list); err != nil {
		return fmt.Errorf("the list in the cache: %w", err)
	}
	if len(list) > maxMCPTools {
		return fmt.Errorf("more than %d tools", maxMCPTools)
	}
	for _, t := range list {
		m.tools = append(m.tools, remoteTool{m, t.Name, t.Description, t.Schema})
	}
	return nil
}

func (c Config) listing() recorded.Question {
	return recorded.Question{Service: c.Service(), Text: "tools"}
}

// Service returns the server's name for the cache. It contains arguments and the URL's query, which may be secret, only
// as a digest.
func (c Config) Service() string {
	parts := []string{c.Name, strings.Join(c.Command, "\x00"), c.URL, strings.Join(c.Env, "\x00")}
	if len(c.Only) > 0 {
		parts = append(parts, strings.Join(c.Only, "\x00"))
	}
	return fmt.Sprintf("mcp %s %s", c, tool.Fingerprint(parts...))
}

// Tools returns the server's tools.
func (m *Client) Tools() []tool.Tool { return slices.Clone(m.tools) }

// Close ends the session, and the program if there is one. Later calls fail.
func (m *Client) Close() error {
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

type remoteTool struct {
	server            *Client
	name, description string
	schema            json.RawMessage
}

func (t remoteTool) Name() string            { return t.server.cfg.Prefix + t.name }
func (t remoteTool) Description() string     { return t.description }
func (t remoteTool) Schema() json.RawMessage { return t.schema }

func (t remoteTool) Call(ctx context.Context, args json.RawMessage) (string, error) {
	params := &mcp.CallToolParams{Name: t.name, Arguments: args}
	if o, ok := tool.OriginOf(ctx); ok {
		params.Meta = mcp.Meta{"mgrpo/query": o.Query, "mgrpo/rollout": o.Rollout, "mgrpo/agent": o.Agent, "mgrpo/invocation": o.Invocation}
		if o.Row != nil {
			params.Meta["mgrpo/row"] = o.Row
		}
	}
	var busy *retry.Transient
	result, err := t.server.call(context.WithValue(ctx, busyKey{}, &busy), params)
	var answer *jsonrpc.Error
	switch {
	case err != nil && busy != nil:
		return "", &retry.Transient{Err: tool.Failed(err), After: busy.After}
	case errors.As(err, &answer) && answer.Code == jsonrpc.CodeInvalidParams:
		return "", err
	case err != nil:
		return "", failedCall(err)
	}
	text, err := contentText(result)
	switch {
	case err != nil:
		return "", tool.Failed(err)
	case result.IsError:
		if text == "" {
			text = t.name + " failed without saying why"
		}
		return "", errors.New(text)
	}
	return text, nil
}

// failedCall returns the error of a failed call. It is transient if the server did not reply at all.
func failedCall(err error) error {
	var again *retry.Transient
	var answer *jsonrpc.Error
	switch {
	case errors.As(err, &again):
		return &retry.Transient{Err: tool.Failed(err), After: again.After}
	case errors.As(err, &answer):
		return tool.Failed(err)
	}
	return &retry.Transient{Err: tool.Failed(err)}
}
