package store

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// process is a redis-server on a port of the loopback, in a folder of its own.
type process struct {
	dir, port string
	args      []string
	cmd       *exec.Cmd
}

// startProcess starts a redis-server, or with --sentinel a Sentinel, and waits until it answers.
func startProcess(args ...string) (*process, error) {
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		return nil, err
	}
	port, err := openPort()
	if err != nil {
		return nil, err
	}
	p := &process{dir: dir, port: port}
	p.args = append(args, "--port", port, "--bind", "127.0.0.1", "--dir", dir)
	return p, p.start()
}

func (p *process) start() error {
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command("redis-server", p.args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	return p.await("an answer", func(c *redis.Client) bool {
		_, err := c.Ping(context.Background()).Result()
		return err == nil
	})
}

// await waits until the server is as it should be.
func (p *process) await(what string, there func(*redis.Client) bool) error {
	c := redis.NewClient(&redis.Options{Addr: p.addr(), MaxRetries: -1, DialerRetries: 1})
	defer c.Close()
	for range 1000 {
		if there(c) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	log, _ := os.ReadFile(filepath.Join(p.dir, "log"))
	return fmt.Errorf("redis-server %v: no %s:\n%s", p.args, what, log)
}

func (p *process) addr() string { return "127.0.0.1:" + p.port }

func (p *process) url() string { return "redis://" + p.addr() }

func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// remove ends the process and deletes what it wrote.
func (p *process) remove() {
	p.kill()
	os.RemoveAll(p.dir)
}

func openPort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

var durable = []string{"--save", "", "--appendonly", "yes", "--appendfsync", "always"}

// startServer starts a durable redis-server on a port, for a test.
func startServer(t *testing.T, args ...string) *process {
	t.Helper()
	p, err := startProcess(append(durable, args...)...)
	must(t, err)
	t.Cleanup(p.remove)
	return p
}

// fleet is servers that belong together and serve several tests.
type fleet struct {
	once      sync.Once
	start     func(*fleet) error
	err       error
	processes []*process
	url       string
	owner     string // address of the server that has the keys of the run "test"
}

var cluster = &fleet{start: startCluster}
var sentinel = &fleet{start: startSentinel}

func (f *fleet) add(args ...string) (*process, error) {
	p, err := startProcess(args...)
	if p != nil && p.cmd != nil {
		f.processes = append(f.processes, p)
	}
	return p, err
}

func (f *fleet) stop() {
	for _, p := range f.processes {
		p.remove()
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
		bus, err := openPort()
		if err != nil {
			return err
		}
		buses = append(buses, bus)
		if _, err := f.add(append(durable, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "5000")...); err != nil {
			return err
		}
	}
	for i, p := range f.processes {
		c := redis.NewClient(&redis.Options{Addr: p.addr()})
		defer c.Close()
		first, last := i*slots/nodes, (i+1)*slots/nodes-1
		slot, err := c.ClusterKeySlot(ctx, "mgrpo:{test}:meta").Result()
		if err != nil {
			return err
		}
		if first <= int(slot) && int(slot) <= last {
			f.owner = p.addr()
		}
		for _, command := range [][]any{
			{"CLUSTER", "SET-CONFIG-EPOCH", i + 1},
			{"CLUSTER", "ADDSLOTSRANGE", first, last},
			{"CLUSTER", "MEET", "127.0.0.1", f.processes[0].port, buses[0]},
		} {
			if err := c.Do(ctx, command...).Err(); err != nil {
				return fmt.Errorf("%v: %w", command, err)
			}
		}
	}
	for _, p := range f.processes {
		if err := p.await("cluster", func(c *redis.Client) bool {
			info := c.ClusterInfo(ctx).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(nodes))
		}); err != nil {
			return err
		}
	}
	f.url = f.processes[1].url() + "?addr=" + f.processes[2].addr()
	return nil
}

// startSentinel starts a master, a replica and a Sentinel that watches them.
func startSentinel(f *fleet) error {
	master, err := f.add(durable...)
	if err != nil {
		return err
	}
	replica, err := f.add(append(durable, "--replicaof", "127.0.0.1", master.port, "--repl-diskless-sync-delay", "0")...)
	if err != nil {
		return err
	}
	if err := replica.await("copy of the master", func(c *redis.Client) bool {
		return strings.Contains(c.Info(context.Background(), "replication").Val(), "master_link_status:up")
	}); err != nil {
		return err
	}
	conf := filepath.Join(master.dir, "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor team 127.0.0.1 %s 1\nsentinel down-after-milliseconds team 1000\nsentinel failover-timeout team 5000\n", master.port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	watch, err := f.add(conf, "--sentinel")
	if err != nil {
		return err
	}
	f.owner, f.url = master.addr(), watch.url()+"?master_name=team"
	return watch.await("knowledge of the replica", func(c *redis.Client) bool {
		replicas, _ := c.Do(context.Background(), "SENTINEL", "REPLICAS", "team").Slice()
		return len(replicas) == 1
	})
}
