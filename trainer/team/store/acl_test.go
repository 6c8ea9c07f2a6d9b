package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// tlsServer is a redis-server behind TLS whose only users are an admin and the users that a test adds.
type tlsServer struct {
	admin *redis.Client
	url   string // without a user
	cert  string
}

const secret = "geheim"

func startGuarded(t *testing.T) *tlsServer {
	server := startRedis(t, redisserver.StartTLS, "--appendonly", "yes",
		"--user", "default", "off", "--user", "admin", "on", ">"+secret, "~*", "&*", "+@all")
	g := &tlsServer{url: server.URL(), cert: server.CertFile}
	g.admin = g.client(t, "admin")
	return g
}

// client returns a plain Redis client that is logged in as a user.
func (g *tlsServer) client(t *testing.T, user string) *redis.Client {
	pem, err := os.ReadFile(g.cert)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return rawClient(t, &redis.Options{Addr: strings.TrimPrefix(g.url, "rediss://"), Username: user, Password: secret,
		TLSConfig: &tls.Config{RootCAs: roots}, DisableIdentity: true})
}

// let gives a user its rules.
func (g *tlsServer) let(t *testing.T, user string, rules []string) {
	args := []any{"ACL", "SETUSER", user, "reset", ">" + secret}
	for _, r := range rules {
		args = append(args, r)
	}
	must(t, g.admin.Do(t.Context(), args...).Err())
}

func (g *tlsServer) open(ctx context.Context, user string) (*Store, error) {
	return g.openAside(ctx, user, "")
}

func (g *tlsServer) openAside(ctx context.Context, user, aside string) (*Store, error) {
	return Open(ctx, withDefaults(Options{Aside: aside, URL: g.url, Username: user, Password: secret, TLS: TLSOptions{CAFile: g.cert}, Timeout: 5 * time.Minute}))
}

// story runs everything that workers of two agents do in a run, and again after one of them was killed. It opens their stores with open.
func story(ctx context.Context, raw *redis.Client, open func(ctx context.Context, agent string) (*Store, error)) error {
	for round, order := range [][]string{{"boss", "help"}, {"help", "boss"}} {
		members := map[string]*Member{}
		for _, agent := range order {
			s, err := open(ctx, agent)
			if err != nil {
				return err
			}
			defer s.Close()
			if members[agent], err = s.Join(ctx, agent, team, ignore); err != nil {
				return err
			}
			// The place is taken now, so a second worker of the agent is refused.
			if err := refuseSecond(ctx, s, agent); err != nil {
				return err
			}
		}
		g, gctx := errgroup.WithContext(ctx)
		saved := make(chan struct{}) // closed when both have saved, because then either may stop the run
		g.Go(func() error { return bossStory(gctx, members["boss"], round == 0, saved) })
		g.Go(func() error { return helpStory(gctx, members["help"], round == 1, saved) })
		if err := g.Wait(); err != nil {
			return err
		}
		if err := members["boss"].Leave(ctx); err != nil {
			return err
		}
		if round == 0 { // help is killed with a claimed invocation
			if err := raw.Del(ctx, "mgrpo:{test}:lease:help").Err(); err != nil {
				return err
			}
		} else if err := members["help"].Leave(ctx); err != nil {
			return err
		}
	}
	return nil
}

// refuseSecond tries to join with an agent whose place is taken, and returns an error unless that is refused.
func refuseSecond(ctx context.Context, s *Store, agent string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := s.Join(ctx, agent, team, func(string) { cancel() }); err == nil || !strings.Contains(err.Error(), "alive") {
		return fmt.Errorf("a second worker of %s: %w", agent, err)
	}
	return nil
}

func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func bossStory(ctx context.Context, m *Member, stops bool, saved chan<- struct{}) error {
	p, v := TrainPhase(0), call(0)
	trimmed := int64(0)
	if !stops { // the second round: a worker was lost in step 1 of the first
		trimmed = 1
	}
	return inOrder(
		func() error { _, err := m.Round.Start(ctx); return err },
		func() error { return m.Round.Barrier(ctx, Ready, func([]string) {}) },
		func() error { _, err := m.Gateways.Publish(ctx, "http://boss:1", "fresh"); return err },
		func() error { return m.Phases.Begin(ctx, p, Plan{Queries: []string{v.Query}, Rollouts: 1}) },
		func() error { return m.Invocations.Submit(ctx, v) },
		func() error { _, err := m.Invocations.Await(ctx, v); return err },
		func() error { return m.Phases.PublishOutcome(ctx, p, Outcome{Query: v.Query}) },
		func() error { return m.Phases.PublishFinalPlan(ctx, p, Plan{Queries: []string{v.Query}, Rollouts: 1}) },
		func() error { return m.Phases.End(ctx, p) },
		func() error { _, err := m.Phases.Outcomes(ctx, p, 1); return err },
		func() error { return m.Phases.PublishTrajectories(ctx, p, nil) },
		func() error { _, err := m.Phases.Trajectories(ctx, p); return err },
		func() error { return showStory(ctx, m) },
		func() error { return m.Round.AskStop(ctx) },
		func() error { _, err := m.Round.StopAsked(ctx); return err },
		func() error { return m.Versions.Publish(ctx, 1) },
		func() error { return m.Versions.Await(ctx, 1) },
		func() error { return m.Checkpoints.Trim(ctx, trimmed) },
		func() error {
			return m.Phases.Begin(ctx, TrainPhase(1), Plan{Queries: []string{"left behind"}, Rollouts: 1})
		},
		func() error { v.Phase = TrainPhase(1); return m.Invocations.Submit(ctx, v) },
		func() error { return m.Checkpoints.PublishPart(ctx, 1, Part{}) },
		func() error { _, err := m.Checkpoints.Parts(ctx, 1); return err },
		func() error { return m.Checkpoints.PublishManifest(ctx, 1, strings.Repeat("ab", 32)) },
		func() error { _, err := m.Checkpoints.Manifests(ctx, 1); return err },
		func() error { close(saved); return end(ctx, m, stops) },
	)
}

// showStory runs the commands of the live page: it publishes a record and an activity, and reads what others have published.
func showStory(ctx context.Context, m *Member) error {
	return inOrder(
		func() error { return m.Display.PublishRecord(ctx, []byte("{}")) },
		func() error { return m.Display.PublishActivity(ctx, []byte("{}")) },
		func() error { _, _, err := m.Display.Records(ctx, ""); return err },
		func() error { _, err := m.Display.Activities(ctx); return err },
		func() error { _, err := m.Display.Status(ctx); return err },
	)
}

// end stops the run, or waits until the other agent stops it.
func end(ctx context.Context, m *Member, stops bool) error {
	if stops {
		if err := m.Round.Stop(ctx, Asked, "the end"); err != nil {
			return err
		}
	}
	select {
	case <-m.Context().Done():
		return nil
	case <-ctx.Done():
		return errors.New("the stop of the run was not received")
	}
}

func helpStory(ctx context.Context, m *Member, stops bool, saved <-chan struct{}) error {
	p := TrainPhase(0)
	var v Invocation
	claim := func() (err error) { v, err = claimOne(ctx, m, p); return err }
	return inOrder(
		func() error { _, err := m.Round.Start(ctx); return err },
		func() error { return m.Round.Barrier(ctx, Ready, func([]string) {}) },
		func() error { _, err := m.Gateways.Publish(ctx, "http://help:1", "fresh"); return err },
		func() error { _, err := m.Phases.Plan(ctx, p); return err },
		claim,
		func() error { return m.Invocations.Complete(ctx, v, Result{Text: "a"}) },
		func() error {
			if err := claim(); !errors.Is(err, ErrPhaseEnded) {
				return fmt.Errorf("claimed in an ended phase: %w", err)
			}
			return nil
		},
		func() error { _, err := m.Phases.FinalPlan(ctx, p); return err },
		func() error { _, err := m.Phases.Outcomes(ctx, p, 1); return err },
		func() error { return m.Phases.PublishTrajectories(ctx, p, nil) },
		func() error { _, err := m.Phases.Trajectories(ctx, p); return err },
		func() error { return showStory(ctx, m) },
		func() error { return m.Round.AskStop(ctx) },
		func() error { return m.Versions.Publish(ctx, 1) },
		func() error { return m.Versions.Await(ctx, 1) },
		func() error { p = TrainPhase(1); return claim() },
		func() error { return m.Checkpoints.PublishPart(ctx, 1, Part{}) },
		func() error { return m.Checkpoints.PublishManifest(ctx, 1, strings.Repeat("ab", 32)) },
		func() error {
			select {
			case <-saved:
				return end(ctx, m, stops)
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	)
}

// rules returns the ACL rules of each agent's user.
func rules(t *testing.T, all []permission) map[string][]string {
	out := map[string][]string{}
	for _, u := range Users("test", team.Agents)[1:3] {
		out[u.Agents[0]] = append([]string{"on"}, u.rules(all, []string{"mgrpo:{test}:"})...)
	}
	return out
}

// TestRulesSuffice: with the rules that ACLRules prints, a whole run succeeds over TLS. This
// holds with a user for each agent, with one user for all, and while an evaluation runs under
// another name.
func TestRulesSuffice(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	for _, u := range Users("test", team.Agents) {
		rules, err := ACLRules("test", g.url, u)
		must(t, err)
		g.let(t, u.Name, rules)
	}
	each := func(agent string) string { return "test-" + agent }
	for name, c := range map[string]struct {
		user  func(agent string) string
		aside string
	}{
		"a user for each agent": {each, ""},
		"one process, one user": {func(string) string { return "test" }, ""},
		"an evaluation aside":   {each, Evaluation},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, g.admin.FlushAll(t.Context()).Err())
			must(t, g.admin.ScriptFlush(t.Context()).Err())
			must(t, story(t.Context(), g.admin, func(ctx context.Context, agent string) (*Store, error) {
				return g.openAside(ctx, c.user(agent), c.aside)
			}))
		})
	}
}

// TestEveryRuleIsNeeded: without any one of the commands or keys that a user has, a run fails. So users have no right that is not needed.
func TestEveryRuleIsNeeded(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the protocol for each rule")
	}
	g := startGuarded(t)
	unasked := []string{"ping"} // sent by the client library only after three seconds without a message
	try := func(agent, what string, spoiled []permission) {
		if slices.Contains(unasked, what) {
			return
		}
		must(t, g.admin.FlushAll(t.Context()).Err())
		must(t, g.admin.ScriptFlush(t.Context()).Err())
		for a, r := range rules(t, permissions) {
			g.let(t, a, r)
		}
		g.let(t, agent, rules(t, spoiled)[agent])
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := story(ctx, g.admin, g.open); err == nil || ctx.Err() != nil {
			t.Errorf("%s without %s: got error %v, want a refusal", agent, what, err)
		}
	}
	for i, r := range permissions {
		for _, agent := range team.Agents {
			if r.who&map[string]roles{"boss": main, "help": sub}[agent] == 0 {
				continue
			}
			for _, command := range strings.Fields(r.commands) {
				try(agent, command, without(i, func(r *permission) { r.commands = lacking1(r.commands, command) }))
			}
			if r.keys == "" || r.keys == "*" {
				continue
			}
			for _, pattern := range strings.Fields(r.keys) {
				try(agent, r.commands+" on "+pattern, without(i, func(r *permission) { r.keys = lacking1(r.keys, pattern) }))
			}
		}
	}
}

// without returns the table of permissions with one entry changed by spoil, or without the entry if no command or no key is left in it.
func without(i int, spoil func(r *permission)) []permission {
	all := slices.Clone(permissions)
	empty := all[i].keys != ""
	spoil(&all[i])
	if all[i].commands == "" || empty && all[i].keys == "" {
		return slices.Delete(all, i, i+1)
	}
	return all
}

func lacking1(list, word string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(list), func(w string) bool { return w == word }), " ")
}

// TestRulesRefuse: commands and keys that a worker does not need are refused, both as a command and inside a script.
func TestRulesRefuse(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	for a, r := range rules(t, permissions) {
		g.let(t, a, r)
	}
	for agent, forbidden := range map[string][]string{
		"boss": {
			"HSET mgrpo:{test}:result:step-0 id forged", "SET mgrpo:{test}:lease:help x", "XRANGE mgrpo:{test}:stream:step-0:help - +",
		},
		"help": {
			"HSET mgrpo:{test}:outcome:step-0 id forged", "HSET mgrpo:{test}:plan:step-0 plan forged", "HSET mgrpo:{test}:call:step-0 id forged",
			"XADD mgrpo:{test}:stream:step-0:help * v forged", "SET mgrpo:{test}:lease:boss x", "SET mgrpo:{test}:meta x",
			"XRANGE mgrpo:{test}:stream:step-0:aide - +", "HSET mgrpo:{test}:claimed:boss x y",
		},
		"both": {
			"GET mgrpo:{other}:lease:boss", "HGETALL mgrpo:{other}:meta", "HSET mgrpo:{other}:meta agreement x", "SUBSCRIBE mgrpo:{other}:events",
			"PUBLISH mgrpo:{other}:events stop", "PSUBSCRIBE *", "HDEL mgrpo:{test}:epochs boss", "DEL mgrpo:{test}:meta", "UNLINK mgrpo:{test}:record", "XTRIM mgrpo:{test}:record MAXLEN 0", "EXPIRE mgrpo:{test}:meta 1",
			"RENAME mgrpo:{test}:meta mgrpo:{test}:x", "KEYS *", "SCAN 0", "FLUSHALL", "FLUSHDB", "CONFIG GET *", "CONFIG SET appendonly no",
			"ACL LIST", "CLIENT LIST", "CLIENT KILL ID 1", "SCRIPT FLUSH", "FUNCTION LIST", "MONITOR", "SAVE", "BGREWRITEAOF",
			"REPLICAOF NO ONE", "SHUTDOWN", "SLOWLOG GET", "MODULE LIST", "MEMORY DOCTOR", "XADD mgrpo:{other}:stream:step-0:help * v x",
		},
	} {
		for _, user := range team.Agents {
			if agent != "both" && agent != user {
				continue
			}
			c := g.client(t, user)
			for _, command := range forbidden {
				words := strings.Fields(command)
				args := make([]any, len(words))
				for i, w := range words {
					args[i] = w
				}
				if err := c.Do(t.Context(), args...).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
					t.Errorf("user %s, command %s: got error %v, want NOPERM", user, command, err)
				}
				inside := append([]any{"EVAL", "return redis.call(unpack(ARGV))", 0}, args...)
				if words[0] == "MONITOR" || strings.HasSuffix(words[0], "SUBSCRIBE") {
					continue // Redis allows these commands in no script
				}
				if err := c.Do(t.Context(), inside...).Err(); err == nil || errors.Is(err, redis.Nil) {
					t.Errorf("user %s, command %s inside a script: got no error, want a refusal", user, command)
				}
			}
		}
	}
}

// TestUserIsTakenAway: writes, waits and reads return an error that names the user if the user is deleted during the run or the password is
// wrong. Joining with another agent's user is an error with advice.
func TestUserIsTakenAway(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	users := Users("test", team.Agents)
	for _, u := range users {
		rules, err := ACLRules("test", g.url, u)
		must(t, err)
		g.let(t, u.Name, rules)
	}
	s, err := g.open(t.Context(), "test-boss")
	must(t, err)
	defer s.Close()
	m, err := s.Join(t.Context(), "boss", team, ignore)
	must(t, err)
	must(t, m.Phases.Begin(t.Context(), TrainPhase(0), Plan{Queries: []string{"q"}, Rollouts: 1}))
	must(t, g.admin.Do(t.Context(), "ACL", "DELUSER", "test-boss").Err())
	refused := func(what, user string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "WRONGPASS") || strings.Count(err.Error(), "refuses the password of user "+user+": correct store.username") != 1 {
			t.Errorf("%s: got error %v, want one that names user %s", what, err, user)
		}
	}
	refused("a write", "test-boss", m.Phases.Begin(t.Context(), TrainPhase(1), Plan{Queries: []string{"q"}, Rollouts: 1}))
	_, err = m.Invocations.Await(t.Context(), call(0))
	refused("a wait", "test-boss", err)
	_, err = ReadStatus(t.Context(), withDefaults(Options{URL: g.url, Username: "test-status", Password: "falsch", TLS: TLSOptions{CAFile: g.cert}}))
	refused("a status", "test-status", err)

	s, err = g.open(t.Context(), "test-help")
	must(t, err)
	defer s.Close()
	_, err = s.Join(t.Context(), "boss", team, ignore)
	if err == nil || !strings.Contains(err.Error(), "or is the user of another agent; `mgrpo store acl` prints the permissions of each user") {
		t.Errorf("joining as another user's agent: got error %v, want one with advice", err)
	}
}
