package mcp

import (
	"fmt"
	"os"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

// shortestSecret is the least number of bytes of a variable's value that is kept secret. A shorter value, such as 1, also occurs in
// answers by chance.
const shortestSecret = 8

// Options configures a server of the Model Context Protocol: a program on stdio, or a URL of streamable HTTP.
type Options struct {
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

	// Note, if set, receives a text about each of the first lines on the standard output of Command that are not messages.
	Note func(text string)
}

// skipped reports a skipped line of the server.
func (c Options) skipped(line string) {
	if c.Note != nil {
		c.Note(fmt.Sprintf("%s: skipped a line on its standard output that is not a message: %q. A server should print such lines on standard error", c,
			tool.Redact(line, c.Secrets())))
	}
}

// String returns the server's name without arguments and without the URL's query, which may be secret.
func (c Options) String() string {
	if len(c.Command) > 0 {
		return c.Command[0]
	}
	address, _, _ := strings.Cut(c.URL, "?")
	return address
}

// Secrets returns the values that must not appear in the output of this server's tools. They are meant for
// CallPolicy.Secrets.
func (c Options) Secrets() []string {
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

// Service returns the server's name for the cache. It contains arguments and the URL's query, which may be secret, only
// as a digest.
func (c Options) Service() string {
	parts := []string{c.Name, strings.Join(c.Command, "\x00"), c.URL, strings.Join(c.Env, "\x00")}
	if len(c.Only) > 0 {
		parts = append(parts, strings.Join(c.Only, "\x00"))
	}
	return fmt.Sprintf("mcp %s %s", c, tool.Fingerprint(parts...))
}
