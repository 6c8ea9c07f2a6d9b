// Package store exchanges data between the agents of a run through Redis: sub-tasks and their answers, outcomes, lists of
// trajectories, versions and statistics. Only text and statistics pass through the store; tokens, log-probs, gradients and
// weights never do. docs/protocol.md describes the protocol.
//
// A Store is a connection to the server. A Member is one agent's place in the run; its fields are the parts of the shared
// data, such as Member.Invocations. A process may have several members of one Store (mgrpo train) or one member (mgrpo
// worker); both use the same code, and the server cannot distinguish them.
//
// Every write is a Lua script of the folder scripts. It is idempotent by id, checks that the writer's epoch is the newest of its agent, and
// publishes a topic on the run's channel. A Store receives the channel's messages on one connection for all goroutines. A
// goroutine that waits reads its key, sleeps until the topic of the key is published, and reads the key again.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// ProtocolVersion is the version of keys, values and scripts. Workers of different protocol versions refuse to train
// together.
const ProtocolVersion = 9

// TLSOptions holds the TLS settings of a rediss:// connection.
type TLSOptions struct {
	CAFile, CertFile, KeyFile string // PEM files
	ServerName                string // name in the server's certificate; "": the URL's host
}

// Options defines which store to open and how long to wait.
type Options struct {
	Run   string // name of the run, which names its keys
	Aside string // name of an activity next to the run, such as an evaluation, whose keys are separate; "": the run itself
	URL   string // redis://, rediss:// or unix://; "": an embedded store of this process, which ends with Close

	Username, Password           string
	TLS                          TLSOptions // for rediss://
	AllowInsecure, AllowVolatile bool       // the configuration allows it explicitly

	Lease   time.Duration // a worker that is silent for longer counts as dead; 0: 15 s
	Timeout time.Duration // longest wait for another agent; 0: 30 min

	MaxDeliveries int // an invocation is given up after this many workers were lost while they had claimed it; 0: 5

	// Waiting receives a message, at most once a minute, when a wait is long because the store cannot be reached
	// or an agent has no worker. It receives another message when the store answers again. nil: no messages.
	Waiting func(what string) `json:"-"`

	reportAfter time.Duration // shorter waits do not cause a message; 0: noticeAfter
	process     string        // random name of the process; "": thisProcess
}

// thisProcess is a random name of the process. If the same process takes a place again, its worker was not lost.
var thisProcess = rand.Text()

// Store is a connection to the shared data of one run. Its methods may be called from any number of goroutines.
type Store struct {
	opt      Options
	embedded *miniredis.Miniredis // nil with a real server
	rdb      redis.UniversalClient
	batches  batches // groups commands that are sent together
	topics   topics
	waits    waitReporter
	agents   agents

	ctx    context.Context // ends with the run, or with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// Open connects to a server, or starts an embedded one, and checks its version and settings.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := checkName("a run", o.Run); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	o.Lease = cmp.Or(o.Lease, 15*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Minute)
	o.process = cmp.Or(o.process, thisProcess)
	o.MaxDeliveries = cmp.Or(o.MaxDeliveries, 5)
	o.reportAfter = cmp.Or(o.reportAfter, noticeAfter)
	s := &Store{opt: o}
	if o.URL == "" {
		s.embedded = miniredis.NewMiniRedis()
		s.embedded.ClockTTL(true)
		o.Username, o.Password = "", rand.Text() // other users of the machine must not reach it
		s.embedded.RequireAuth(o.Password)
		if err := s.embedded.StartAddr("127.0.0.1:0"); err != nil {
			return nil, fmt.Errorf("store: embedded: %w", err)
		}
		o.URL = "redis://" + s.embedded.Addr()
	}
	if err := s.connect(ctx, o, s.embedded == nil); err != nil {
		if s.embedded != nil {
			s.embedded.Close()
		}
		return nil, err
	}
	return s, nil
}

// connect opens the connections and starts the reader of events. With check it also checks the server's version and
// settings.
func (s *Store) connect(ctx context.Context, o Options, check bool) error {
	redisOpt, err := clientOptions(o)
	if err != nil {
		return err
	}
	s.waits.send, s.waits.after = o.Waiting, o.reportAfter
	s.rdb = redis.NewUniversalClient(redisOpt)
	s.batches.rdb = s.rdb
	s.topics.channel = s.rdb.Subscribe(ctx, s.key("events"))
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.wg.Go(func() { s.waits.suspension.watch(s.ctx) })
	if err := s.awaitServer(ctx, redisOpt, check); err != nil {
		s.cancel(ErrClosed)
		return errors.Join(err, s.topics.channel.Close(), s.rdb.Close())
	}
	s.wg.Go(s.readEvents)
	return nil
}

// firstAnswer is the time that a server has to answer before checkTLS looks for the reason.
const firstAnswer = 3 * time.Second

// awaitServer waits until the server answers, and checks it. A server that is still starting has one minute.
func (s *Store) awaitServer(ctx context.Context, redisOpt *redis.UniversalOptions, check bool) error {
	ctx, cancel := context.WithTimeout(ctx, min(s.opt.Timeout, time.Minute))
	defer cancel()
	if check {
		checked := func(ctx context.Context) error {
			if err := checkServer(ctx, s.rdb, s.opt.AllowVolatile); err != nil {
				return err
			}
			return s.Ping(ctx) // a node of a cluster refuses keys that are on another node
		}
		first := true
		if err := s.retry(ctx, "the version and settings of "+strings.Join(redisOpt.Addrs, ", "), func(ctx context.Context) error {
			if !first {
				return checked(ctx)
			}
			first = false
			short, cancel := context.WithTimeout(ctx, firstAnswer)
			defer cancel()
			err := checked(short)
			if err != nil && transient(err) {
				return cmp.Or(checkTLS(ctx, redisOpt), err)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return s.retry(ctx, "listening to "+s.key("events"), func(ctx context.Context) error {
		_, err := s.topics.channel.Receive(ctx)
		return err
	})
}

// Ping waits until the store answers a request.
func (s *Store) Ping(ctx context.Context) error { return s.rdb.Exists(ctx, s.key("meta")).Err() }

// Close ends all waits and closes the connection. The data of an embedded store are lost. Members should call Leave before;
// otherwise their places remain taken until their leases expire.
func (s *Store) Close() error {
	s.cancel(ErrClosed)
	err := s.topics.channel.Close()
	s.wg.Wait()
	err = errors.Join(err, s.rdb.Close())
	s.batches.close()
	if s.embedded != nil {
		s.embedded.Close()
	}
	return err
}

// key returns the name of a key of the run. The braces are the hash tag of Redis Cluster: all keys of a run are on one
// node, so a script may use several of them.
func (s *Store) key(parts ...string) string {
	prefix := "mgrpo:{" + s.opt.Run + "}:"
	if s.opt.Aside != "" {
		prefix += s.opt.Aside + ":"
	}
	return prefix + strings.Join(parts, ":")
}

// retry repeats an idempotent operation while the server cannot be reached, up to the store's timeout.
func (s *Store) retry(ctx context.Context, what string, op func(context.Context) error) error {
	since := time.Now()
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	var last error
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := op(ctx)
		if err == nil {
			s.waits.storeBack()
			return nil
		}
		if !overdue(err) {
			last = err
		}
		if ctx.Err() != nil {
			return waitError(ctx, "the store", what, since, last)
		}
		if s.ctx.Err() != nil { // the run has ended, or the Store is closed
			return context.Cause(s.ctx)
		}
		if !transient(err) {
			return fmt.Errorf("store: %s: %w", what, s.advise(err))
		}
		s.waits.storeGone(s.opt.URL, since, err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return waitError(ctx, "the store", what, since, last)
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}

// field reads a field of a hash, or "" if it is missing. what names the field in errors.
func (s *Store) field(ctx context.Context, key, name, what string) (text string, err error) {
	err = s.retry(ctx, what, func(ctx context.Context) error {
		text, err = s.rdb.HGet(ctx, key, name).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	return text, err
}

// waitError returns the error of a wait whose context has ended: a TimeoutError after a deadline, the cause after a
// cancellation.
func waitError(ctx context.Context, whom, what string, since time.Time, last error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &TimeoutError{Whom: whom, What: what, Since: since, After: time.Since(since), Last: last}
	}
	return context.Cause(ctx)
}
