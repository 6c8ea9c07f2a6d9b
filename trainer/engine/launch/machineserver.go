package launch

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/secret"
)

// ServeOptions configure ServeMachine, with the settings of the worker that it serves.
type ServeOptions struct {
	ListenOptions
	Machine   int             // number of the machine, counted from 1
	HiddenEnv []string        // environment variables that followers do not inherit
	Asked     <-chan struct{} // closed to request a clean stop of the run; may be nil
}

// ErrStopped is the error of a machine that was asked to stop while it had no worker to which it could forward the
// request.
var ErrStopped = errors.New("launch: stopped, as asked")

// ServeMachine starts a follower on each device of this machine for every round of an agent's run, until the run is over.
// It relays the worker's orders to the followers, and their replies to the worker. The error is an *RunEndedError if the run
// ended before it was complete, and an *AbsentError if no worker was found in time.
func ServeMachine(ctx context.Context, s ServeOptions) error {
	if err := checkParent(); err != nil {
		return err
	}
	digest, err := program()
	if err != nil {
		return err
	}
	config, err := secured(s.Key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var devices sync.WaitGroup
	m := &machineServer{options: s, program: digest, tls: config}
	ended := make(chan error, len(s.Devices))
	for i := range s.Devices {
		devices.Go(func() {
			// The kernel considers this thread the parent of the followers, and kills them with it.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ended <- m.serveDevice(ctx, i)
		})
	}
	err = <-ended // if one device has ended, the others end for the same reason or because of it
	cancel(errEnded)
	devices.Wait()
	close(ended)
	for other := range ended { // a device may have missed the last message of the worker, which another device received
		if runEnded := new(*RunEndedError); err == ErrStopped && (other == errComplete || errors.As(other, runEnded)) {
			err = other
		}
	}
	if err == errComplete {
		return nil
	}
	return err
}

type machineServer struct {
	options ServeOptions
	program string
	tls     *tls.Config

	mu         sync.Mutex
	takingPart bool      // whether a device takes part
	lastNote   time.Time // time of the last note about a wait
}

// waits reports the wait, at once and then every minute, for all devices together.
func (m *machineServer) waits(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.lastNote) >= time.Minute || m.takingPart {
		m.lastNote, m.takingPart = time.Now(), false
		m.options.Note(fmt.Sprintf("waits for the worker of %s at %s: %v", m.options.Agent, m.options.Address, err))
	}
}

// takesPart reports the end of the wait.
func (m *machineServer) takesPart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.takingPart {
		m.takingPart = true
		m.options.Note(fmt.Sprintf("machine %d takes part in %s at %s", m.options.Machine, m.options.Agent, m.options.Address))
	}
}

// serveDevice takes part with one device until the run is over.
func (m *machineServer) serveDevice(ctx context.Context, device int) error {
	for {
		conn, err := m.reach(ctx, device)
		if err != nil {
			return err
		}
		err = m.serveRound(ctx, conn, device)
		conn.hangUp()
		if err != nil {
			return err
		}
	}
}

// workerConn is a connection to the worker.
type workerConn struct {
	*tls.Conn
	in *bufio.Reader
}

func (c workerConn) hangUp() { _ = c.NetConn().Close() }

// refusedError reports that the worker refuses the machine.
type refusedError struct {
	why   string
	taken bool // another connection has this machine's number, perhaps an old one of its own
}

func (e *refusedError) Error() string { return e.why }

// reach connects to the worker, which may not have started yet or may be restarting.
func (m *machineServer) reach(ctx context.Context, device int) (c workerConn, err error) {
	const every = 500 * time.Millisecond
	since := time.Now()
	for {
		c, err = m.connect(ctx, device)
		var refused *refusedError
		switch {
		case err == nil, err == errComplete, errors.As(err, new(*RunEndedError)):
			return c, err
		case ctx.Err() != nil:
			return c, context.Cause(ctx)
		case errors.Is(err, errKey):
			return c, fmt.Errorf("launch: the worker of %s at %s: %w", m.options.Agent, m.options.Address, err)
		case errors.As(err, &refused) && (!refused.taken || time.Since(since) > 2*m.options.Lease):
			return c, fmt.Errorf("launch: the worker of %s at %s refuses machine %d: %w", m.options.Agent, m.options.Address, m.options.Machine, err)
		case time.Since(since) > m.options.Timeout:
			return c, &AbsentError{Who: fmt.Sprintf("the worker of %s at %s", m.options.Agent, m.options.Address), Waited: m.options.Timeout,
				Because: fmt.Sprintf("%v; start `mgrpo worker FILE --agent %s` there", err, m.options.Agent)}
		}
		m.waits(err)
		select {
		case <-time.After(every):
		case <-m.options.Asked:
			return c, ErrStopped
		case <-ctx.Done():
			return c, context.Cause(ctx)
		}
	}
}

// connect connects to the worker once, and introduces the machine.
func (m *machineServer) connect(ctx context.Context, device int) (c workerConn, err error) {
	dialer := net.Dialer{Timeout: m.options.Lease, KeepAliveConfig: keepAlive(m.options.Lease)}
	conn, err := dialer.DialContext(ctx, "tcp", m.options.Address)
	if err != nil {
		return c, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	if err = errors.Join(abandonAfter(conn, m.options.Lease), conn.SetDeadline(time.Now().Add(m.options.Lease))); err != nil {
		return c, err
	}
	c.Conn = tls.Client(conn, m.tls)
	c.in = bufio.NewReader(c.Conn)
	if err = c.HandshakeContext(ctx); err != nil {
		return c, err
	}
	h := handshake{Program: m.program, Agent: m.options.Agent, Machine: m.options.Machine, Count: m.options.Count, Device: device, Devices: m.options.Devices,
		Address: addressOf(conn.LocalAddr()), Lease: m.options.Lease}
	if err = writeFrame(c, handshakeFrame, h); err != nil {
		return c, err
	}
	message, err := c.readControl()
	switch {
	case err != nil:
		return c, err
	case message.Over != nil:
		return c, message.Over.err(m.options.Agent)
	case message.Refused != "":
		return c, &refusedError{why: message.Refused, taken: message.Taken}
	case !message.Entered:
		return c, errors.New("launch: the worker sent an order before it admitted the machine")
	}
	return c, conn.SetDeadline(time.Time{})
}

// readControl reads the worker's next control message.
func (c workerConn) readControl() (message control, err error) {
	_, content, err := readFrame(c.in, controlFrame)
	if err == nil {
		err = decodeJSON(content, &message)
	}
	return message, err
}

// serveRound lets the worker use a device for a round. The error is the reason why no other round follows.
func (m *machineServer) serveRound(ctx context.Context, c workerConn, device int) error {
	defer context.AfterFunc(ctx, c.hangUp)()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-m.options.Asked:
			_ = writeFrame(c, stopFrame, nil) // if the worker is gone, there is nothing to stop
		case <-done:
		}
	}()
	m.takesPart()
	message, err := c.readControl()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil: // the worker is gone, and may be restarted
		time.Sleep(100 * time.Millisecond) // slow down if the worker only admits the machine and leaves
		return nil
	case message.Over != nil:
		return message.Over.err(m.options.Agent)
	case message.Begin < heartbeatsPerLease:
		return errors.New("launch: unexpected message from the worker")
	}
	m.follow(c, device, message.Begin)
	return context.Cause(ctx)
}

// follow starts a follower and connects it with the worker until one of them is gone. Orders are relayed as bytes, and
// the follower's output frame by frame, so that its exit can be reported after a whole frame.
func (m *machineServer) follow(c workerConn, device int, lease time.Duration) {
	var p process
	var orders sync.WaitGroup
	var how exitReport
	err := p.start(m.options.Agent, m.options.Machine*len(m.options.Devices)+device, m.options.Devices[device],
		append(secret.Environ(m.options.HiddenEnv), followerEnv+"="+lease.String()))
	if err != nil {
		how.How = "does not start: " + err.Error()
	} else {
		orders.Go(func() {
			_, _ = io.Copy(&p, c.in)
			p.kill()
			_, _ = io.Copy(io.Discard, c.in) // until the worker has read the exit report and closes the connection
		})
		err = relay(c, &p, 2*max(lease, startTimeout))
		if how = p.finish(); err != nil {
			how.How = err.Error()
		}
	}
	_ = c.SetDeadline(time.Now().Add(m.options.Lease))
	_ = errors.Join(writeFrame(c, endedFrame, how), c.CloseWrite())
	orders.Wait()
}

// relay forwards a follower's frames until its output ends. It returns an error if a frame is malformed, or if no frame comes for
// the time of silence. This time is longer than the worker's own limit: it matters only if the worker is gone.
func relay(to io.Writer, p *process, silence time.Duration) error {
	for in := bufio.NewReader(p); ; {
		if err := p.replies.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return err
		}
		kind, content, err := readFrame(in, replyFrame, aliveFrame, turnFrame)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrClosed):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("has sent no heartbeat for %v", silence)
		case err != nil:
			return fmt.Errorf("wrote something that is not a reply: %w", err)
		}
		b, err := frame(kind, content)
		if err == nil {
			_, err = to.Write(b)
		}
		if err != nil { // the worker has left and receives nothing
			return nil
		}
	}
}
