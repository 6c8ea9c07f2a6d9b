package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxMCPTools    = 256
	maxMCPResponse = 16 << 20 // bytes of one HTTP response
	mcpTermination = 2 * time.Second
)

// MCPConfig names a server of the Model Context Protocol: a program on stdio or an address of streamable
// HTTP.
type MCPConfig struct {
	Command  []string // program and arguments
	Env      []string // names of environment variables that the program gets, beside PATH and HOME
	URL      string   // instead of Command
	TokenEnv string   // name of the environment variable that holds URL's bearer token; "": none is sent
}

// MCP is a connection to a server.
type MCP struct {
	session *mcp.ClientSession
	tools   []Tool
}

// ConnectMCP starts or reaches the server and lists its tools. ctx bounds the set-up alone. Close it.
func ConnectMCP(ctx context.Context, cfg MCPConfig) (*MCP, error) {
	transport, err := cfg.transport()
	if err != nil {
		return nil, fmt.Errorf("mcp: %w", err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "mgrpo", Version: "1"}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		return nil, fmt.Errorf("mcp: connecting to %s: %w", cfg, err)
	}
	m := &MCP{session: session}
	if err := m.list(ctx); err != nil {
		return nil, fmt.Errorf("mcp: tools of %s: %w", cfg, errors.Join(err, m.Close()))
	}
	return m, nil
}

// String names the server without what may be secret: arguments, the query of an address.
func (c MCPConfig) String() string {
	if len(c.Command) > 0 {
		return c.Command[0]
	}
	address, _, _ := strings.Cut(c.URL, "?")
	return address
}

// Secrets are the values that must not appear in what a tool of this server says: for Limits.Secrets.
func (c MCPConfig) Secrets() []string {
	var secrets []string
	for _, name := range c.Env {
		secrets = append(secrets, os.Getenv(name))
	}
	if c.TokenEnv != "" {
		secrets = append(secrets, os.Getenv(c.TokenEnv))
	}
	return secrets
}

func (c MCPConfig) transport() (mcp.Transport, error) {
	switch {
	case len(c.Command) > 0 && c.URL == "":
		cmd := exec.Command(c.Command[0], c.Command[1:]...)
		for _, name := range append([]string{"PATH", "HOME"}, c.Env...) {
			if value, ok := os.LookupEnv(name); ok {
				cmd.Env = append(cmd.Env, name+"="+value)
			} else if slices.Contains(c.Env, name) {
				return nil, fmt.Errorf("%s: the environment variable %s is not set", c, name)
			}
		}
		return &mcp.CommandTransport{Command: cmd, TerminateDuration: mcpTermination}, nil
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
			DisableStandaloneSSE: true, // nothing a server says unasked is of use here
		}, nil
	}
	return nil, errors.New("a server needs either a command or a URL")
}

// list asks for the tools once: what a model may call does not change within a run.
func (m *MCP) list(ctx context.Context) error {
	for t, err := range m.session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		if len(m.tools) == maxMCPTools {
			return fmt.Errorf("more than %d", maxMCPTools)
		}
		schema, err := json.Marshal(t.InputSchema)
		if err != nil {
			return fmt.Errorf("%s: its schema: %w", t.Name, err)
		}
		m.tools = append(m.tools, mcpTool{m.session, t.Name, t.Description, schema})
	}
	return nil
}

// Tools are the server's tools.
func (m *MCP) Tools() []Tool { return slices.Clone(m.tools) }

// Close ends the session, and the program if there is one.
func (m *MCP) Close() error {
	err := m.session.Close()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil // how a server that was told to end exits is its own affair
	}
	return err
}

type mcpTool struct {
	session           *mcp.ClientSession
	name, description string
	schema            json.RawMessage
}

func (t mcpTool) Name() string            { return t.name }
func (t mcpTool) Description() string     { return t.description }
func (t mcpTool) Schema() json.RawMessage { return t.schema }

func (t mcpTool) Call(ctx context.Context, args json.RawMessage) (string, error) {
	result, err := t.session.CallTool(ctx, &mcp.CallToolParams{Name: t.name, Arguments: args})
	if err != nil {
		return "", err
	}
	text := contentText(result)
	if result.IsError {
		if text == "" {
			text = t.name + " failed without saying why"
		}
		return "", errors.New(text)
	}
	return text, nil
}

// contentText is what a model can read of a result.
func contentText(r *mcp.CallToolResult) string {
	var parts []string
	for _, c := range r.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			parts = append(parts, c.Text)
		case *mcp.EmbeddedResource:
			if c.Resource != nil && c.Resource.Text != "" {
				parts = append(parts, c.Resource.Text)
				continue
			}
			parts = append(parts, "[a resource that is not text]")
		default:
			parts = append(parts, fmt.Sprintf("[content that is not text: %s]", strings.TrimPrefix(fmt.Sprintf("%T", c), "*mcp.")))
		}
	}
	if len(parts) == 0 && r.StructuredContent != nil {
		if b, err := json.Marshal(r.StructuredContent); err == nil {
			parts = append(parts, string(b))
		}
	}
	return strings.Join(parts, "\n")
}

// refuseRedirect keeps a token with the server it was given for.
func refuseRedirect(r *http.Request, _ []*http.Request) error {
	return fmt.Errorf("the server redirects to %s: give its final address", r.URL.Host)
}

// boundedTransport adds the token and bounds the size of a response.
type boundedTransport struct{ token string }

func (t boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if t.token != "" {
		r.Header.Set("Authorization", "Bearer "+t.token)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = &boundedBody{response.Body, maxMCPResponse}
	return response, nil
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the server's response has more than %d bytes", maxMCPResponse)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
