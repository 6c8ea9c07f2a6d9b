package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// link is the network between one worker and the server.
type link struct {
	*toxiproxy.Proxy
	url string
}

func newLink(t *testing.T, server *redisserver.Server) *link {
	t.Helper()
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(api, t.Name(), "127.0.0.1:0", server.Addr())
	must(t, p.Start())
	t.Cleanup(p.Stop)
	return &link{p, "redis://" + p.Listen}
}

// spoil adds a fault, which is a toxic in toxiproxy's JSON, to the link. An empty toxic cuts the link.
func (l *link) spoil(t *testing.T, toxic string) {
	t.Helper()
	if toxic == "" {
		l.Stop()
		return
	}
	_, err := l.Toxics.AddToxicJson(strings.NewReader(toxic))
	must(t, err)
}

func (l *link) heal(t *testing.T) {
	t.Helper()
	l.Toxics.ResetToxics(context.Background())
	if err := l.Start(); err != nil && !errors.Is(err, toxiproxy.ErrProxyAlreadyStarted) {
		t.Fatal(err)
	}
}

// faults are faults of a network. A toxic without the field toxicity affects every connection.
var faults = map[string]string{
	"cut":                     "",
	"slow":                    `{"type": "latency", "attributes": {"latency": 40, "jitter": 30}}`,
	"in pieces":               `{"type": "slicer", "attributes": {"average_size": 7, "size_variation": 6, "delay": 100}}`,
	"requests vanish":         `{"type": "timeout", "stream": "upstream", "attributes": {"timeout": 0}}`,
	"replies vanish":          `{"type": "timeout", "stream": "downstream", "attributes": {"timeout": 0}}`,
	"reset before the reply":  `{"type": "reset_peer", "stream": "downstream", "attributes": {"timeout": 0}}`,
	"closed before the reply": `{"type": "limit_data", "stream": "downstream", "attributes": {"bytes": 0}}`,
	"closed within a reply":   `{"type": "limit_data", "stream": "downstream", "attributes": {"bytes": 150}}`,
	"closed in a request":     `{"type": "limit_data", "stream": "upstream", "attributes": {"bytes": 700}}`,
}

// answerEach has help answer the invocations of TrainPhase(0) until its end, many at a time. It calls claimed with each.
func answerEach(ctx context.Context, t *testing.T, help *Member, worker *sync.WaitGroup, claimed func(v Invocation)) {
	worker.Go(func() {
		for {
			v, err := claimOne(ctx, help, TrainPhase(0))
			if errors.Is(err, ErrPhaseEnded) {
				return
			}
			if err != nil {
				t.Errorf("claim: %v", err)
				return
			}
			claimed(v)
			worker.Go(func() {
				if err := help.Invocations.Complete(ctx, v, Result{Text: "answer to " + v.Task}); err != nil {
					t.Errorf("complete: %v", err)
				}
			})
		}
	})
}

// exchange has boss submit n invocations and help answer them, and checks each answer. It calls between after a third of them.
func exchange(t *testing.T, boss, help *Member, n int, between func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var worker, waiters sync.WaitGroup
	var mu sync.Mutex
	claimed := map[string]int{}
	answerEach(ctx, t, help, &worker, func(v Invocation) {
		mu.Lock()
		defer mu.Unlock()
		claimed[v.ID()]++
	})
	var once sync.Once
	slots := make(chan struct{}, 8)
	for i := range n {
		slots <- struct{}{}
		waiters.Go(func() {
			defer func() { <-slots }()
			v := call(i)
			if r, err := boss.Invocations.Call(ctx, v); err != nil || r.Text != "answer to "+v.Task {
				t.Errorf("%s: got %+v, want the answer to %q; error %v", v.ID(), r, v.Task, err)
			}
		})
		if i == n/3 {
			once.Do(between)
		}
	}
	waiters.Wait()
	if err := boss.Phases.End(ctx, TrainPhase(0)); err != nil {
		t.Errorf("end: %v", err)
	}
	worker.Wait()
	for id, times := range claimed {
		if times != 1 {
			t.Errorf("%s was claimed %d times, want once", id, times)
		}
	}
}

// exactlyOnce checks that after an exchange the store has each invocation and its answer once.
func exactlyOnce(t *testing.T, raw *redis.Client, n int) {
	t.Helper()
	ctx := t.Context()
	want := map[string]string{}
	for i := range n {
		v := call(i)
		want[v.ID()] = fmt.Sprintf(`{"text":"answer to %s"}`, v.Task)
	}
	if d := cmp.Diff(want, raw.HGetAll(ctx, "mgrpo:{test}:result:step-0").Val()); d != "" {
		t.Errorf("answers (-want +got):\n%s", d)
	}
	entries := map[string]int{}
	for _, e := range raw.XRange(ctx, "mgrpo:{test}:stream:step-0:help", "-", "+").Val() {
		entries[e.Values["id"].(string)]++
	}
	if len(entries) != n {
		t.Errorf("%d invocations are in the stream, want %d", len(entries), n)
	}
	for id, times := range entries {
		if times != 1 {
			t.Errorf("%s is in the stream %d times, want once", id, times)
		}
	}
}

// TestFaultyNetwork: with each fault of the main agent's or the sub-agent's network, each invocation
// is stored once, claimed once and answered once. All calls complete after the fault has ended.
func TestFaultyNetwork(t *testing.T) {
	t.Parallel()
	for name, toxic := range faults {
		for _, where := range []string{"boss", "help"} {
			t.Run(name+" at "+where, func(t *testing.T) {
				t.Parallel()
				server := startServer(t)
				links := map[string]*link{"boss": newLink(t, server), "help": newLink(t, server)}
				boss := join(t, openAt(t, links["boss"].url, Options{}), "boss")
				help := join(t, openAt(t, links["help"].url, Options{}), "help")
				start(t, boss, help)
				const n = 60
				var healer sync.WaitGroup
				exchange(t, boss, help, n, func() {
					links[where].spoil(t, toxic)
					healer.Go(func() {
						patience := 300 * time.Millisecond
						if strings.HasSuffix(name, "vanish") {
							patience = 3500 * time.Millisecond // longer than the client waits for a reply
						}
						time.Sleep(patience)
						links[where].heal(t)
					})
				})
				healer.Wait()
				exactlyOnce(t, rawClient(t, &redis.Options{Addr: server.Addr()}), n)
			})
		}
	}
}

// openAt opens a store at a URL, for a test.
func openAt(t *testing.T, url string, o Options) *Store {
	t.Helper()
	o = withDefaults(o)
	o.URL = url
	s, err := Open(t.Context(), o)
	must(t, err)
	closeAfter(t, s)
	return s
}

// TestNetworkStaysBad: if a fault does not end, every call ends at its deadline. Its error
// names the agent, the missing value and the start of the wait.
func TestNetworkStaysBad(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"cut", "requests vanish", "replies vanish", "closed before the reply"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t)
			l := newLink(t, server)
			s := openAt(t, l.url, Options{Lease: time.Hour})
			boss, err := s.Join(t.Context(), "boss", team, ignore)
			must(t, err)
			s.opt.Timeout = time.Second
			v := call(0)
			l.spoil(t, faults[name])
			t.Cleanup(func() { l.heal(t) })
			began := time.Now()
			calls := map[string]func(context.Context) error{
				"a place for help":  func(ctx context.Context) error { _, err := s.Join(ctx, "help", team, ignore); return err },
				"being ready":       func(ctx context.Context) error { return boss.Round.Barrier(ctx, Ready, func([]string) {}) },
				"the plan of":       func(ctx context.Context) error { return boss.Phases.Begin(ctx, TrainPhase(0), Plan{Rollouts: 1}) },
				"the beginning of":  func(ctx context.Context) error { _, err := boss.Phases.Plan(ctx, TrainPhase(0)); return err },
				"the final plan of": func(ctx context.Context) error { _, err := boss.Phases.FinalPlan(ctx, TrainPhase(0)); return err },
				"the end of":        func(ctx context.Context) error { return boss.Phases.End(ctx, TrainPhase(0)) },
				"invocation q-0/0":  func(ctx context.Context) error { return boss.Invocations.Submit(ctx, v) },
				"the answer to":     func(ctx context.Context) error { _, err := boss.Invocations.Await(ctx, v); return err },
				"in step-0":         func(ctx context.Context) error { _, err := claimOne(ctx, boss, TrainPhase(0)); return err },
				"the answer to q-0": func(ctx context.Context) error { return boss.Invocations.Complete(ctx, v, Result{Text: "a"}) },
				"outcome q/0": func(ctx context.Context) error {
					return boss.Phases.PublishOutcome(ctx, TrainPhase(0), Outcome{Query: "q"})
				},
				"the outcomes of":     func(ctx context.Context) error { _, err := boss.Phases.Outcomes(ctx, TrainPhase(0), 1); return err },
				"boss's trajectories": func(ctx context.Context) error { return boss.Phases.PublishTrajectories(ctx, TrainPhase(0), nil) },
				"its part of":         func(ctx context.Context) error { _, err := boss.Checkpoints.Parts(ctx, 1); return err },
				"its manifest of":     func(ctx context.Context) error { _, err := boss.Checkpoints.Manifests(ctx, 1); return err },
				"boss's part":         func(ctx context.Context) error { return boss.Checkpoints.PublishPart(ctx, 1, Part{}) },
				"boss's manifest": func(ctx context.Context) error {
					return boss.Checkpoints.PublishManifest(ctx, 1, strings.Repeat("ab", 32))
				},
				"the list of":        func(ctx context.Context) error { _, err := boss.Phases.Trajectories(ctx, TrainPhase(0)); return err },
				"version 1 of boss":  func(ctx context.Context) error { return boss.Versions.Publish(ctx, 1) },
				"version 1":          func(ctx context.Context) error { return boss.Versions.Await(ctx, 1) },
				"asking for a stop":  func(ctx context.Context) error { return boss.Round.AskStop(ctx) },
				"whether a stop was": func(ctx context.Context) error { _, err := boss.Round.StopAsked(ctx); return err },
				"trimming up to 0":   func(ctx context.Context) error { return boss.Checkpoints.Trim(ctx, 0) },
			}
			var all sync.WaitGroup
			for what, do := range calls {
				all.Go(func() { checkTimeout(t, what, began, do) })
			}
			all.Wait()
		})
	}
}

// checkTimeout makes a call that cannot succeed, and checks its error.
func checkTimeout(t *testing.T, what string, began time.Time, call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	err := call(ctx)
	var timeout *TimeoutError
	if !errors.As(err, &timeout) || ctx.Err() != nil {
		t.Errorf("%s: got error %v, want a TimeoutError", what, err)
		return
	}
	if !strings.Contains(err.Error(), what) || timeout.Whom == "" || timeout.Since.Before(began) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v (for %q, since %v), want %q in it, an agent, and a time after %v", err, timeout.Whom, timeout.Since, what, began)
	}
}
