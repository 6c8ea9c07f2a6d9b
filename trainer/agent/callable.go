package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/internal/jsonschemas"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// SubAgent is a sub-agent as its main agent sees it: a function with one string argument, "task".
type SubAgent struct {
	Name        string
	Description string
}

// taskArgument is the only argument of a call to a sub-agent.
const taskArgument = "task"

var subAgentSchema = json.RawMessage(`{"type":"object","properties":{"task":{"type":"string",` +
	`"description":"What to do, complete in itself: the helper sees nothing else."}},"required":["task"]}`)

// maxProblem is the length in bytes of the longest error about arguments. Such an error may quote the arguments.
const maxProblem = 400

// Callables are the functions that a chat offers to its model: sub-agents and tools.
type Callables struct {
	names       []string // in the order offered
	byName      map[string]callable
	definitions []json.RawMessage // OpenAI function definitions, in the order offered
}

type callable struct {
	delegate bool
	schema   *jsonschema.Resolved // nil: only the tool checks the arguments
}

// definition is an OpenAI function definition.
type definition struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// NewCallables returns an error if two functions have the same name, if one has no name, or if its JSON Schema is not
// valid JSON.
func NewCallables(subAgents []SubAgent, tools []tool.Tool) (*Callables, error) {
	c := &Callables{byName: map[string]callable{}}
	for _, a := range subAgents {
		if err := c.add(a.Name, a.Description, subAgentSchema, true); err != nil {
			return nil, err
		}
	}
	for _, t := range tools {
		if err := c.add(t.Name(), t.Description(), t.Schema(), false); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// CallablesOf reads OpenAI function definitions that a program offers to a model. Calls of them are checked like calls
// of an agent's own tools.
func CallablesOf(definitions []json.RawMessage) (*Callables, error) {
	c := &Callables{byName: map[string]callable{}}
	for _, d := range definitions {
		var parsed definition
		if err := json.Unmarshal(d, &parsed); err != nil {
			return nil, fmt.Errorf("tool definition %s: %w", d, err)
		}
		schema := parsed.Function.Parameters
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object"}`)
		}
		if err := c.add(parsed.Function.Name, parsed.Function.Description, schema, false); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Callables) add(name, description string, schema json.RawMessage, delegate bool) error {
	if name == "" {
		return fmt.Errorf("a tool or sub-agent has no name")
	}
	if _, taken := c.byName[name]; taken {
		return fmt.Errorf("two tools or sub-agents are named %q: rename one, "+
			"or give an MCP server a prefix or a list of its tools (tools.NAME.prefix, only)", name)
	}
	if !json.Valid(schema) {
		return fmt.Errorf("tool %s: its JSON Schema is not JSON", name)
	}
	// This cannot fail: the schema is valid, and texts can always be encoded.
	written, _ := callformat.Plain(definition{"function", function{name, description, schema}})
	c.names = append(c.names, name)
	c.definitions = append(c.definitions, written)
	// If the schema uses keywords or values of a draft that the validator does not support, or takes too long to check, only the tool
	// checks its arguments, as MCP servers always do.
	resolved, _ := jsonschemas.Resolve(schema)
	c.byName[name] = callable{delegate, resolved}
	return nil
}

// Definitions returns OpenAI function definitions, in the order offered. The caller must not change them.
func (c *Callables) Definitions() []json.RawMessage { return c.definitions }

// Call turns a parsed call into a Call. If the call cannot be executed, its Problem is the reason.
func (c *Callables) Call(p callformat.Call) dialect.Call {
	call := dialect.Call{Name: p.Name, Arguments: p.Arguments, Problem: p.Problem}
	if call.Problem != "" {
		return call
	}
	bad := func(format string, args ...any) dialect.Call {
		call.Problem = texts.Excerpt(fmt.Sprintf(format, args...), maxProblem)
		return call
	}
	target, known := c.byName[p.Name]
	if !known {
		return bad("there is no tool %q. Tools: %s.", p.Name, cmp.Or(strings.Join(c.names, ", "), "none"))
	}
	if target.schema != nil {
		var instance any
		if err := json.Unmarshal(p.Arguments, &instance); err != nil {
			return bad("the arguments of %s are not valid JSON: %v", p.Name, err)
		}
		if err := target.schema.Validate(instance); err != nil {
			return bad("the arguments of %s do not fit its schema: %v", p.Name, err)
		}
	}
	if target.delegate {
		var arguments map[string]json.RawMessage
		// Validate has made sure that this key has a string.
		_ = json.Unmarshal(p.Arguments, &arguments)
		_ = json.Unmarshal(arguments[taskArgument], &call.Task)
		call.Delegate = true
		if strings.TrimSpace(call.Task) == "" {
			call.Problem = fmt.Sprintf("the task given to %s is empty", p.Name)
		}
	}
	return call
}
