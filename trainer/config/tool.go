package config

import "time"

// Tool is one tool that agents can call.
type Tool struct {
	Name string `yaml:"-"`

	// search: a local corpus. visit: the text of a web page. retriever: any HTTP service that answers a query with
	// documents. calculator: arithmetic. python: Python in a sandbox of the system (Linux). mcp: any MCP server
	// (docs/tools.md).
	Kind string `yaml:"kind" required:"true" enum:"search|visit|retriever|calculator|python|mcp"`

	// search: a JSONL file or a folder of Markdown.
	Corpus Path `yaml:"corpus"`

	// search: folder for the index of the corpus. The first process that needs the index builds it, and all share it.
	// Absent: each agent builds one in memory.
	Index Path `yaml:"index" change:"worker"`

	// mcp: program and arguments of a server on stdio.
	Command []string `yaml:"command"`

	// mcp: working folder of command. Absent: the folder of this file.
	Dir Path `yaml:"dir" default:"." change:"worker"`

	// mcp: names of environment variables passed on to command. Values of 8 bytes or more are treated as secrets and
	// replaced in the server's output.
	Env []string `yaml:"env"`

	// mcp: prefix of the names of the server's tools, such as github_, in case two servers have a tool with the same
	// name.
	Prefix string `yaml:"prefix"`

	// mcp: the server's tools to offer, by the server's names. Absent: all.
	Only []string `yaml:"only"`

	// mcp: address of a server over HTTP. retriever: address of the service.
	URL string `yaml:"url"`

	// mcp, retriever: environment variable whose value is sent to url as a bearer token.
	TokenEnv string `yaml:"token_env" change:"worker"`

	// search, retriever: results of one call.
	Results int `yaml:"results" default:"3" min:"1" max:"100"`

	// retriever: Go template that makes the request from .Query and .Results: JSON, or a query string that begins with
	// ?. Absent: the form of Search-R1's retriever (docs/tools.md).
	Request string `yaml:"request"`

	// retriever: Go template that makes the text for the model from the JSON of the reply. Absent: for replies of
	// Search-R1's retriever.
	Response string `yaml:"response"`

	Visit      `yaml:",inline"`
	Python     `yaml:",inline"`
	ToolLimits `yaml:",inline"`
}

// Python sets the interpreter of a tool of the kind python and the limits of its programs.
type Python struct {
	// python: the interpreter, a name in PATH or a path. If it belongs to a virtual environment, programs may import
	// that environment's packages.
	Interpreter string `yaml:"interpreter" default:"python3" change:"worker"`

	// python: bytes of address space of a program.
	MaxMemory int64 `yaml:"max_memory" default:"536870912" min:"67108864"`

	// python: bytes that a program may store in /tmp, its only writable folder. /tmp is removed when the program ends.
	MaxFiles int64 `yaml:"max_files" default:"16777216" min:"4096"`
}

// Visit configures which pages a tool of the kind visit may fetch.
type Visit struct {
	// visit: hosts that may be visited: example.org, *.example.org (all hosts below it), * (any); with :PORT if it is
	// not the scheme's default.
	Hosts []string `yaml:"hosts"`

	// visit: http, https or both.
	Schemes []string `yaml:"schemes" default:"[https]"`

	// visit: private, loopback or link-local networks, such as 10.1.0.0/16, to which connections are allowed. Absent:
	// only public addresses.
	Networks []string `yaml:"networks"`

	// visit: largest number of bytes of a page; longer pages are errors.
	MaxPage int64 `yaml:"max_page" default:"2097152" min:"1" max:"67108864"`

	// visit: User-Agent of requests. The part before / or a space is the name that robots.txt refers to. Many sites
	// require a contact address in it.
	UserAgent string `yaml:"user_agent" default:"mgrpo"`

	// visit: true: links in the text are Markdown links with their addresses, so that the model can follow them.
	Links bool `yaml:"links" default:"false"`
}

// ToolLimits limit the calls of a tool. Each agent's calls count separately.
type ToolLimits struct {
	// Time limit of one attempt at a call.
	Timeout time.Duration `yaml:"timeout" default:"10s" above:"0s"`

	// Further attempts at a call after a time-out or a temporary error, such as a busy server, with growing pauses.
	// Absent: 2 for visit and retriever, otherwise 0.
	Retries int `yaml:"retries" default:"0" min:"0" max:"100"`

	// Bytes of output shown to the model; the rest is cut off.
	MaxOutput int `yaml:"max_output" default:"4096" min:"1"`

	// Calls in one conversation: a rollout of the main agent, an invocation of a sub-agent. Further calls are refused.
	// 0: any number.
	MaxCalls int `yaml:"max_calls" default:"0" min:"0"`

	// Concurrent attempts of one agent. 0: any number.
	Parallel int `yaml:"parallel" default:"0" min:"0" max:"65536" change:"worker"`

	// Attempts begun per second by one agent. 0: any number.
	Rate float64 `yaml:"rate" default:"0" min:"0" change:"worker"`

	// false: never cached and always called, even in a replay. Use it for a server on this machine, and for a server
	// whose answers depend on more than the arguments, such as earlier calls.
	Cached bool `yaml:"cached" default:"true"`
}
