package launch

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// worker is rank 0 of an agent with two machines, with its notes.
type worker struct {
	*Machines
	mu    sync.Mutex
	notes strings.Builder
	asked chan struct{} // closed when a machine is asked to stop
}

const lease = 5 * time.Second

// listen returns a worker that listens at a free port.
func listen(t *testing.T, agent string) *worker {
	t.Helper()
	w := &worker{asked: make(chan struct{})}
	var once sync.Once
	var err error
	w.Machines, err = Listen(ListenOptions{Agent: agent, Count: 2, Devices: []string{"cpu", "cpu"}, Address: "127.0.0.1:0",
		Key: []byte("a key of these tests"), Lease: lease, Timeout: time.Hour, Note: w.note, Stop: func(int) { once.Do(func() { close(w.asked) }) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(RunEnd{}) })
	return w
}

func (w *worker) note(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(&w.notes, text)
}

func (w *worker) noted() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.notes.String()
}

// machine1 returns the settings of machine 1.
func (w *worker) machine1() ServeOptions {
	s := w.opt
	s.Address, s.Note = w.listener.Addr().String(), func(string) {}
	return ServeOptions{ListenOptions: s, Machine: 1, HiddenEnv: []string{"LAUNCH_TEST_SECRET"}}
}

// serveMachine has a machine take part until the run ends, at the latest at the end of the test. The channel receives the
// error of ServeMachine.
func (w *worker) serveMachine(t *testing.T, s ServeOptions) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- ServeMachine(ctx, s) }()
	t.Cleanup(func() {
		w.Close(RunEnd{Why: "the test is over"})
		cancel()
	})
	return ended
}

// start starts a round: rank 1 runs on this machine, ranks 2 and 3 run on machine 1.
func (w *worker) start(t *testing.T) *RankGroup {
	t.Helper()
	c, err := StartGroup(t.Context(), GroupOptions{Agent: w.opt.Agent, Devices: w.opt.Devices, Machines: w.Machines, Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	opening := func(rank int) Order {
		return Order{Kind: Open, Open: &OpenOrder{Agent: w.opt.Agent, Rank: rank, Size: 4, SharingThreads: 1}}
	}
	replies, err := c.Each(t.Context(), opening, func(context.Context) error { return nil })
	if err != nil || len(replies) != 3 || replies[0].Digest != 1 || replies[1].Digest != 2 || replies[2].Digest != 3 {
		t.Fatalf("replies to the opening: got %v, want digests 1, 2 and 3; error %v", replies, err)
	}
	return c
}

// TestMachines: followers of another machine carry out orders in several rounds. When the run
// is complete, the machine ends without an error.
func TestMachines(t *testing.T) {
	w := listen(t, "obeys")
	ended := w.serveMachine(t, w.machine1())
	for range 2 {
		c := w.start(t)
		replies, err := c.Do(t.Context(), Order{Kind: Prepare}, sequences(10_000), func(context.Context) error { return nil })
		if err != nil || len(replies) != 3 || replies[0].Digest != 50_000 || replies[2].Digest != 50_000 {
			t.Fatalf("got replies %v, want digest 50000 from each of 3; error %v", replies, err)
		}
		if at := c.Addresses(); len(at) != 4 || at[0] != "127.0.0.1" || at[3] != "127.0.0.1" {
			t.Errorf("got addresses %v, want 127.0.0.1 for each of 4 ranks", at)
		}
		c.Close()
	}
	w.Close(RunEnd{})
	if err := <-ended; err != nil {
		t.Errorf("the run is complete, but the machine ended with error %v", err)
	}
	if !strings.Contains(w.noted(), "waits for machine 1 of obeys") {
		t.Errorf("got notes %q, want one that the worker waits for machine 1", w.noted())
	}
}

// TestMachineFollowerLost: a failed follower of another machine is reported as one of this machine would be, with the machine's name added.
func TestMachineFollowerLost(t *testing.T) {
	t.Parallel()
	const machine = " on cpu of machine 1 (127.0.0.1)"
	for agent, want := range map[string]string{
		"stops":      "rank 2 of stops" + machine + " has sent no heartbeat for 5s",
		"dies":       "rank 2 of dies" + machine + " ended with exit status 2; its last output: said on the standard output panic: an accident",
		"has no GPU": "rank 2 of has no GPU" + machine + " ended with exit status 75",
		"raves":      "rank 2 of raves" + machine + " wrote something that is not a reply: launch: a frame of kind 'S'",
		"misses":     "rank 2 of misses" + machine + ": open /models/m: no such file; all machines of misses need its files and run.dir under the same paths",
	} {
		t.Run(agent, func(t *testing.T) {
			t.Parallel()
			w := listen(t, agent)
			w.serveMachine(t, w.machine1())
			c := w.start(t)
			_, err := c.Do(t.Context(), Order{Kind: ResetOptimizer}, nil, func(ctx context.Context) error {
				<-ctx.Done()
				return errors.New("connection closed by peer")
			})
			var lost *LostError
			if err == nil || !strings.HasPrefix(err.Error(), want) || errors.As(err, &lost) && lost.GPU != (agent == "has no GPU") {
				t.Errorf("got error %v, want %s", err, want)
			}
		})
	}
}

// TestMachinesRefuse: a machine that cannot take part ends with the reason. The connected machine
// continues undisturbed, also by connections without the key, without a handshake, or with a wrong one.
func TestMachinesRefuse(t *testing.T) {
	t.Parallel()
	w := listen(t, "obeys")
	w.serveMachine(t, w.machine1())
	c := w.start(t)
	silent, err := net.Dial("tcp", w.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*ServeOptions){
		"its key differs from this machine's":                               func(s *ServeOptions) { s.Key = []byte("a key of another test") },
		`this is the worker of obeys, but the machine belongs to "other"`:   func(s *ServeOptions) { s.Agent = "other" },
		"machines are numbered up to 1: there is no machine 2":              func(s *ServeOptions) { s.Machine = 2 },
		"its agents.obeys.machines.count is 3 and the worker's is 2":        func(s *ServeOptions) { s.Count = 3 },
		`its devices are ["cpu"] and the worker's are ["cpu" "cpu"]`:        func(s *ServeOptions) { s.Devices = s.Devices[1:] },
		"refuses machine 1: machine 1 is already connected, from 127.0.0.1": func(*ServeOptions) {},
		"its store.lease is 1s and the worker's is 5s":                      func(s *ServeOptions) { s.Lease = time.Second },
	} {
		s := w.machine1()
		change(&s)
		if err := ServeMachine(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) || errors.As(err, new(*AbsentError)) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
	if message := w.hears(t, handshake{Program: "another", Agent: "obeys", Machine: 1, Count: 2, Devices: []string{"cpu", "cpu"}, Address: "127.0.0.1", Lease: lease}); !strings.Contains(message.Refused, "it runs another program than the worker") {
		t.Errorf("another program: got answer %+v, want a refusal", message)
	}
	if message := w.hears(t, handshake{Program: w.program, Agent: "obeys", Machine: 1, Count: 2, Devices: []string{"cpu", "cpu"}, Address: "10.1.2.3", Lease: lease}); !strings.Contains(message.Refused, "without a tunnel") {
		t.Errorf("another address than the connection's: got answer %+v, want a refusal", message)
	}
	for _, first := range []any{nil, handshake{}, handshake{Agent: "obeys", Machine: 1 << 40, Devices: []string{"cpu"}, Address: "127.0.0.1"}} {
		if got := w.hears(t, first); got != (control{}) {
			t.Errorf("handshake %+v: got answer %+v, want none", first, got)
		}
	}
	if _, err := io.ReadAll(silent); err != nil {
		t.Errorf("a connection without a handshake: got error %v, want a closed connection", err)
	}
	if replies, err := c.Do(t.Context(), Order{Kind: ResetOptimizer}, nil, func(context.Context) error { return nil }); err != nil || len(replies) != 3 {
		t.Errorf("an order after the refusals: got replies %v, want 3; error %v", replies, err)
	}
	for _, want := range []string{"does not prove that it has the key of obeys's machines: remote error: tls: bad certificate", "machine 2 at 127.0.0.1 is refused"} {
		if !strings.Contains(w.noted(), want) {
			t.Errorf("the worker's notes lack %q:\n%s", want, w.noted())
		}
	}
}

// hears returns the worker's answer to a handshake over a connection with the key, or a zero
// value if the connection ends without an answer.
func (w *worker) hears(t *testing.T, first any) (answer control) {
	t.Helper()
	conn, err := tls.Dial("tcp", w.listener.Addr().String(), w.tls)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := writeFrame(conn, handshakeFrame, first); err != nil {
		t.Fatal(err)
	}
	_, content, err := readFrame(conn, controlFrame)
	if err == nil {
		err = decodeJSON(content, &answer)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("handshake %+v: %v", first, err)
	}
	return answer
}

// TestMachinesAbsent: a worker that waits for a machine, and a machine that waits for the worker, end after a while with advice. Cancelling
// the context ends a wait with its cause.
func TestMachinesAbsent(t *testing.T) {
	w := listen(t, "obeys")
	w.opt.Timeout = time.Millisecond
	_, err := StartGroup(t.Context(), GroupOptions{Agent: "obeys", Devices: []string{"cpu", "cpu"}, Machines: w.Machines, Lease: lease})
	var absent *AbsentError
	if !errors.As(err, &absent) || !strings.Contains(err.Error(), "no connection with machine 1 of obeys within 1ms: start `mgrpo worker FILE --agent obeys --machine N` there") {
		t.Errorf("the worker's wait: got error %v, want an AbsentError with advice", err)
	}
	own := errors.New("own")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(own)
	if _, err := StartGroup(ctx, GroupOptions{Agent: "obeys", Devices: []string{"cpu", "cpu"}, Machines: w.Machines, Lease: lease}); err != own {
		t.Errorf("a cancelled wait: got error %v, want %v", err, own)
	}
	s := w.machine1()
	w.Close(RunEnd{})
	if err := ServeMachine(t.Context(), s); !errors.As(err, &absent) || !strings.Contains(err.Error(), "the worker of obeys at 127.0.0.1:") {
		t.Errorf("the machine's wait: got error %v, want an AbsentError", err)
	}
}

// TestMachineAsked: a machine that must stop asks the worker to stop the run, before a round and
// during one. It ends when the worker reports the end of the run, or at once if there is no worker.
func TestMachineAsked(t *testing.T) {
	for _, inRound := range []bool{false, true} {
		w := listen(t, "obeys")
		s, stop := w.machine1(), make(chan struct{})
		s.Asked = stop
		ended := w.serveMachine(t, s)
		if inRound {
			w.start(t)
		}
		close(stop)
		<-w.asked
		if inRound {
			continue
		}
		over := RunEnd{Why: "as asked", Stopped: true}
		w.Close(over)
		var told *RunEndedError
		if err := <-ended; !errors.As(err, &told) || told.RunEnd != over {
			t.Errorf("after the end of the run: got error %v, want %+v", err, over)
		}
		if err := ServeMachine(t.Context(), s); err != ErrStopped {
			t.Errorf("without a worker: got error %v, want %v", err, ErrStopped)
		}
	}
}

// TestMachineVanishes: a machine that becomes unreachable without closing its connections is lost after a lease,
// also while a large order is being written to it. When it is reachable again, it takes part in the next round.
func TestMachineVanishes(t *testing.T) {
	t.Parallel()
	w := listen(t, "obeys")
	wire := newCable(t, w.listener.Addr().String())
	s := w.machine1()
	s.Address = wire.listener.Addr().String()
	w.serveMachine(t, s)
	c := w.start(t)
	wire.pulled.Store(true)
	_, err := c.Do(t.Context(), Order{Kind: Prepare}, sequences(200_000), func(context.Context) error { return nil })
	var lost *LostError
	if !errors.As(err, &lost) || !strings.Contains(lost.Follower, "of machine 1") || lost.How != "has sent no heartbeat for 5s" && !strings.HasPrefix(lost.How, "has lost its connection") {
		t.Errorf("got error %v, want a LostError of machine 1", err)
	}
	c.Close() // waits for the write
	wire.cut()
	wire.pulled.Store(false)
	w.start(t)
}

// breakableProxy forwards connections of a machine to the worker. When it is pulled, it forwards nothing and closes no connection.
type breakableProxy struct {
	listener net.Listener
	pulled   atomic.Bool
	mu       sync.Mutex
	ends     []net.Conn
}

func newCable(t *testing.T, to string) *breakableProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &breakableProxy{listener: listener}
	t.Cleanup(func() {
		listener.Close()
		c.cut()
	})
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			c.mu.Lock()
			c.ends = append(c.ends, near, far)
			c.mu.Unlock()
			go c.carry(near, far)
			go c.carry(far, near)
		}
	}()
	return c
}

func (c *breakableProxy) carry(from, to net.Conn) {
	b := make([]byte, 4<<10)
	for {
		n, err := from.Read(b)
		if c.pulled.Load() {
			return
		}
		if err != nil {
			to.Close()
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// cut closes all connections.
func (c *breakableProxy) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, end := range c.ends {
		end.Close()
	}
}

// FuzzHandshake: any first bytes of a connection with the key are the handshake of an expected machine, or they are refused.
func FuzzHandshake(f *testing.F) {
	for _, text := range []string{
		`{"program":"p","agent":"a","machine":1,"device":0,"devices":["cpu"],"address":"10.0.0.7"}`,
		`{"machine":1,"device":1,"devices":["cpu"],"address":"10.0.0.7"}`,
		`{"machine":0,"devices":["cpu"],"address":"10.0.0.7"}`,
		`{"machine":1,"devices":["cpu"],"address":"::"}`,
		`{"machine":1,"devices":["cpu"],"address":"node7"}`,
		`{"machine":1,"devices":["cpu"],"address":"fe80::1%eth0"}`,
	} {
		var b bytes.Buffer
		if err := sendRaw(&b, []byte(text)); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	settings := ListenOptions{Agent: "a", Count: 3, Devices: []string{"cpu"}}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, content, err := readFrame(bytes.NewReader(data), handshakeFrame)
		if err != nil {
			return
		}
		h, err := decodeHandshake(content)
		if err != nil || h.refusal(settings, "p") != "" {
			return
		}
		// ParseIP refuses zones.
		if h.Program != "p" || h.Agent != "a" || h.Machine < 1 || h.Machine > 2 || h.Device != 0 || net.ParseIP(h.Address) == nil {
			t.Fatalf("the wrong handshake %+v was accepted", h)
		}
	})
}

func sendRaw(to io.Writer, content []byte) error {
	b, err := frame(handshakeFrame, content)
	if err == nil {
		_, err = to.Write(b)
	}
	return err
}
