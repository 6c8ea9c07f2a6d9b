package store

import (
	"slices"
	"strings"
)

// User is who a client is to the server, for ACLRules.
type User struct {
	Name   string   // the server's name for it
	Agents []string // the agents whose worker it is: one, all of a run in one process, or none for who only looks
	Main   bool     // one of them is the main agent
}

// Users are the users of a run: for a process that holds all agents, for the worker of each, and for who only
// looks (mgrpo status). The first agent is the main one.
func Users(run string, agents []string) []User {
	users := []User{{Name: run, Agents: agents, Main: true}}
	for i, a := range agents {
		users = append(users, User{Name: run + "-" + a, Agents: []string{a}, Main: i == 0})
	}
	return append(users, User{Name: run + "-status"})
}

// roles are which users need a right.
type roles int

const (
	main roles = 1 << iota
	sub
	watcher

	worker   = main | sub
	everyone = worker | watcher
)

func (u User) roles() roles {
	switch {
	case len(u.Agents) == 0:
		return watcher
	case u.Main && len(u.Agents) == 1:
		return main
	case u.Main:
		return worker
	}
	return sub
}

// right is commands that some users need, on the keys behind "mgrpo:{RUN}:" that match a pattern, where AGENT
// is each of the user's agents. No pattern: commands without keys.
type right struct {
	who      roles
	commands string
	keys     string
}

// rights are all that scripts, waits and connections do. The server checks the keys of a script, which it
// takes to be read and written, and then each command inside it. So every worker may read all keys of its run,
// and what it may write follows from the other commands.
//
// Whoever is first to join begins the round: any worker may drop phases and write meta, epochs and versions.
// What a user cannot do is what makes a rollout: a sub-agent's worker submits no invocation, begins and ends no
// phase and publishes no outcome; the main agent's answers no invocation.
var rights = []right{
	{everyone, "info ping subscribe", ""},
	{everyone, "hget hgetall hlen exists zrangebyscore", "*"},
	{watcher, "get hexists pttl time", "*"},

	{worker, "publish", ""},
	{worker, "eval evalsha get hmget hkeys", "*"},
	{worker, "set", "lease:AGENT"},
	{worker, "hincrby", "epochs meta"},
	{worker, "hset", "epochs meta offers met:* stop versions trajectories:* part:* manifest:*"},
	{worker, "hsetnx", "meta versions"},
	{worker, "hdel", "meta"},
	{worker, "zadd zrem", "phases"},
	{main, "zrem", "losses"},
	{sub, "zadd", "losses"},
	{worker, "xadd", "record"},
	{worker, "unlink", "lease:AGENT claimed:AGENT stop versions offers met:* plan:* call:* result:* outcome:* trajectories:* part:* manifest:* stream:*"},

	{main, "hset", "plan:* call:* outcome:*"},
	{main, "xadd", "stream:*"},
	{main, "unlink", "lost:*"},

	{sub, "hset", "result:* claimed:AGENT"},
	{sub, "hdel", "claimed:AGENT"},
	{sub, "hincrby", "lost:*"},
	{sub, "xrange", "stream:*:AGENT"},
}

// ACLRules are the rules of ACL SETUSER that let a user of the server at url do what a worker of a run does,
// and nothing else. Whatever the user was allowed before is taken away; its passwords stay. With redis6 they
// are for Redis 6.2, where it cannot be said which command is for which key.
func ACLRules(run, url string, u User, redis6 bool) ([]string, error) {
	opts, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(rights)
	switch {
	case isCluster(opts):
		all = append(all, right{everyone, "cluster|slots command", ""})
	case opts.DB != 0:
		all = append(all, right{everyone, "select", ""})
	}
	out := []string{"on", "resetkeys", "resetchannels", "-@all"}
	if !redis6 {
		out = append(out, "clearselectors")
	}
	prefix := (&Store{opts: Options{Run: run}}).key("")
	return append(out, u.rules(all, prefix, redis6)...), nil
}

// rules are what a user has of the rights: what is for all keys at the top, the rest in selectors, which bind
// commands to keys. Who only looks may read all keys and write none.
func (u User) rules(all []right, prefix string, redis6 bool) []string {
	keys := "~"
	if u.roles() == watcher && !redis6 {
		keys = "%R~"
	}
	top := []string{keys + prefix + "*", "&" + prefix + "events", "&" + prefix + "events:*"}
	var selectors []string
	for _, r := range all {
		if r.who&u.roles() == 0 {
			continue
		}
		commands := prefixed("+", r.commands)
		if r.keys == "" || r.keys == "*" || redis6 {
			top = append(top, commands...)
			continue
		}
		patterns := u.perAgent(prefixed("~"+prefix, r.keys))
		selectors = append(selectors, "("+strings.Join(append(commands, patterns...), " ")+")")
	}
	return append(distinct(top), selectors...)
}

// perAgent writes the names of the user's agents for AGENT.
func (u User) perAgent(patterns []string) []string {
	var out []string
	for _, p := range patterns {
		if !strings.Contains(p, "AGENT") {
			out = append(out, p)
			continue
		}
		for _, a := range u.Agents {
			out = append(out, strings.ReplaceAll(p, "AGENT", a))
		}
	}
	return out
}

// prefixed puts a prefix before each word of a text.
func prefixed(prefix, text string) []string {
	var out []string
	for _, w := range strings.Fields(text) {
		out = append(out, prefix+w)
	}
	return out
}

// distinct leaves out what was there before.
func distinct(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
