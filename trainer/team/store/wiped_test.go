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

// A store that has forgotten everything is noticed by all workers, also by those that only wait, before the
// next step: within a lease. What they say is that the agents have to be resumed, and from then on they change
// nothing, also when somebody else has begun the run anew meanwhile.
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
			boss, err := openAt(t, server.URL(), o).Join(t.Context(), "boss", team, silent)
			must(t, err)
			help, err := openAt(t, server.URL(), o).Join(t.Context(), "help", team, silent)
			must(t, err)
			start(t, boss, help)
			must(t, boss.Submit(t.Context(), call(0)))
			waiting := make(chan error, 2)
			go func() { _, err := boss.Await(boss.Context(), call(0)); waiting <- err }()
			go func() { waiting <- help.Barrier(help.Context(), 1) }()

			forget(t, server)
			heir := join(t, openAt(t, server.URL(), o), "help") // begins the run anew, and knows nothing
			for range 2 {
				var fenced *FencedError
				if err := <-waiting; !errors.As(err, &fenced) || !Rewinds(err) {
					t.Errorf("a wait ended with %v", err)
				}
			}
			for name, err := range map[string]error{
				"a version":  help.PublishVersion(t.Context(), 1),
				"an outcome": boss.PublishOutcome(t.Context(), Train(0), Outcome{Query: "q"}),
				"a stop":     boss.Stop(t.Context(), "late"),
			} {
				var fenced *FencedError
				if !errors.As(err, &fenced) {
					t.Errorf("%s of the round that is forgotten: %v", name, err)
				}
			}
			if err := context.Cause(heir.Context()); err != nil {
				t.Errorf("the new round has ended: %v", err)
			}
		})
	}
}

// Who is fenced by an empty store is told that the store has lost its memory, not that there is another worker.
func TestForgottenRoundIsCalledSo(t *testing.T) {
	err := &FencedError{Agent: "boss", Epoch: 1}
	if !strings.Contains(err.Error(), "wiped") || !strings.Contains(err.Error(), "resume") {
		t.Errorf("%v", err)
	}
}
