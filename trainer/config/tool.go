package config

import (
	"reflect"
	"time"
)

// Tool is one tool that agents can call. Each kind has a type in toolkinds.go.
type Tool interface {
	// Base returns the settings that every kind has.
	Base() *ToolBase

	validate(d *decoder, key string)
}

// toolKind is a kind of tool.
type toolKind struct {
	name     string
	settings reflect.Type // a pointer to it is a Tool
	retries  int          // default of ToolBase.Retries
}

// calculator is the kind, and the name, of a tool that needs no entry in tools.
const calculator = "calculator"

// toolKinds lists all kinds of tools.
var toolKinds = []toolKind{
	{"search", reflect.TypeFor[Search](), 0},
	{"visit", reflect.TypeFor[Visit](), 2},
	{"retriever", reflect.TypeFor[Retriever](), 2},
	{calculator, reflect.TypeFor[Calculator](), 0},
	{"python", reflect.TypeFor[Python](), 0},
	{"mcp", reflect.TypeFor[MCP](), 0},
}

// kindNames returns the names of the kinds of tools that have a key.
func kindNames(key string) (names []string) {
	for _, k := range toolKinds {
		for _, f := range fields(k.settings) {
			if f.key == key {
				names = append(names, k.name)
			}
		}
	}
	return names
}

// newTool returns a tool with the defaults of its kind, which must exist.
func newTool(kind, name string) Tool {
	for _, k := range toolKinds {
		if k.name == kind {
			settings := reflect.New(k.settings)
			setDefaults(settings.Elem())
			t := settings.Interface().(Tool)
			t.Base().Name, t.Base().Kind, t.Base().Retries = name, kind, k.retries
			return t
		}
	}
	panic("config: no tool of kind " + kind)
}

// ToolBase holds the settings that every kind of tool has. Each agent's calls count separately.
type ToolBase struct {
	Name string `yaml:"-"`

	// The kind decides what the tool does (docs/tools.md) and which further keys it has.
	Kind string `yaml:"kind" required:"true" tool:"true"`

	// Time limit of one attempt at a call.
	Timeout time.Duration `yaml:"timeout" default:"10s" above:"0s"`

	// Further attempts at a call after a time-out or a temporary error, such as a busy server, with growing pauses.
	// Absent: 2 for visit and retriever, otherwise 0.
	Retries int `yaml:"retries" default:"0" min:"0" max:"100"`

	// Bytes of output shown to the model; the rest is cut off.
	MaxOutput int `yaml:"max_output" default:"4096" min:"1" max:"1e12"`

	// Calls in one conversation: a rollout of the main agent, an invocation of a sub-agent. Further calls are refused.
	// 0: any number.
	MaxCalls int `yaml:"max_calls" default:"0" min:"0" max:"1e9"`

	// Concurrent attempts of one agent. 0: any number.
	Parallel int `yaml:"parallel" default:"0" min:"0" max:"65536" change:"worker"`

	// Attempts begun per second by one agent. 0: any number.
	Rate float64 `yaml:"rate" default:"0" min:"0" change:"worker"`

	// false: never cached and always called, even in a replay. Use it for a server on this machine, and for a server
	// whose answers depend on more than the arguments, such as earlier calls.
	Cached bool `yaml:"cached" default:"true"`
}

// Base returns b.
func (b *ToolBase) Base() *ToolBase { return b }

// validate accepts the settings of a kind without rules of its own.
func (b *ToolBase) validate(*decoder, string) {}
