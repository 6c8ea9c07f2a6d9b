package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// TestForgottenRound: if the store has lost its data, all workers notice it within a lease, also workers that only wait. Their calls end
// with an error that leads to a rewind, and their later writes are refused, also if another worker has begun the run again meanwhile.
func TestForgottenRound(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(t *testing.T, p *redisserver.Server){
		"FLUSHALL": func(t *testing.T, p *redisserver.Server) {
			must(t, p.Await("emptiness", func(c *redis.Client) bool { return c.FlushAll(t.Context()).Err() == nil }))
		},
		"restarted without its data": func(t *testing.T, p *redisserver.Server) {
			p.Kill()
			must(t, os.RemoveAll(filepath.Join(p.Dir, "appendonlydir")))
			must(t, p.Start())
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := startServer(t)
			o := Options{Lease: time.Second}
			boss, err := openAt(t, server.URL(), o).Join(t.Context(), "boss", team, ignore)
			must(t, err)
			help, err := openAt(t, server.URL(), o).Join(t.Context(), "help", team, ignore)
			must(t, err)
			start(t, boss, help)
			must(t, boss.Invocations.Submit(t.Context(), call(0)))
			waiting := make(chan error, 2)
			go func() { _, err := boss.Invocations.Await(boss.Context(), call(0)); waiting <- err }()
			go func() { waiting <- help.Versions.Await(help.Context(), 1) }()

			forget(t, server)
			successor := join(t, openAt(t, server.URL(), o), "help") // begins the run again
			for range 2 {
				var fenced *FencedError
				if err := <-waiting; !errors.As(err, &fenced) || !EndsRoundOnly(err) {
					t.Errorf("a wait ended with %v, want a FencedError", err)
				}
			}
			for name, err := range map[string]error{
				"a version":  help.Versions.Publish(t.Context(), 1),
				"an outcome": boss.Phases.PublishOutcome(t.Context(), TrainPhase(0), Outcome{Query: "q"}),
				"a stop":     boss.Round.Stop(t.Context(), Asked, "late"),
			} {
				var fenced *FencedError
				if !errors.As(err, &fenced) {
					t.Errorf("%s of the forgotten round: got error %v, want a FencedError", name, err)
				}
			}
			if err := context.Cause(successor.Context()); err != nil {
				t.Errorf("the new round has ended with %v", err)
			}
		})
	}
}

// TestForgottenRoundIsCalledSo: the error of a worker fenced by an empty store reports that the store was wiped, not that another worker
// took the place.
func TestForgottenRoundIsCalledSo(t *testing.T) {
	err := &FencedError{Agent: "boss", Epoch: 1}
	if !strings.Contains(err.Error(), "wiped") || !strings.Contains(err.Error(), "resume") {
		t.Errorf("got error %q, want wiped and resume in it", err)
	}
}
