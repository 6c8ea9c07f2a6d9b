package store

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// TestMain checks that tests leave no goroutines behind. Two kinds are ignored. The Redis client's probe of a lost
// server sleeps up to a second before it notices that its pool is closed. A cut link of toxiproxy may wait for ever.
func TestMain(m *testing.M) {
	flag.Set("test.parallel", "8") // tests mostly wait
	stop := goleak.Cleanup(func(status int) {
		cluster.stop()
		sentinel.stop()
		os.Exit(status)
	})
	goleak.VerifyTestMain(m, stop, goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*NoopToxic).Pipe"), goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// backend is a server that stores can be opened on.
type backend struct {
	open func(t *testing.T, o Options) *Store
	raw  *redis.Client // reads and spoils keys
}

// backends runs a test on the embedded server, on a redis-server process, on a cluster of three, and on a master behind a Sentinel.
func backends(t *testing.T, test func(t *testing.T, b backend)) {
	t.Run("embedded", func(t *testing.T) { t.Parallel(); test(t, embeddedBackend(t)) })
	t.Run("redis-server", func(t *testing.T) { t.Parallel(); test(t, redisBackend(t)) })
	t.Run("cluster", func(t *testing.T) { t.Parallel(); test(t, cluster.backend(t)) })
	t.Run("sentinel", func(t *testing.T) { t.Parallel(); test(t, sentinel.backend(t)) })
}

func embeddedBackend(t *testing.T) backend {
	t.Helper()
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	if err := server.StartAddr("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	url := "redis://" + server.Addr()
	return backend{
		raw: rawClient(t, &redis.Options{Addr: server.Addr()}),
		open: func(t *testing.T, o Options) *Store {
			t.Helper()
			o = withDefaults(o)
			o.URL = url
			s := &Store{opt: o}
			// Without checkServer, because miniredis does not report these settings.
			if err := s.connect(t.Context(), o, false); err != nil {
				t.Fatal(err)
			}
			closeAfter(t, s)
			return s
		},
	}
}

func redisBackend(t *testing.T) backend {
	t.Helper()
	socket := startRedis(t, redisserver.Start, "--appendonly", "yes").Socket()
	return backend{
		raw: rawClient(t, &redis.Options{Network: "unix", Addr: socket}),
		open: func(t *testing.T, o Options) *Store {
			t.Helper()
			o = withDefaults(o)
			o.URL = "unix://" + socket
			s, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			closeAfter(t, s)
			return s
		},
	}
}

var processes atomic.Int64

func withDefaults(o Options) Options {
	if o.Run == "" {
		o.Run = "test"
	}
	if o.process == "" {
		o.process = fmt.Sprint("process ", processes.Add(1)) // as if each Store were in a process of its own
	}
	if o.Lease == 0 {
		o.Lease = 5 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = time.Hour
	}
	if o.MaxDeliveries == 0 {
		o.MaxDeliveries = 5
	}
	return o
}

func closeAfter(t *testing.T, s *Store) {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func rawClient(t *testing.T, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

var team = JoinRequest{Agents: []string{"boss", "help"}, Config: map[string]string{"run.seed": "17"}, Offers: []Offer{{Version: FromStart}}, Deterministic: true}

func ignore(string) {}

// claimOne waits for one invocation and claims it.
func claimOne(ctx context.Context, m *Member, p Phase) (Invocation, error) {
	vs, err := m.Invocations.Claim(ctx, p, 1)
	if err != nil {
		return Invocation{}, err
	}
	return vs[0], nil
}

func from(versions ...int64) JoinRequest {
	h := team
	h.Offers = nil
	for _, v := range versions {
		h.Offers = append(h.Offers, Offer{Version: v, Digest: fmt.Sprintf("digest%d", v)})
	}
	return h
}

// join takes a place, and leaves it at the end of the test.
func join(t *testing.T, s *Store, agent string) *Member {
	t.Helper()
	m, err := s.Join(t.Context(), agent, team, ignore)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if err := m.Leave(ctx); err != nil && s.ctx.Err() == nil {
			t.Errorf("leave: %v", err)
		}
	})
	return m
}

// pair returns a main agent and a sub-agent that have started. Each has a store of its own.
func pair(t *testing.T, b backend, o Options) (boss, help *Member) {
	t.Helper()
	boss, help = join(t, b.open(t, o), "boss"), join(t, b.open(t, o), "help")
	start(t, boss, help)
	return boss, help
}

// start has members that have all joined start from the newest state that they share.
func start(t *testing.T, members ...*Member) (s Start) {
	t.Helper()
	for _, m := range members {
		var err error
		s, err = m.Round.Start(t.Context())
		must(t, err)
	}
	return s
}

// killWorker ends a worker as SIGKILL would: it no longer renews its lease. The lease is deleted at once.
func killWorker(t *testing.T, b backend, m *Member) {
	t.Helper()
	m.place.cancel(errors.New("killed"))
	m.beats.Wait()
	must(t, m.place.rdb.Del(t.Context(), m.place.key("lease", m.Agent())).Err())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func call(i int) Invocation {
	return Invocation{Phase: TrainPhase(0), Query: fmt.Sprintf("q-%d", i/10), Rollout: i % 10, Agent: "help", Task: fmt.Sprintf("task %d", i)}
}

// TestEmbedded: without a URL, Open starts the embedded store, which mgrpo train uses.
func TestEmbedded(t *testing.T) {
	s, err := Open(t.Context(), Options{Run: "alone"})
	must(t, err)
	boss, err := s.Join(t.Context(), "boss", team, ignore)
	must(t, err)
	help, err := s.Join(t.Context(), "help", team, ignore)
	must(t, err)
	must(t, boss.Invocations.Submit(t.Context(), call(0)))
	v, err := claimOne(t.Context(), help, TrainPhase(0))
	must(t, err)
	must(t, help.Invocations.Complete(t.Context(), v, Result{Text: "yes"}))
	if r, err := boss.Invocations.Await(t.Context(), call(0)); err != nil || r.Text != "yes" {
		t.Errorf("got answer %+v, want yes; error %v", r, err)
	}
	must(t, boss.Leave(t.Context()))
	must(t, help.Leave(t.Context()))
	must(t, s.Close())
	if _, err := boss.Phases.Plan(t.Context(), TrainPhase(0)); err != ErrClosed {
		t.Errorf("after Close: got error %v, want ErrClosed", err)
	}
}

// TestServerIsChecked: Open refuses a server whose settings may lose data, unless AllowVolatile is set.
func TestServerIsChecked(t *testing.T) {
	socket := startRedis(t, redisserver.Start, "--appendonly", "no", "--maxmemory-policy", "allkeys-lru").Socket()
	_, err := Open(t.Context(), Options{Run: "r", URL: "unix://" + socket})
	want := "store: the version and settings of " + socket + `: the server may lose data: set appendonly yes and maxmemory-policy noeviction (it is allkeys-lru) in redis.conf, or with CONFIG SET; or set store.allow_volatile: "data may be lost"`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	s, err := Open(t.Context(), Options{Run: "r", URL: "unix://" + socket, AllowVolatile: true})
	must(t, err)
	must(t, s.Close())
}

// TestInsecureStoreIsRefused: a remote server without TLS and without a password is refused, unless AllowInsecure is set.
func TestInsecureStoreIsRefused(t *testing.T) {
	for _, test := range []struct {
		o  Options
		ok bool
	}{
		{Options{URL: "redis://10.0.0.5:6379/0"}, false},
		{Options{URL: "redis://redis.example"}, false},
		{Options{URL: "redis://localhost.example"}, false},
		{Options{URL: "redis://10.0.0.5:6379/0", AllowInsecure: true}, true},
		{Options{URL: "redis://10.0.0.5:6379/0", Password: "x"}, true},
		{Options{URL: "rediss://10.0.0.5:6379/0"}, true},
		{Options{URL: "redis://127.0.0.1:6379/0"}, true},
		{Options{URL: "redis://127.0.0.1:7000?addr=127.0.0.1:7001&addr=127.0.0.1:7002"}, true},
		{Options{URL: "redis://127.0.0.1:7000?addr=127.0.0.1:7001&addr=10.0.0.5:7002"}, false},
		{Options{URL: "redis://127.0.0.1:26379?master_name=m&addr=10.0.0.5:26379"}, false},
		{Options{URL: "redis://127.0.0.1:26379?master_name=m&addr=10.0.0.5:26379", AllowInsecure: true}, true},
		{Options{URL: "redis://[::1]:6379"}, true},
		{Options{URL: "unix:///tmp/s"}, true},
		{Options{URL: "http://127.0.0.1"}, false},
		{Options{URL: "redis://127.0.0.1/0?evict=yes"}, false},
		{Options{URL: "redis://127.0.0.1/x"}, false},
		{Options{URL: "redis://127.0.0.1/0?cluster=true"}, true},
		{Options{URL: "redis://127.0.0.1/3?cluster=false"}, true},
		{Options{URL: "redis://127.0.0.1?cluster=yes"}, false},
		{Options{URL: "redis://127.0.0.1?cluster=1"}, false},
		{Options{URL: "redis://127.0.0.1/3?cluster=true"}, false},
		{Options{URL: "redis://127.0.0.1:7000/3?addr=127.0.0.1:7001"}, false},
		{Options{URL: "redis://127.0.0.1:7000?addr=127.0.0.1&addr=[::1]&addr=localhost:7"}, true},
		{Options{URL: "redis://127.0.0.1?addr=redis.example"}, false},
		{Options{URL: "redis://127.0.0.1?addr="}, false},
		{Options{URL: "redis://127.0.0.1?addr=::1"}, false},
		{Options{URL: "redis://:7000?addr=:7001"}, true},
		{Options{URL: "redis://[fe80::1%25eth0]:7000", AllowInsecure: true}, true},
		{Options{URL: "redis://127.0.0.1?addr=127.0.0.1:1,127.0.0.1:2"}, false},
		{Options{URL: "redis://10.0.0.5:1,10.0.0.6:2/0", AllowInsecure: true}, false},
		{Options{URL: "redis://127.0.0.1:70000"}, false},
		{Options{URL: "redis://127.0.0.1?master_name="}, false},
		{Options{URL: "redis:10.0.0.5:6379"}, false},
		{Options{URL: "unix://tmp/s"}, false},
		{Options{URL: "redis://"}, true},
	} {
		if _, err := clientOptions(test.o); (err == nil) != test.ok {
			t.Errorf("%+v: got error %v, want none: %v", test.o, err, test.ok)
		}
	}
	for url, want := range map[string]string{"redis://:7000?addr=[::1]": "[localhost:7000 [::1]:6379]", "redis://[fe80::1%25eth0]": "[[fe80::1%eth0]:6379]"} {
		if opt, err := clientOptions(Options{URL: url, AllowInsecure: true}); err != nil || fmt.Sprint(opt.Addrs) != want {
			t.Errorf("%s: got %+v, error %v; want the addresses %s", url, opt, err, want)
		}
	}
	opt, err := clientOptions(Options{URL: "rediss://u@h1:1/2?master_name=m&addr=h2", Password: "p"})
	must(t, err)
	if want := "[h1:1 h2:6379]"; fmt.Sprint(opt.Addrs) != want {
		t.Errorf("got addresses %v, want %s", opt.Addrs, want)
	}
	if opt.MasterName != "m" || len(opt.Addrs) != 2 || opt.Username != "u" || opt.Password != "p" || opt.DB != 2 || opt.TLSConfig == nil {
		t.Errorf("got options %+v, want master m, 2 addresses, user u, password p, database 2 and TLS", opt)
	}
}

// TestServerRestart: calls wait while the server is killed and started again. Its data is kept,
// and waits, writes and new connections continue.
func TestServerRestart(t *testing.T) {
	server := startServer(t)
	open := func() *Store {
		s, err := Open(t.Context(), withDefaults(Options{URL: "unix://" + server.Socket()}))
		must(t, err)
		closeAfter(t, s)
		return s
	}
	boss, help := join(t, open(), "boss"), join(t, open(), "help")
	must(t, boss.Invocations.Submit(t.Context(), call(0)))
	v, err := claimOne(t.Context(), help, TrainPhase(0))
	must(t, err)
	answer := make(chan Result, 1)
	go func() {
		r, err := boss.Invocations.Await(t.Context(), v)
		if err != nil {
			t.Errorf("await: %v", err)
		}
		answer <- r
	}()
	server.Kill()
	late := make(chan error, 1)
	go func() { // a worker that is started meanwhile waits for the server, too
		s, err := Open(t.Context(), withDefaults(Options{URL: "unix://" + server.Socket()}))
		if err == nil {
			err = s.Close()
		}
		late <- err
	}()
	written := make(chan error, 1)
	go func() { written <- help.Invocations.Complete(t.Context(), v, Result{Text: "after"}) }()
	must(t, server.Start())
	must(t, <-written)
	must(t, <-late)
	if r := <-answer; r.Text != "after" {
		t.Errorf("got answer %+v, want the one written after the restart", r)
	}
}

// TestBusyServer: calls wait while the server runs a script of another program.
func TestBusyServer(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--lua-time-limit", "1")
	s, err := Open(t.Context(), withDefaults(Options{URL: "unix://" + server.Socket()}))
	must(t, err)
	closeAfter(t, s)
	other := rawClient(t, &redis.Options{Network: "unix", Addr: server.Socket()})
	running := make(chan error, 1)
	go func() {
		const script = "local t = redis.call('TIME')[1] + 2 while redis.call('TIME')[1] + 0 < t do end return 1"
		running <- other.Eval(t.Context(), script, nil).Err()
	}()
	time.Sleep(100 * time.Millisecond)
	must(t, s.retry(t.Context(), "a field", func(ctx context.Context) error { return s.rdb.HLen(ctx, "a").Err() }))
	must(t, <-running)
}

// TestServerGone: if the server does not come back, writes and waits end with a TimeoutError that has the last error of the connection.
func TestServerGone(t *testing.T) {
	server := startRedis(t, redisserver.Start, "--appendonly", "yes")
	s, err := Open(t.Context(), withDefaults(Options{URL: "unix://" + server.Socket()}))
	must(t, err)
	closeAfter(t, s)
	boss, err := s.Join(t.Context(), "boss", team, ignore)
	must(t, err)
	server.Kill()
	s.opt.Timeout = time.Second
	var late *TimeoutError
	if err := boss.Invocations.Submit(t.Context(), call(0)); !errors.As(err, &late) || late.Last == nil {
		t.Errorf("write: got error %v, want a TimeoutError with the last error", err)
	}
	if _, err := boss.Invocations.Await(t.Context(), call(0)); !errors.As(err, &late) || late.Last == nil {
		t.Errorf("wait: got error %v, want a TimeoutError with the last error", err)
	}
	boss.place.cancel(ErrClosed)
	boss.beats.Wait()
}

// TestTLSAndACL: a store with TLS and an ACL user can be opened only with the user's password and the server's certificate authority.
func TestTLSAndACL(t *testing.T) {
	server := startRedis(t, redisserver.StartTLS, "--appendonly", "yes",
		"--user", "default", "off", "--user", "trainer", "on", ">geheim", "~mgrpo:*", "&mgrpo:*", "+@all", "-@admin", "+info")
	o := Options{Run: "r", URL: "rediss://trainer@" + server.Addr(), Password: "geheim", TLS: TLSOptions{CAFile: server.CertFile}, Timeout: time.Hour}
	s, err := Open(t.Context(), o)
	must(t, err)
	closeAfter(t, s)
	m := join(t, s, "boss")
	must(t, m.Phases.Begin(t.Context(), TrainPhase(0), Plan{Queries: []string{"q"}, Rollouts: 1}))

	for name, spoil := range map[string]func(*Options){
		"password":  func(o *Options) { o.Password = "falsch" },
		"authority": func(o *Options) { o.TLS.CAFile = "" },
		"plaintext": func(o *Options) { o.URL = "redis://trainer@" + server.Addr() },
	} {
		bad := o
		spoil(&bad)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if s, err := Open(ctx, bad); err == nil {
			t.Errorf("opened with a wrong %s", name)
			s.Close()
		} else if strings.Contains(err.Error(), bad.Password) {
			t.Errorf("the error contains the password: %v", err)
		}
		cancel()
	}
}

// TestWrongURLIsNamed checks that a URL with or without TLS for a server of the other kind, and one of a single node for a cluster, end
// with a sentence that names the correction, and not with a timeout.
func TestWrongURLIsNamed(t *testing.T) {
	named := func(url, want string) {
		t.Helper()
		began := time.Now()
		s, err := Open(t.Context(), Options{Run: "test", URL: url, AllowInsecure: true, Timeout: time.Hour})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got error %v after %v, want %q in it", url, err, time.Since(began), want)
		}
	}
	plain, secure := startServer(t), startRedis(t, redisserver.StartTLS, "--appendonly", "yes")
	named("rediss://"+plain.Addr(), plain.Addr()+" answers without TLS: write redis://")
	named("redis://"+secure.Addr(), secure.Addr()+" wants TLS: write rediss://")
	named("redis://"+plain.Addr()+"?cluster=true", plain.Addr()+": ERR This instance has cluster support disabled: remove cluster=true")
	named("redis://"+plain.Addr()+"?master_name=m", plain.Addr()+" is not a Sentinel")
	cluster.backend(t)
	for _, p := range cluster.processes {
		if p.Addr() != cluster.owner {
			named(p.URL(), p.Addr()+" is a node of a cluster: add ?cluster=true to store.url")
		}
	}
}

// TestLongWaitsAreReported: during a long wait, notes give the reason: the store does not answer, it answers again, or an agent has
// no worker.
func TestLongWaitsAreReported(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	notes := make(chan string, 100)
	expect := func(parts ...string) {
		t.Helper()
		select {
		case note := <-notes:
			for _, part := range parts {
				if !strings.Contains(note, part) {
					t.Errorf("got note %q, want %q in it", note, part)
				}
			}
		case <-time.After(time.Hour):
			t.Errorf("got no note, want one with %q", parts)
		}
	}
	s := openAt(t, server.URL(), Options{Timeout: time.Hour, Waiting: func(note string) { notes <- note }, reportAfter: time.Millisecond})
	boss := join(t, s, "boss")
	server.Kill()
	written := make(chan error, 1)
	go func() { written <- boss.Round.AskStop(t.Context()) }()
	expect("waits since ", " for the store at "+server.Addr()+": ", "connection refused")
	must(t, server.Start())
	must(t, <-written)
	expect("the store answers again, after ")
	s.waits.forget() // as if a minute had passed
	ctx, stop := context.WithCancel(t.Context())
	go func() { written <- boss.Round.Barrier(ctx, Ready, func([]string) {}) }()
	expect("waits since ", " for help (no worker of it is alive): being ready")
	server.Kill() // while Barrier waits for an event and writes nothing
	s.waits.forget()
	expect("waits since ", " for the store at "+server.Addr()+": ")
	must(t, server.Start())
	expect("the store answers again, after ")
	stop()
	<-written
}

// TestSuspendedProcess checks that time for which this process did not run does not end a wait, and that the wait still ends after that.
func TestSuspendedProcess(t *testing.T) {
	s, err := Open(t.Context(), Options{Run: "alone", Timeout: time.Second})
	must(t, err)
	closeAfter(t, s)
	suspend := func(d time.Duration) { // as if the process had been stopped
		s.waits.suspension.total()
		s.waits.suspension.mu.Lock()
		defer s.waits.suspension.mu.Unlock()
		s.waits.suspension.last = s.waits.suspension.last.Add(-d)
	}
	var waiting context.Context
	var before, after time.Time // deadlines of the wait
	look := func(ctx context.Context) (bool, error) {
		if waiting == nil {
			waiting = ctx
			before, _ = ctx.Deadline()
			suspend(4 * time.Second)
		}
		return false, nil
	}
	awaited := func() ([]string, string) { return nil, "nothing" }
	var late *TimeoutError
	if err := s.wait(t.Context(), look, awaited, "topic"); !errors.As(err, &late) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want a TimeoutError", err)
	}
	after, _ = waiting.Deadline()
	if longer := after.Sub(before); longer < 4*time.Second-suspensionTick {
		t.Errorf("the wait was extended by %v, although the process did not run for 3 s or more", longer)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.wait(ctx, look, awaited, "topic"); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}
