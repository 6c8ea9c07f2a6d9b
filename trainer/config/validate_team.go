package config

import (
	"fmt"
	"slices"
	"strings"
)

func validateTeam(c *Config, d *decoder) {
	var main []string
	learns := false
	for i := range c.Agents {
		a := &c.Agents[i]
		if a.IsMain() {
			main = append(main, a.Name)
		}
		learns = learns || c.Learns(a)
	}
	switch {
	case len(main) == 0:
		d.failAt("agents", "one agent must have role: main")
	case len(main) > 1:
		d.failAt("agents."+main[1]+".role", "%s is main already; a team has one main agent", main[0])
	case !learns && c.Run.Steps > 0:
		d.failAt("agents", "no agent learns in the arm %s; set train: true on one, or run.steps: 0", c.Run.Arm)
	}
}

func validateDelegates(c *Config, d *decoder, a *Agent) {
	key := "agents." + a.Name + ".delegates"
	if a.Role == "sub" && len(a.Delegates) > 0 {
		d.failAt(key, "only the main agent delegates")
		return
	}
	var subs []string
	for _, other := range c.Agents {
		if other.Role == "sub" {
			subs = append(subs, other.Name)
		}
	}
	_, given := d.at[key]
	if plays := a.IsMain() && c.Run.Arm != "single" && !c.PlayedByProgram(); plays && given && len(a.Delegates) == 0 && len(subs) > 0 {
		d.failAt(key, "is empty, so %s would never take part; name sub-agents, or remove this key", strings.Join(subs, ", "))
	}
	for i, name := range a.Delegates {
		item := fmt.Sprintf("%s[%d]", key, i)
		if !slices.Contains(subs, name) {
			d.failAt(item, "%q is not a sub-agent; %s", clip(name), didYouMean(name, subs))
		} else if slices.Contains(a.Delegates[:i], name) {
			d.failAt(item, "%q is given twice", name)
		}
	}
}

func validateTools(c *Config, d *decoder, a *Agent) {
	known := []string{calculator}
	for _, t := range c.Tools {
		known = append(known, t.Base().Name)
	}
	for i, name := range a.Tools {
		item := fmt.Sprintf("agents.%s.tools[%d]", a.Name, i)
		switch {
		case !slices.Contains(known, name):
			d.failAt(item, "%q is not a tool; %s", clip(name), didYouMean(name, known))
		case slices.Contains(a.Tools[:i], name):
			d.failAt(item, "%q is given twice", name)
		case slices.Contains(a.Delegates, name):
			d.failAt(item, "%q is also a sub-agent of %s; rename one of them", name, a.Name)
		}
	}
}
