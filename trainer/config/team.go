package config

import (
	"slices"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// The agents of a team and their tools, in the arm of the run.

// Main returns the main agent. Every Config from Load has exactly one.
func (c *Config) Main() *Agent {
	for i := range c.Agents {
		if c.Agents[i].IsMain() {
			return &c.Agents[i]
		}
	}
	return nil
}

// Subs returns the sub-agents that take part, in the file's order. The arm single has none.
func (c *Config) Subs() []*Agent {
	var subs []*Agent
	for i := range c.Agents {
		if c.Agents[i].Role == "sub" && c.Run.Arm != "single" {
			subs = append(subs, &c.Agents[i])
		}
	}
	return subs
}

// ToolsOf returns the names of an agent's tools. In the arm single the main agent also has the sub-agents' tools.
func (c *Config) ToolsOf(a *Agent) []string {
	if c.Run.Arm != "single" {
		return a.Tools
	}
	tools := slices.Clone(a.Tools)
	for _, other := range c.Agents {
		for _, name := range other.Tools {
			if !slices.Contains(tools, name) {
				tools = append(tools, name)
			}
		}
	}
	return tools
}

// Agent returns the agent with a name, or nil.
func (c *Config) Agent(name string) *Agent {
	for i := range c.Agents {
		if c.Agents[i].Name == name {
			return &c.Agents[i]
		}
	}
	return nil
}

// Tool returns the tool with a name, or nil.
func (c *Config) Tool(name string) Tool {
	for _, t := range c.Tools {
		if t.Base().Name == name {
			return t
		}
	}
	if name == calculator {
		return newTool(calculator, name)
	}
	return nil
}

// Learns reports whether training changes an agent's weights: train is true, and the arm neither freezes the agent nor
// leaves it out.
func (c *Config) Learns(a *Agent) bool {
	return a.Train && (a.IsMain() || c.Run.Arm == "team")
}

// ColdStarts reports whether an agent has a cold start. The agent may be frozen afterwards.
func (c *Config) ColdStarts(a *Agent) bool {
	return a.ColdStart.Steps > 0 && c.ColdStart.Demonstrations != "none"
}

// Frozen reports whether the weights of an agent's model never change: it has adapters, or no phase trains it.
func (c *Config) Frozen(a *Agent) bool { return a.Adapts() || !c.Learns(a) && !c.ColdStarts(a) }

// HoldsBF16 reports whether an agent's model is held only in bf16, 2 bytes per parameter. That is so if the weights
// never change, and either all forward passes compute in bf16, or a CPU uses them only for sampling.
func (c *Config) HoldsBF16(a *Agent) bool {
	return c.Frozen(a) && !a.Quantised() && (a.ComputesBF16() || a.Engine.DType == "bf16" && !a.Adapts())
}

// HasKL reports whether an agent is trained with a KL term.
func (c *Config) HasKL(a *Agent) bool { return c.GRPO.KL != mgrpo.KLNone && c.Learns(a) }

// KLToColdStart reports whether that term compares with the agent's weights after its cold start, which only the run
// has.
func (c *Config) KLToColdStart(a *Agent) bool {
	return c.HasKL(a) && a.Reference == "" && c.ColdStarts(a) && c.GRPO.Reference != "start"
}

// AgentNames returns the names of the agents that take part in the configured arm, the main agent first.
func (c *Config) AgentNames() []string {
	names := []string{c.Main().Name}
	for _, a := range c.Subs() {
		names = append(names, a.Name)
	}
	return names
}

// RunDir returns the run's folder as an absolute path or relative to the current folder.
func (c *Config) RunDir() string { return c.Resolve(c.Run.Dir) }
