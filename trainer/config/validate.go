package config

import (
	"net/url"
	"regexp"
	"slices"
	"time"
)

// validate checks the rules that involve several keys. It runs after each single value was found valid.
func validate(c *Config, d *decoder) {
	c.Run.validate(d)
	c.Store.validate(d)
	c.Health.validate(d)
	c.Tracking.validate(d)
	d.refuseIf(c.Cache.Dir == "" && c.Cache.Mode == "replay", "cache.dir", "missing; a replay needs the folder in which a run was recorded")
	validateGateway(c, d)
	c.Task.validate(d)
	validateGRPO(c, d)
	c.Eval.validate(d)
	d.refuseIf(c.ColdStart.Demonstrations == "parts", "cold_start.demonstrations",
		"demonstrations are not made from parts; name a file of chats, or write ./parts for a file of that name")
	d.refuseIf(c.ColdStart.Demonstrations != "none" && !slices.ContainsFunc(c.Agents, func(a Agent) bool { return a.ColdStart.Steps > 0 }), "cold_start.steps",
		"missing; demonstrations are given, but no agent learns from them")
	for _, t := range c.Tools {
		t.validate(d, "tools."+t.Base().Name)
	}
	validateTeam(c, d)
	for i := range c.Agents {
		validateAgent(c, d, &c.Agents[i])
	}
}

func (r *Run) validate(d *decoder) {
	if _, err := time.Parse(time.DateOnly, r.Date); r.Date != "" && err != nil {
		d.failAt("run.date", "%q is not a date; use YYYY-MM-DD", clip(r.Date))
	}
	d.refuseIf(!validName(r.Name), "run.name", "not a name; names start with a letter and have at most 64 letters, digits, dashes and underscores")
}

var envForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// secretEnv checks the name of an environment variable, or "" for none. secret names the variable's content: key, token or password.
func (d *decoder) secretEnv(key, name, secret string) {
	d.refuseIf(name != "" && !envForm.MatchString(name), key, "must be the name of an environment variable, not the %s itself", secret)
}

// validName reports whether s is a valid name of an agent, a tool or a run.
func validName(s string) bool { return nameForm.MatchString(s) }

var nameForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}$`)

// hasUser reports whether an address contains a user, with or without a password.
func hasUser(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.User != nil
}

func webAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
