package store

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestOffersAreRenewed: a worker that waits for a place looks up its checkpoints when it gets
// the place. The worker before it may have written new ones and deleted old ones meanwhile.
func TestOffersAreRenewed(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		ctx := t.Context()
		join := func(agent string, h JoinRequest) *Member {
			m, err := b.open(t, Options{}).Join(ctx, agent, h, ignore)
			must(t, err)
			return m
		}
		boss, before := join("boss", from(3)), join("help", from(3))
		start(t, boss, before)
		var there atomic.Int64
		there.Store(3)
		waits, successor := make(chan string, 1), make(chan *Member)
		go func() {
			h := from()
			h.Renew = func() ([]Offer, bool, error) { return from(there.Load()).Offers, false, nil }
			m, err := b.open(t, Options{}).Join(ctx, "help", h, func(what string) { waits <- what })
			if err != nil {
				t.Error(err)
			}
			successor <- m
		}()
		if what := <-waits; !strings.Contains(what, "another worker of help is alive") {
			t.Errorf("got note %q, want the reason why it waits", what)
		}
		for v := range int64(6) {
			must(t, before.Versions.Publish(ctx, 4+v))
		}
		there.Store(9)
		must(t, before.Leave(ctx))
		m := <-successor
		if m == nil {
			return
		}
		if s := start(t, m); !s.Follows || s.Version != 9 || s.Digest != "digest9" {
			t.Errorf("the successor starts from %+v, want version 9", s)
		}
		must(t, m.Leave(ctx))
		must(t, boss.Leave(ctx))

		broken := errors.New("the disk is broken")
		h := from()
		h.Renew = func() ([]Offer, bool, error) { return nil, false, broken }
		if _, err := b.open(t, Options{Run: "another"}).Join(ctx, "help", h, ignore); !errors.Is(err, broken) {
			t.Errorf("checkpoints could not be looked up: got error %v, want %v", err, broken)
		}
	})
}

// TestRewind: a worker cannot repeat the lost worker's steps if its checkpoint is older or if the run is not
// deterministic. Then all workers leave the round, and the next round begins without any data of the old one.
func TestRewind(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		loose := from(4)
		loose.Deterministic = false
		for name, request := range map[string]JoinRequest{"older": from(4), "not deterministic": loose} {
			ctx := t.Context()
			newRun := Options{Run: strings.ReplaceAll(name, " ", "-")}
			join := func(agent string) *Member {
				m, err := b.open(t, newRun).Join(ctx, agent, request, ignore)
				must(t, err)
				return m
			}
			boss, dead := join("boss"), join("help")
			start(t, boss, dead)
			must(t, boss.Phases.Begin(ctx, TrainPhase(4), Plan{Queries: []string{"q"}, Rollouts: 1}))
			if name == "older" {
				must(t, dead.Versions.Publish(ctx, 5))
			}
			killWorker(t, b, dead)
			waits := make(chan string, 1)
			successor := make(chan *Member)
			go func() {
				m, err := b.open(t, newRun).Join(ctx, "help", request, func(what string) { waits <- what })
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				successor <- m
			}()
			select {
			case <-boss.Context().Done():
			case <-successor:
				t.Fatalf("%s: the place was taken over in the same round", name)
			}
			if err := context.Cause(boss.Context()); !EndsRoundOnly(err) || !strings.Contains(err.Error(), "help: its worker was lost") {
				t.Errorf("%s: the other worker's context ended with %v, want a rewind because of help", name, err)
			}
			if what := <-waits; !strings.Contains(what, "not all of its workers have left: boss") {
				t.Errorf("%s: got note %q, want that boss has not left", name, what)
			}
			must(t, boss.Leave(ctx))
			again := <-successor
			if again == nil {
				return
			}
			boss2 := join("boss")
			if s := start(t, again, boss2); s.Version != 4 || s.Digest != "digest4" {
				t.Errorf("%s: the new round started from %v, want version 4", name, s)
			}
			if again.Round.Nonce() == dead.Round.Nonce() || boss2.Epoch() < boss.Epoch()+2 {
				t.Errorf("%s: rounds %s and %s, want different ones; epochs %d and %d, want 2 more", name, dead.Round.Nonce(), again.Round.Nonce(), boss.Epoch(), boss2.Epoch())
			}
			must(t, again.Versions.Publish(ctx, 5)) // the next worker of help offers the checkpoint of it
			killWorker(t, b, again)
			if name == "older" {
				m, err := b.open(t, newRun).Join(ctx, "help", from(5, 4), ignore)
				must(t, err)
				if again = m; start(t, again).Version != 5 {
					t.Errorf("the takeover did not start from version 5, the newest one of its agent")
				}
			}
			must(t, boss2.Phases.Begin(ctx, TrainPhase(4), Plan{Queries: []string{"another"}, Rollouts: 1}))
			if err := boss.Phases.Begin(ctx, TrainPhase(4), Plan{Queries: []string{"q"}, Rollouts: 1}); !EndsRoundOnly(err) {
				t.Errorf("%s: a write of a worker of the old round: got error %v, want a rewind", name, err)
			}
			if name == "older" {
				must(t, again.Leave(ctx))
			}
			must(t, boss2.Leave(ctx))
		}
	})
}

// TestReplacedWhileItWaits: a worker waits for the others, and its lease expires. Another worker begins a new round. The first
// worker must not wait on: it has no place in the new round, and the other worker waits for it.
func TestReplacedWhileItWaits(t *testing.T) {
	waits := map[string]func(context.Context, *Member) error{
		"start":   func(ctx context.Context, m *Member) error { _, err := m.Round.Start(ctx); return err },
		"barrier": func(ctx context.Context, m *Member) error { return m.Round.Barrier(ctx, Ready, func([]string) {}) },
	}
	three := team
	three.Agents = []string{"boss", "help", "show"} // show never joins, so both wait
	backends(t, func(t *testing.T, b backend) {
		for name, wait := range waits {
			join := func(agent string) *Member {
				m, err := b.open(t, Options{Run: name}).Join(t.Context(), agent, three, ignore)
				must(t, err)
				return m
			}
			m := join("help")
			ended := make(chan error)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				ended <- wait(ctx, m)
			}()
			boss := m
			for boss.Round.Nonce() == m.Round.Nonce() { // again if m renewed its lease before boss joined
				must(t, m.place.rdb.Del(t.Context(), m.place.key("lease", "help")).Err())
				if boss != m {
					must(t, boss.Leave(t.Context()))
				}
				boss = join("boss")
			}
			_ = m.ConfirmPlace(t.Context()) // notices it now, not with the next renewal of the lease
			if err := <-ended; !errors.As(err, new(*FencedError)) {
				t.Errorf("%s: got error %v, want that the worker was replaced", name, err)
			}
			must(t, boss.Leave(t.Context()))
		}
	})
}

func TestRoundOfAStep(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		ctx := t.Context()
		plan := Plan{Queries: []string{"b", "a#epoch=2"}, Rollouts: 2}
		var wg sync.WaitGroup
		wg.Go(func() {
			got, err := help.Phases.Plan(ctx, TrainPhase(7))
			if d := cmp.Diff(plan, got); err != nil || d != "" {
				t.Errorf("plan: %v\n%s", err, d)
			}
			lists, err := help.Phases.Trajectories(ctx, TrainPhase(7))
			if d := cmp.Diff(map[string][]string{"boss": {"a", "b"}, "help": {}}, lists); err != nil || d != "" {
				t.Errorf("trajectories: %v\n%s", err, d)
			}
			if err := help.Versions.Await(ctx, 1); err != nil {
				t.Errorf("barrier: %v", err)
			}
		})
		must(t, boss.Phases.Begin(ctx, TrainPhase(7), plan))
		must(t, boss.Phases.PublishTrajectories(ctx, TrainPhase(7), []string{"b", "a"}))
		must(t, help.Phases.PublishTrajectories(ctx, TrainPhase(7), nil))
		for range 2 { // the second write changes nothing
			must(t, help.Versions.Publish(ctx, 1))
		}
		must(t, boss.Versions.Publish(ctx, 1))
		wg.Wait()
		if err := help.Versions.Publish(ctx, 3); err == nil || !strings.Contains(err.Error(), "version 3 of help: it does not follow the stored version, 1") {
			t.Errorf("version 3 after 1: got error %v, want one that it does not follow", err)
		}
	})
}
