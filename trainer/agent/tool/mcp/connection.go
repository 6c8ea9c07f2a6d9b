package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

const mcpTermination = 2 * time.Second

// mcpVersion is the newest protocol version in which a client begins with initialize. Newer clients begin with
// server/discover, and older servers then report an error or exit.
const mcpVersion = "2025-11-25"

// connection is one connection to the server.
type connection struct {
	*mcp.ClientSession
	stderr *texts.Tail // nil: the server is not a program
}

// connect starts a session.
func (c Options) connect(ctx context.Context) (*connection, error) {
	transport, err := c.transport()
	if err != nil {
		return nil, err
	}
	s := &connection{}
	if program, ok := transport.(*mcp.CommandTransport); ok {
		s.stderr = &texts.Tail{Max: 4 << 10}
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

func (c Options) transport() (mcp.Transport, error) {
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
		token, err := secret.FromEnv(c.String(), c.TokenEnv)
		if err != nil {
			return nil, err
		}
		return &mcp.StreamableClientTransport{
			Endpoint:             c.URL,
			HTTPClient:           &http.Client{Transport: boundedTransport{token}, CheckRedirect: checkRedirect},
			DisableStandaloneSSE: true, // the client does not use messages that the server sends on its own
		}, nil
	}
	return nil, errors.New("an MCP server needs either a command or a URL")
}

// explain removes secrets from an error and adds the server's last output on stderr. The server must have ended.
func (s *connection) explain(err error, c Options) error {
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

// sessionEnded reports whether an error means that the session has ended.
func sessionEnded(err error) bool {
	for _, end := range []error{mcp.ErrConnectionClosed, mcp.ErrSessionMissing, io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	var unreachable *url.Error
	return errors.As(err, &unreachable)
}
