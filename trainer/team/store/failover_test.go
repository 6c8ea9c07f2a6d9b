package store

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// startReplicated starts a master, a replica and a Sentinel for one test.
func startReplicated(t *testing.T) (f *fleet, master, replica *redisserver.Server) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts several servers")
	}
	f = &fleet{}
	t.Cleanup(f.stop)
	must(t, startSentinel(f, time.Second))
	return f, f.processes[0], f.processes[1]
}

func promoted(t *testing.T, replica *redisserver.Server) {
	t.Helper()
	must(t, replica.Await("promotion", func(c *redis.Client) bool {
		return strings.Contains(c.Info(context.Background(), "replication").Val(), "role:master")
	}))
}

// TestFailover: the master dies while invocations are claimed and answered. All data that the replica had is kept, each answer arrives once
// through the new master, and no invocation is claimed twice.
func TestFailover(t *testing.T) {
	t.Parallel()
	f, master, replica := startReplicated(t)
	sentinel, _, _ := strings.Cut(f.url, "?")
	for url, want := range map[string]string{sentinel: "is a Sentinel: add ?master_name=NAME", sentinel + "?master_name=other": `do not know the master "other"`} {
		if _, err := Open(t.Context(), Options{Run: "r", URL: url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", url, err, want)
		}
	}
	boss, help := join(t, openAt(t, f.url, Options{}), "boss"), join(t, openAt(t, f.url, Options{}), "help")
	start(t, boss, help)
	const n = 40
	exchange(t, boss, help, n, func() {
		must(t, rawClient(t, &redis.Options{Addr: master.Addr()}).Do(t.Context(), "WAIT", 1, 5000).Err())
		master.Kill()
	})
	promoted(t, replica)
	exactlyOnce(t, rawClient(t, &redis.Options{Addr: replica.Addr()}), n)
}

// TestFailoverThatLosesWrites: writes that the master acknowledged and the replica did not get are lost. The run does not continue without
// them: the next version is refused, and a wait for the answer to a lost invocation ends at its deadline.
func TestFailoverThatLosesWrites(t *testing.T) {
	t.Parallel()
	f, master, replica := startReplicated(t)
	o := Options{Timeout: 30 * time.Second, Lease: time.Hour}
	boss, help := join(t, openAt(t, f.url, o), "boss"), join(t, openAt(t, f.url, o), "help")
	start(t, boss, help)
	must(t, rawClient(t, &redis.Options{Addr: master.Addr()}).Do(t.Context(), "WAIT", 1, 5000).Err())

	must(t, replica.Cmd.Process.Signal(syscall.SIGSTOP))
	must(t, rawClient(t, &redis.Options{Addr: master.Addr()}).Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Err())
	must(t, help.Versions.Publish(t.Context(), 1))
	must(t, boss.Invocations.Submit(t.Context(), call(0)))
	master.Kill()
	must(t, replica.Cmd.Process.Signal(syscall.SIGCONT))
	promoted(t, replica)

	if err := help.Versions.Publish(t.Context(), 2); err == nil || !strings.Contains(err.Error(), "version 2 of help: it does not follow the stored version, 0") {
		t.Errorf("version 2 after version 1 was lost: got error %v, want one that it does not follow", err)
	}
	var late *TimeoutError
	if _, err := boss.Invocations.Await(t.Context(), call(0)); !errors.As(err, &late) || !strings.Contains(err.Error(), "the answer to q-0/0/help/0 of step-0") {
		t.Errorf("a wait for the answer to a lost invocation: got error %v, want a TimeoutError", err)
	}
}
