package config

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
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
	return Parse(path, texts.Normalize(text), sets)
}

// Parse does the same as Load for text in memory. path is its name in messages, and relative paths start from path's folder.
func Parse(path string, text []byte, sets []string) (*Config, error) {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	var bad Errors
	root := parse(path, text, &bad)
	if root == nil {
		return nil, bad
	}
	if root.kind == nullKind {
		root.kind = mapKind
	}
	for _, s := range sets {
		override(root, s, &bad)
	}
	c := &Config{dir: dir}
	d := &decoder{root: reflect.ValueOf(c).Elem(), at: map[string]position{"": root.pos}, errs: bad}
	setDefaults(d.root)
	d.section("", root, d.root)
	if len(d.errs) == 0 {
		c.at = maps.Clone(d.at) // freezeHosted adds keys that were not given
		freezeHosted(c, d)
		d.refuseAllIdle()
		fillDerived(c, d)
		validate(c, d)
	}
	if err := d.errs.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// overrides is the beginning of an override's source.
const overrides = "--set "

// override writes one KEY=VALUE into the tree.
func override(root *node, arg string, errs *Errors) {
	source := overrides + clip(arg)
	pos := position{source: source}
	fail := func(key, format string, args ...any) { errs.add(pos, key, format, args...) }
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
		e := at.find(part)
		if e == nil {
			if i == 1 && (parts[0] == "agents" || parts[0] == "tools") {
				fail(path, "not in the file; %s", didYouMean(part, entryNames(at)))
				return
			}
			e = at.set(part, pos, &node{kind: mapKind, pos: pos})
		}
		if at = e.value; at.kind == nullKind {
			at.kind = mapKind
		}
		if at.kind != mapKind {
			fail(key, "%s is %s, which has no keys", path, at.describe())
			return
		}
	}
	last := parts[len(parts)-1]
	if len(parts) == 3 && parts[0] == "agents" {
		at.giveUp(insteadOf(last, value))
	}
	at.set(last, pos, value)
}

// insteadOf returns the key that an override of another key of the same agent replaces, or "": device and devices exclude each other.
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
func freezeHosted(c *Config, d *decoder) {
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
		d.at[key+".train"] = d.at[key+".model"] // a model that replaces a trained one leaves the optimizer without effect
	}
}

// fillDerived sets the absent keys that have the tag derived, and run.dir.
func fillDerived(c *Config, d *decoder) {
	if c.Run.Dir == "" {
		c.Run.Dir = Path("runs/" + c.Run.Name)
	}
	if slices.ContainsFunc(c.Agents, func(a Agent) bool { return a.Engine.Remote() }) {
		c.GRPO.setImportanceWeights(d)
	}
	for i := range c.Agents {
		a := &c.Agents[i]
		if _, given := d.at["agents."+a.Name+".device"]; !given && len(a.Devices) > 0 {
			a.Device = a.Devices[0]
		}
		a.Engine.fill()
		if a.IsMain() && a.Delegates == nil && c.Run.Arm != "single" {
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

// setImportanceWeights turns importance weights on, unless the file sets the keys. A server's log-probs are not the trainer's.
func (g *GRPO) setImportanceWeights(d *decoder) {
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
	if o.DecaySteps == 0 && o.Schedule != ConstantSchedule {
		o.DecaySteps, o.EndsWithRun = steps, true
	}
}
