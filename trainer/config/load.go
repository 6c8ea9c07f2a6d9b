package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/textfile"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Load reads a configuration file, applies overrides such as "run.steps=3" in order, fills in the defaults, and checks
// everything that can be checked without opening other files. The value of an override is YAML and is checked like the
// file.
//
// The error is an Errors with all mistakes, or the error of reading the file.
func Load(path string, sets []string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(path, textfile.Bytes(text), sets)
}

// Parse does the same as Load for text in memory. path is its name in messages, and relative paths start from path's folder.
func Parse(path string, text []byte, sets []string) (*Config, error) {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	c := &Config{dir: dir}
	d := decoder{root: reflect.ValueOf(c).Elem(), at: map[string]position{}}
	root := parse(path, text, &d.errs)
	if root == nil {
		return nil, d.errs
	}
	if root.kind == nullKind {
		root.kind = mapKind
	}
	for _, s := range sets {
		override(root, s, &d.errs)
	}
	setDefaults(d.root)
	d.at[""] = root.pos
	d.section("", root, d.root)
	if len(d.errs) == 0 {
		c.freezeHosted(&d)
		c.fill(&d)
		c.validate(&d)
	}
	if err := d.errs.Err(); err != nil {
		return nil, err
	}
	c.at = d.at
	return c, nil
}

// overrides is the beginning of an override's source.
const overrides = "--set "

// override writes one KEY=VALUE into the tree.
func override(root *node, arg string, errs *Errors) {
	source := overrides + clip(arg)
	pos := position{source: source}
	fail := func(key, format string, args ...any) {
		*errs = append(*errs, &Error{Where: source, Key: key, Msg: fmt.Sprintf(format, args...), pos: pos})
	}
	key, text, ok := strings.Cut(arg, "=")
	if !ok || key == "" {
		fail("", "must be KEY=VALUE, such as run.steps=3")
		return
	}
	value := &node{kind: textKind, pos: pos}
	if text != "" {
		var bad Errors
		if value = parse(source, []byte(text), &bad); len(bad) > 0 {
			fail(key, "%s", bad[0].Msg)
			return
		}
		relocate(value, pos)
	}
	parts := strings.Split(key, ".")
	at := root
	for i, part := range parts[:len(parts)-1] {
		path := strings.Join(parts[:i+1], ".")
		next := at.get(part)
		if next == nil {
			if i == 1 && (parts[0] == "agents" || parts[0] == "tools") {
				fail(path, "not in the file; %s", didYouMean(part, entryNames(at)))
				return
			}
			next = &node{kind: mapKind, pos: pos}
			at.keys = append(at.keys, entry{part, pos, next})
		}
		if next.kind == nullKind {
			next.kind = mapKind
		}
		if next.kind != mapKind {
			fail(key, "%s is %s, which has no keys", path, next.describe())
			return
		}
		at = next
	}
	last := parts[len(parts)-1]
	if len(parts) == 3 && parts[0] == "agents" {
		at.giveUp(insteadOf(last, value))
	}
	if i := slices.IndexFunc(at.keys, func(e entry) bool { return e.key == last }); i >= 0 {
		at.keys[i] = entry{last, pos, value}
	} else {
		at.keys = append(at.keys, entry{last, pos, value})
	}
}

// insteadOf returns the key that an override of another key of the same agent replaces, or "". A saved configuration
// contains both keys.
func insteadOf(key string, value *node) string {
	switch {
	case key == "device":
		return "devices"
	case key == "devices" && len(value.items) > 0:
		return "device"
	}
	return ""
}

// giveUp removes a key, unless an override set it.
func (n *node) giveUp(key string) {
	n.keys = slices.DeleteFunc(n.keys, func(e entry) bool { return e.key == key && !strings.HasPrefix(e.pos.source, overrides) })
}

func entryNames(n *node) []string {
	names := make([]string, len(n.keys))
	for i, e := range n.keys {
		names[i] = e.key
	}
	return names
}

// relocate sets the position of all values of a tree.
func relocate(n *node, pos position) {
	n.pos = pos
	for _, i := range n.items {
		relocate(i, pos)
	}
	for i := range n.keys {
		n.keys[i].pos = pos
		relocate(n.keys[i].value, pos)
	}
}

// freezeHosted marks hosted models as untrained and without a cold start. It refuses settings that contradict this.
func (c *Config) freezeHosted(d *decoder) {
	for i := range c.Agents {
		a := &c.Agents[i]
		if a.Model.Endpoint == nil {
			continue
		}
		key := "agents." + a.Name
		if _, given := d.at[key+".train"]; given && a.Train {
			d.failAt(key+".train", "the model of %s is hosted: it cannot be trained; remove this key", a.Name)
		}
		if _, given := d.at[key+".cold_start.steps"]; given && a.ColdStart.Steps > 0 {
			d.failAt(key+".cold_start.steps", "the model of %s is hosted: it cannot have a cold start; remove this key", a.Name)
		}
		a.Train, a.ColdStart.Steps = false, 0
	}
}

// fill sets the defaults that depend on other keys, so that a dump is complete and shows a later change of these keys.
func (c *Config) fill(d *decoder) {
	if c.Run.Dir == "" {
		c.Run.Dir = Path("runs/" + c.Run.Name)
	}
	if slices.ContainsFunc(c.Agents, func(a Agent) bool { return a.Engine.Remote() }) {
		c.GRPO.weighSampler(d)
	}
	for i := range c.Tools {
		t := &c.Tools[i]
		if _, given := d.at["tools."+t.Name+".retries"]; !given && (t.Kind == "visit" || t.Kind == "retriever") {
			t.Retries = 2
		}
	}
	for i := range c.Agents {
		a := &c.Agents[i]
		if _, given := d.at["agents."+a.Name+".device"]; !given && len(a.Devices) > 0 {
			a.Device = a.Devices[0]
		}
		a.Engine.fill()
		if a.Role == "main" && a.Delegates == nil && c.Run.Arm != "single" {
			for _, sub := range c.Agents {
				if sub.Role == "sub" {
					a.Delegates = append(a.Delegates, sub.Name)
				}
			}
		}
		a.Optimizer.fill(c.Run.Steps)
		a.ColdStart.Optimizer.fill(a.ColdStart.Steps)
		if s := a.Model.Shape; s != nil {
			if s.KVHeads == 0 {
				s.KVHeads = s.Heads
			}
			if s.HeadDim == 0 && s.Width%s.Heads == 0 {
				s.HeadDim = s.Width / s.Heads
			}
		}
	}
}

// weighSampler turns importance weights on if the sampler's log-probs are not the trainer's, unless the file sets the
// keys.
func (g *GRPO) weighSampler(d *decoder) {
	_, old := d.at["grpo.old"]
	_, capped := d.at["grpo.tis_cap"]
	if !old && !capped {
		g.Old = "recomputed"
	}
	if !capped && g.Old == "recomputed" {
		g.TISCap = new(2.0)
	}
}

func (e *Engine) fill() {
	switch w := &e.Weights; {
	case !e.Remote() || w.Tolerance > 0:
	case w.DType == "fp32":
		w.Tolerance = 0.001
	default:
		w.Tolerance = 0.05
	}
}

func (o *Optimizer) fill(steps int64) {
	if o.DecaySteps == 0 && o.Schedule != "constant" {
		o.DecaySteps, o.EndsWithRun = steps, true
	}
}

// Main returns the main agent. Every Config from Load has exactly one.
func (c *Config) Main() *Agent {
	for i := range c.Agents {
		if c.Agents[i].Role == "main" {
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

// Tool returns the entry of tools with a name, or nil. calculator and code need no entry.
func (c *Config) Tool(name string) *Tool {
	for i := range c.Tools {
		if c.Tools[i].Name == name {
			return &c.Tools[i]
		}
	}
	return nil
}

// Learns reports whether training changes an agent's weights: train is true, and the arm neither freezes the agent nor
// leaves it out.
func (c *Config) Learns(a *Agent) bool {
	return a.Train && (a.Role == "main" || c.Run.Arm == "team")
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

// Password returns the store's password from the configured environment variable or file, or "" if neither is
// configured.
func (c *Config) Password() (string, error) {
	return c.secret("store.password_env", c.Store.PasswordEnv, "store.password_file", c.Store.PasswordFile)
}

// MachinesKey returns the key with which an agent's machines recognise each other.
func (c *Config) MachinesKey(a *Agent) ([]byte, error) {
	const least = 16
	section := "agents." + a.Name + ".machines"
	key, err := c.secret(section+".key_env", a.Machines.KeyEnv, section+".key_file", a.Machines.KeyFile)
	if err == nil && len(key) < least {
		err = fmt.Errorf("config: %s: the key has %d bytes, but needs at least %d random bytes; make one with: head -c 32 /dev/urandom | base64", section, len(key), least)
	}
	return []byte(key), err
}

// secret returns the contents of an environment variable or a file, or "" if neither is configured.
func (c *Config) secret(envKey, env, fileKey string, file Path) (string, error) {
	switch {
	case env != "":
		p, ok := os.LookupEnv(env)
		if !ok || p == "" {
			return "", fmt.Errorf("config: %s: the environment variable %s is not set", envKey, env)
		}
		return p, nil
	case file != "":
		b, err := os.ReadFile(c.Resolve(file))
		if err != nil {
			return "", fmt.Errorf("config: %s: %w", fileKey, err)
		}
		p := strings.TrimSuffix(strings.TrimSuffix(string(textfile.Bytes(b)), "\n"), "\r")
		if p == "" {
			return "", fmt.Errorf("config: %s: the file is empty", fileKey)
		}
		return p, nil
	}
	return "", nil
}
