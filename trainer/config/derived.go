package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Values that depend on several keys.

// Slots returns the number of sequences of an agent that sample at once on each sampling device.
// It is engine.slots or, if that is 0, a device's share of the rollouts of a step, at most 128.
func (c *Config) Slots(a *Agent) int {
	if n := a.Engine.Slots; n > 0 {
		return n
	}
	const maxSlots = 128
	n := a.engines()
	return min((c.Task.QueriesPerStep*c.GRPO.Rollouts+n-1)/n, maxSlots)
}

// Conversations returns the number of conversations that an agent holds at once on each sampling device. It is at least
// Slots.
func (c *Config) Conversations(a *Agent) int { return max(a.Engine.Conversations, c.Slots(a)) }

// ConversationsAtOnce returns the number of conversations that an agent holds at once on all devices.
func (c *Config) ConversationsAtOnce(a *Agent) int { return a.engines() * c.Conversations(a) }

// engines returns the number of an agent's devices that sample. Servers have their own settings, so it is 1 for them.
func (a *Agent) engines() int {
	if a.Engine.Remote() {
		return 1
	}
	return len(a.Ranks())
}

// ContextTokens returns the largest number of tokens of a conversation, for a model with the given number of positions.
func (a *Agent) ContextTokens(positions int) int {
	return min(positions, a.Limits.MaxTokens)
}

// Foldable returns an error if limits.fold.at leaves too little room, for a model with the given number of positions. The
// summary must be shorter than at, because the next stretch begins with it. The room after at must hold one turn, the
// shortest form of its results with the request for a summary, and the summary.
func (a *Agent) Foldable(positions int) error {
	const request = 64
	at, turn, all := a.Limits.Fold.At, a.Limits.MaxNewTokens, a.ContextTokens(positions)
	switch {
	case at == 0:
		return nil
	case at <= turn:
		return fmt.Errorf("must be above max_new_tokens, %d: a summary may have this number of tokens", turn)
	case at > all-2*turn-request:
		return fmt.Errorf("must be at most %d: a conversation may have %d tokens, and after at follow a turn and a summary of max_new_tokens, %d, "+
			"each, and %d tokens that request the summary",
			all-2*turn-request, all, turn, request)
	}
	return nil
}

// CacheSize is the size of an engine's key-value cache.
type CacheSize struct {
	Slots         int // sequences that sample at once
	Conversations int // conversations with cached keys and values
	Context       int // tokens of the longest conversation
	Tokens        int // tokens of all conversations, in whole blocks
}

// CacheOf returns the cache size of an engine that samples for several agents, with room for the settings of each. The
// model has the given number of positions. Servers have their own caches, so their agents do not count.
func (c *Config) CacheOf(agents []*Agent, positions int) (sum CacheSize) {
	for _, a := range agents {
		if a.Engine.Remote() {
			continue
		}
		slots, context, tokens := c.Slots(a), a.ContextTokens(positions), a.Engine.CacheTokens
		if tokens == 0 {
			tokens = arch.WholeCache(slots, context)
		}
		sum.Slots += slots
		sum.Conversations += c.Conversations(a)
		sum.Context = max(sum.Context, context)
		sum.Tokens += arch.WholeCache(1, tokens)
	}
	return sum
}

// Ranks returns the devices of an agent, the devices of the first machine first. Each has its own process. The first
// device belongs to the agent's worker.
func (a *Agent) Ranks() []string { return slices.Repeat(a.OnMachine(), max(a.Machines.Count, 1)) }

// OnMachine returns the devices that an agent has on each machine. Equal devices have equal names: cuda becomes cuda:0.
func (a *Agent) OnMachine() []string {
	out := slices.Clone(a.Devices)
	if len(out) == 0 {
		out = []string{a.Device}
	}
	for i, d := range out {
		if d == "cuda" {
			out[i] = "cuda:0"
		}
	}
	return out
}

// CheckAgents returns an error if the configuration does not have all the named agents, if one is named twice, or if names is empty but
// not nil, which stands for all agents.
func CheckAgents(c *Config, names []string) error {
	if names != nil && len(names) == 0 {
		return errors.New("the list of agents is empty: name agents of the configuration, or give nil for all of them")
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("the agent %q is named twice", name)
		}
		if c.Agent(name) == nil {
			return fmt.Errorf("there is no agent %q in the configuration, only %s", name, strings.Join(c.AgentNames(), ", "))
		}
	}
	return nil
}

// OfMachine returns the agent with the given name if it has that further machine.
func (c *Config) OfMachine(machine int, name string) (*Agent, error) {
	if err := CheckAgents(c, []string{name}); err != nil {
		return nil, err
	}
	a := c.Agent(name)
	if machine < 1 || machine >= a.Machines.Count {
		return nil, fmt.Errorf("there is no machine %d of %s: agents.%s.machines.count is %d, and the further machines are numbered from 1", machine, name,
			name, a.Machines.Count)
	}
	return a, nil
}

// OnOneMachine returns the configuration for commands other than training, which use only one machine.
func (c *Config) OnOneMachine() *Config {
	own := *c
	own.Agents = slices.Clone(c.Agents)
	for i := range own.Agents {
		own.Agents[i].Machines = Machines{Count: 1}
	}
	return &own
}

// Remote reports whether servers sample the agent's turns.
func (e *Engine) Remote() bool { return e.Kind != "local" }

// ComputesBF16 reports whether forward passes compute in bf16. Weights that training changes then have an fp32 master
// copy.
func (a *Agent) ComputesBF16() bool {
	return a.Model.Module == nil && (a.DType == "bf16" || (a.DType == "auto" || a.Quantised()) && a.Device != "cpu")
}

// HalfCache reports whether the keys and values of sampled sequences are bf16 where the model computes in fp32.
func (a *Agent) HalfCache() bool { return a.Engine.DType == "bf16" || a.Engine.CacheDType == "bf16" }

// IsMain reports whether the agent has the role main.
func (a *Agent) IsMain() bool { return a.Role == "main" }

// Quantised reports whether the matrices of the agent's model stay in the blocks of their GGUF file.
func (a *Agent) Quantised() bool { return a.DType == "quantised" }

// Adapts reports whether the agent trains adapters in place of its model's weights.
func (a *Agent) Adapts() bool { return a.LoRA.R > 0 || a.LoRA.Folder() != "" }

// Folder returns the folder of the adapter to continue with, or "" if the adapters are new.
func (l LoRA) Folder() Path {
	if l.Init == "uniform" || l.Init == "gaussian" {
		return ""
	}
	return l.Init
}

// PlayedByProgram reports whether a program plays the rollouts through the gateway.
func (c *Config) PlayedByProgram() bool {
	return len(c.Task.Program.Command) > 0 || c.Task.Program.Elsewhere
}

// HasGateway reports whether the agents answer requests of programs.
func (c *Config) HasGateway() bool { return c.Gateway.Listen != "" || c.PlayedByProgram() }

// SecretEnv returns the names of the environment variables that hold keys and passwords of this process. Programs must
// not inherit them.
func (c *Config) SecretEnv() []string {
	names := []string{c.Store.PasswordEnv, c.Gateway.TokenEnv, c.Health.TokenEnv, c.Task.Judge.KeyEnv}
	for _, a := range c.Agents {
		names = append(names, a.Engine.KeyEnv, a.Machines.KeyEnv)
		if a.Model.Endpoint != nil {
			names = append(names, a.Model.Endpoint.KeyEnv)
		}
	}
	for _, t := range c.Tools {
		if s, ok := t.(interface{ secretEnv() string }); ok { // a Service
			names = append(names, s.secretEnv())
		}
	}
	return names
}
