package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// startServer starts a durable redis-server on a port, for a test.
func startServer(t *testing.T, args ...string) *redisserver.Server {
	t.Helper()
	p, err := redisserver.Start(slices.Concat(redisserver.Durable, args)...)
	must(t, err)
	t.Cleanup(p.Remove)
	return p
}

// startRedis starts a redis-server with other settings, for a test.
func startRedis(t *testing.T, start func(...string) (*redisserver.Server, error), args ...string) *redisserver.Server {
	t.Helper()
	p, err := start(append(args, "--save", "")...)
	must(t, err)
	t.Cleanup(p.Remove)
	return p
}

// fleet is a group of servers that several tests share.
type fleet struct {
	once      sync.Once
	start     func(*fleet) error
	err       error
	processes []*redisserver.Server
	url       string
	owner     string // address of the server that has the keys of the run "test"
}

var cluster = &fleet{start: startCluster}

// sentinel is shared by tests that kill no server. Its Sentinel waits ten minutes, so it does not replace the master of a busy machine.
var sentinel = &fleet{start: func(f *fleet) error { return startSentinel(f, 10*time.Minute) }}

func (f *fleet) add(args ...string) (*redisserver.Server, error) {
	p, err := redisserver.Start(args...)
	if err == nil {
		f.processes = append(f.processes, p)
	}
	return p, err
}

func (f *fleet) stop() {
	for _, p := range f.processes {
		p.Remove()
	}
}

// backend starts the servers before their first test, and empties them before each.
func (f *fleet) backend(t *testing.T) backend {
	t.Helper()
	if testing.Short() {
		t.Skip("starts several servers")
	}
	f.once.Do(func() { f.err = f.start(f) })
	must(t, f.err)
	raw := rawClient(t, &redis.Options{Addr: f.owner})
	must(t, raw.FlushAll(t.Context()).Err())
	return backend{raw: raw, open: func(t *testing.T, o Options) *Store {
		t.Helper()
		o = withDefaults(o)
		o.URL = f.url
		s, err := Open(t.Context(), o)
		must(t, err)
		closeAfter(t, s)
		return s
	}}
}

// startCluster starts three masters that share the slots.
func startCluster(f *fleet) error {
	const nodes, slots = 3, 16384
	ctx := context.Background()
	var buses []string
	for range nodes {
		bus, err := redisserver.FreePort()
		if err != nil {
			return err
		}
		buses = append(buses, bus)
		if _, err := f.add(append(slices.Clone(redisserver.Durable), "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "5000")...); err != nil {
			return err
		}
	}
	for i, p := range f.processes {
		c := redis.NewClient(&redis.Options{Addr: p.Addr()})
		defer c.Close()
		first, last := i*slots/nodes, (i+1)*slots/nodes-1
		slot, err := c.ClusterKeySlot(ctx, "mgrpo:{test}:meta").Result()
		if err != nil {
			return err
		}
		if first <= int(slot) && int(slot) <= last {
			f.owner = p.Addr()
		}
		for _, command := range [][]any{
			{"CLUSTER", "SET-CONFIG-EPOCH", i + 1},
			{"CLUSTER", "ADDSLOTSRANGE", first, last},
			{"CLUSTER", "MEET", "127.0.0.1", f.processes[0].Port, buses[0]},
		} {
			if err := c.Do(ctx, command...).Err(); err != nil {
				return fmt.Errorf("%v: %w", command, err)
			}
		}
	}
	for _, p := range f.processes {
		if err := p.Await("cluster", func(c *redis.Client) bool {
			info := c.ClusterInfo(ctx).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(nodes))
		}); err != nil {
			return err
		}
	}
	f.url = f.processes[1].URL() + "?addr=" + f.processes[2].Addr()
	return nil
}

// startSentinel starts a master, a replica and a Sentinel that replaces the master if it has not answered for the given time.
func startSentinel(f *fleet, silent time.Duration) error {
	master, err := f.add(redisserver.Durable...)
	if err != nil {
		return err
	}
	replica, err := f.add(append(slices.Clone(redisserver.Durable), "--replicaof", "127.0.0.1", master.Port, "--repl-diskless-sync-delay", "0")...)
	if err != nil {
		return err
	}
	if err := replica.Await("copy of the master", func(c *redis.Client) bool {
		return strings.Contains(c.Info(context.Background(), "replication").Val(), "master_link_status:up")
	}); err != nil {
		return err
	}
	conf := filepath.Join(master.Dir, "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor team 127.0.0.1 %s 1\nsentinel down-after-milliseconds team %d\nsentinel failover-timeout team 5000\n", master.Port, silent.Milliseconds())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	watch, err := f.add(conf, "--sentinel")
	if err != nil {
		return err
	}
	f.owner, f.url = master.Addr(), watch.URL()+"?master_name=team"
	return watch.Await("knowledge of the replica", func(c *redis.Client) bool {
		replicas, _ := c.Do(context.Background(), "SENTINEL", "REPLICAS", "team").Slice()
		return len(replicas) == 1
	})
}
