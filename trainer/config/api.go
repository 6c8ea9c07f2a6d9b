package config

import "errors"

type position struct{ line, col int }

// Load (being filled in).
func Load(path string, sets []string) (*Config, error) {
	return nil, errors.New("config: not filled in yet")
}

// Main is the main agent.
func (c *Config) Main() *Agent { return nil }

// Subs are the sub-agents.
func (c *Config) Subs() []*Agent { return nil }

// Agent finds an agent by name, or nil.
func (c *Config) Agent(name string) *Agent { return nil }

// Tool finds a tool by name, or nil.
func (c *Config) Tool(name string) *Tool { return nil }

// Deterministic says whether results must be bit-equal.
func (c *Config) Deterministic() bool { return false }

// Digest of all keys that may not change on resume.
func (c *Config) Digest() string { return "" }

// DiffForResume names keys that changed and may not.
func (c *Config) DiffForResume(old *Config) []string { return nil }

// Dump is the canonical YAML.
func (c *Config) Dump() []byte { return nil }

// Reference is docs/config.md.
func Reference() string { return "" }

// Example is the commented starting configuration.
func Example() string { return "" }
