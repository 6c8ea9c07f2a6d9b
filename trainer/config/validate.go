package config

import (
	"net/url"
	"regexp"
	"slices"
	"time"
)

// validate checks the rules that involve several keys. It runs after each single value was found valid.
func (c *Config) validate(d *decoder) {
	c.validateRun(d)
	c.validateStore(d)
	c.Health.validate(d)
	c.Tracking.validate(d)
	if c.Cache.Dir == "" && c.Cache.Mode == "replay" {
		d.failAt("cache.dir", "missing; a replay needs the folder in which a run was recorded")
	}
	c.validateGateway(d)
	c.validateTask(d)
	c.validateGRPO(d)
	c.Eval.validate(d)
	if c.ColdStart.Demonstrations == "parts" && c.Task.Kind != "jsonl" && c.Task.Kind != "go" {
		d.failAt("cold_start.demonstrations", "the queries of the task %s have no parts; use task.kind: jsonl, or demonstrations: task", c.Task.Kind)
	}
	if c.ColdStart.Demonstrations != "none" && !slices.ContainsFunc(c.Agents, func(a Agent) bool { return a.ColdStart.Steps > 0 }) {
		d.failAt("cold_start.steps", "missing; demonstrations are given, but no agent learns from them")
	}
	for i := range c.Tools {
		c.Tools[i].validate(d)
	}
	c.validateTeam(d)
	for i := range c.Agents {
		c.validateAgent(d, &c.Agents[i])
	}
}

func (c *Config) validateRun(d *decoder) {
	if _, err := time.Parse(time.DateOnly, c.Run.Date); c.Run.Date != "" && err != nil {
		d.failAt("run.date", "%q is not a date; use YYYY-MM-DD", clip(c.Run.Date))
	}
	if !validName(c.Run.Name) {
		d.failAt("run.name", "not a name; names start with a letter and have at most 64 letters, digits, dashes and underscores")
	}
}

var envForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func validEnv(s string) bool { return envForm.MatchString(s) }

// validName reports whether s is a valid name of an agent, a tool or a run.
func validName(s string) bool {
	if s == "" || len(s) > 64 || !isLetter(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isLetter(c) && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// hasUser reports whether an address contains a user, with or without a password.
func hasUser(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.User != nil
}

func webAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
