package config

// Search finds passages in a local corpus.
type Search struct {
	ToolBase `yaml:",inline"`

	// A JSONL file or a folder of Markdown.
	Corpus Path `yaml:"corpus"`

	// Folder for the index of the corpus. The first process that needs the index builds it, and all share it. Absent:
	// each agent builds one in memory.
	Index Path `yaml:"index" change:"worker"`

	// Passages in one answer.
	Results int `yaml:"results" default:"3" min:"1" max:"100"`
}

// Visit fetches a web page and returns its text.
type Visit struct {
	ToolBase `yaml:",inline"`

	// Hosts that may be visited: example.org, *.example.org (all hosts below it), * (any); with :PORT if it is not the
	// scheme's default.
	Hosts []string `yaml:"hosts"`

	// http, https or both.
	Schemes []string `yaml:"schemes" default:"[https]"`

	// Private, loopback or link-local networks, such as 10.1.0.0/16, to which connections are allowed. Absent: only
	// public addresses.
	Networks []string `yaml:"networks"`

	// Largest number of bytes of a page; longer pages are errors.
	MaxPage int64 `yaml:"max_page" default:"2097152" min:"1" max:"67108864"`

	// User-Agent of requests. The part before / or a space is the name that robots.txt refers to. Many sites require a
	// contact address in it.
	UserAgent string `yaml:"user_agent" default:"mgrpo"`

	// true: links in the text are Markdown links with their addresses, so that the model can follow them.
	Links bool `yaml:"links" default:"false"`
}

// Retriever asks any HTTP service that answers a query with documents.
type Retriever struct {
	ToolBase `yaml:",inline"`
	Service  `yaml:",inline"`

	// Documents in one answer.
	Results int `yaml:"results" default:"3" min:"1" max:"100"`

	// Go template that makes the request from .Query and .Results: JSON, or a query string that begins with ?. Absent:
	// the form of Search-R1's retriever (docs/tools.md).
	Request string `yaml:"request"`

	// Go template that makes the text for the model from the JSON of the reply. Absent: for replies of Search-R1's
	// retriever.
	Response string `yaml:"response"`
}

// Calculator evaluates an expression.
type Calculator struct {
	ToolBase `yaml:",inline"`
}

// Python runs programs in a sandbox of the system (Linux).
type Python struct {
	ToolBase `yaml:",inline"`

	// The interpreter, a name in PATH or a path. If it belongs to a virtual environment, programs may import that
	// environment's packages.
	Interpreter string `yaml:"interpreter" default:"python3" change:"worker"`

	// Bytes of address space of a program.
	MaxMemory int64 `yaml:"max_memory" default:"536870912" min:"67108864" max:"1e15"`

	// Bytes that a program may store in /tmp, its only writable folder. /tmp is removed when the program ends.
	MaxFiles int64 `yaml:"max_files" default:"16777216" min:"4096" max:"1e15"`
}

// MCP offers the tools of any MCP server: a program on stdio, or a server over HTTP.
type MCP struct {
	ToolBase `yaml:",inline"`
	Service  `yaml:",inline"`

	// Program and arguments of a server on stdio, in place of url.
	Command []string `yaml:"command"`

	// Working folder of command. Absent: the folder of this file.
	Dir Path `yaml:"dir" default:"." change:"worker"`

	// Names of environment variables passed on to command. Values of 8 bytes or more are treated as secrets and
	// replaced in the server's output.
	Env []string `yaml:"env" applies:"command"`

	// Prefix of the names of the server's tools, such as github_, in case two servers have a tool with the same name.
	Prefix string `yaml:"prefix"`

	// The server's tools to offer, by the server's names. Absent: all.
	Only []string `yaml:"only"`
}

// Service is a server over HTTP that a tool calls.
type Service struct {
	// Address of the server.
	URL string `yaml:"url"`

	// Environment variable whose value is sent to url as a bearer token.
	TokenEnv string `yaml:"token_env" change:"worker"`
}

func (s *Service) secretEnv() string { return s.TokenEnv }
