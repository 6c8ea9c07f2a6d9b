package store

import (
	"slices"
	"strings"
)

// User describes a user of the server, for ACLRules.
type User struct {
	Name   string   // user name on the server
	Agents []string // agents whose workers log in with it: one, all (one process for the team), or none (mgrpo status)
	Main   bool     // the main agent is one of them
}

// Evaluation is the Aside of an evaluation that runs next to a training run. The run's users have their permissions for it, too.
const Evaluation = "eval"

// Users returns the users of a run: one for a process that trains all agents, one for the worker of each agent, and one for
// mgrpo status, which only reads. The first agent is the main agent.
func Users(run string, agents []string) []User {
	users := []User{{Name: run, Agents: agents, Main: true}}
	for i, a := range agents {
		users = append(users, User{Name: run + "-" + a, Agents: []string{a}, Main: i == 0})
	}
	return append(users, User{Name: run + "-status"})
}

// roles is a set of kinds of users.
type roles int

const (
	main roles = 1 << iota
	sub
	watcher

	worker   = main | sub
	allRoles = worker | watcher
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

// permission allows some users some commands on the keys whose names after "mgrpo:{RUN}:" match one of the patterns. AGENT in
// a pattern stands for each of the user's agents. Commands without keys have no pattern.
type permission struct {
	who      roles
	commands string
	keys     string
}

// permissions lists all commands of scripts, waits and connections. The server checks the keys of a script as if the script
// read and wrote all of them, and then checks each command inside it. So every worker may read all keys of its run, and the
// permissions for the other commands decide which keys it may write.
//
// The first worker that joins begins the round, so every worker may delete phases and write meta, epochs and versions. The
// worker of a sub-agent cannot submit an invocation, begin or end a phase, or publish an outcome. The worker of the main
// agent cannot answer an invocation.
var permissions = []permission{
	{allRoles, "info ping subscribe", ""},
	{allRoles, "hget hgetall hlen hexists exists pttl time zrangebyscore", "*"},
	{watcher, "get", "*"},

	{worker, "publish", ""},
	{worker, "eval evalsha get hmget hkeys", "*"},
	{worker, "set", "lease:AGENT"},
	{worker, "hincrby", "epochs meta"},
	{worker, "hset", "epochs gateway meta activity offers barrier:* stop versions trajectories:* part:* manifest:*"},
	{worker, "hsetnx", "gateway meta versions"},
	{worker, "hdel", "meta"},
	{worker, "zadd zrem", "phases"},
	{main, "zrem", "losses"},
	{sub, "zadd", "losses"},
	{worker, "xadd", "record records"},
	{worker, "xrange", "records"},
	{worker, "unlink", "lease:AGENT claimed:AGENT stop versions offers barrier:* plan:* call:* result:* outcome:* trajectories:* part:* manifest:* stream:*"},

	{main, "hset", "plan:* call:* outcome:*"},
	{main, "xadd", "stream:*"},
	{main, "unlink", "lost:*"},

	{sub, "hset", "result:* claimed:AGENT"},
	{sub, "hdel", "claimed:AGENT"},
	{sub, "hincrby", "lost:*"},
	{sub, "xrange", "stream:*:AGENT"},
}

// ACLRules returns the rules of ACL SETUSER that give a user of the server at url exactly the permissions that it needs for
// a run. They remove all earlier permissions of the user and keep its passwords. They need Redis 7.0, which can bind commands to keys.
func ACLRules(run, url string, u User) ([]string, error) {
	redisOpt, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(permissions)
	switch {
	case redisOpt.MasterName == "" && (redisOpt.IsClusterMode || len(redisOpt.Addrs) > 1):
		// redis.NewUniversalClient makes a client for a cluster.
		all = append(all, permission{allRoles, "cluster|slots command", ""})
	case redisOpt.DB != 0:
		all = append(all, permission{allRoles, "select", ""})
	}
	out := []string{"on", "resetkeys", "resetchannels", "-@all", "clearselectors"}
	prefixes := []string{(&Store{opt: Options{Run: run}}).key(""), (&Store{opt: Options{Run: run, Aside: Evaluation}}).key("")}
	return append(out, u.rules(all, prefixes)...), nil
}

// rules returns the user's part of the permissions. Commands on all keys come first; the others are in selectors, which bind
// commands to keys. The user of mgrpo status may read all keys and write none.
func (u User) rules(all []permission, prefixes []string) []string {
	keys := "~"
	if u.roles() == watcher {
		keys = "%R~"
	}
	top := []string{keys + prefixes[0] + "*"} // keys of an evaluation next to the run begin with the same prefix as the run's own
	for _, prefix := range prefixes {
		top = append(top, "&"+prefix+"events", "&"+prefix+"events:*")
	}
	var selectors []string
	for _, r := range all {
		if r.who&u.roles() == 0 {
			continue
		}
		commands := prefixed("+", r.commands)
		if r.keys == "" || r.keys == "*" {
			top = append(top, commands...)
			continue
		}
		var patterns []string
		for _, prefix := range prefixes {
			patterns = append(patterns, u.perAgent(prefixed("~"+prefix, r.keys))...)
		}
		selectors = append(selectors, "("+strings.Join(append(commands, patterns...), " ")+")")
	}
	return append(distinct(top), selectors...)
}

// perAgent replaces AGENT by the names of the user's agents.
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

// distinct removes repeated texts.
func distinct(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
