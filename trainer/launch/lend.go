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
)

// Lending says to whom a machine lends its devices.
type Lending struct {
	MachineSettings
	Machine int             // its number, from 1 on
	Without []string        // environment variables that are none of the followers' business
	Asked   <-chan struct{} // closed to ask for a clean stop of the run; may be nil
}

// ErrStopped is the end of a machine that was asked to stop while there was no worker to ask.
var ErrStopped = errors.New("launch: stopped, as asked")

// Lend starts a follower on each device of this machine for every round of an agent's run, until the run is over. The worker gives
// the orders: what it sends is handed to the followers, and what they say is sent to it. The error is an *OverError if the run ended before
// it was complete, and an *AbsentError if no worker was found for a time.
func Lend(ctx context.Context, s Lending) error {
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
	ctx, over := context.WithCancelCause(ctx)
	defer over(nil)
	var devices sync.WaitGroup
	l := &lender{Lending: s, program: digest, tls: config}
	ended := make(chan error, len(s.Devices))
	for i := range s.Devices {
		devices.Go(func() {
			// The kernel takes this thread for the parent of the followers, and kills them with it.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ended <- l.lend(ctx, i)
		})
	}
	err = <-ended // the others' reasons are the same, or that this one has ended
	over(errEnded)
	devices.Wait()
	close(ended)
	for other := range ended { // where one found nobody to ask for the end, another may have been told of it
		if told := new(*OverError); err == ErrStopped && (other == errComplete || errors.As(other, told)) {
			err = other
		}
	}
	if err == errComplete {
		return nil
	}
	return err
}

type lender struct {
	Lending
	program string
	tls     *tls.Config

	mu    sync.Mutex
	there bool      // a device takes part
	said  time.Time // when a wait was spoken of
}

// waits says what is waited for, at once and then every minute, whichever device it is that waits.
func (l *lender) waits(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.said) >= time.Minute || l.there {
		l.said, l.there = time.Now(), false
		l.Note(fmt.Sprintf("waits for the worker of %s at %s: %v", l.Agent, l.Address, err))
	}
}

// takesPart says that there is a wait no longer.
func (l *lender) takesPart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.there {
		l.there = true
		l.Note(fmt.Sprintf("machine %d takes part in %s at %s", l.Machine, l.Agent, l.Address))
	}
}

// lend takes part with one device until the run is over.
func (l *lender) lend(ctx context.Context, device int) error {
	for {
		conn, err := l.reach(ctx, device)
		if err != nil {
			return err
		}
		err = l.serve(ctx, conn, device)
		conn.hangUp()
		if err != nil {
			return err
		}
	}
}

// call is a connection to the worker.
type call struct {
	*tls.Conn
	in *bufio.Reader
}

func (c call) hangUp() { _ = c.NetConn().Close() }

// refusedError is a machine that cannot take part.
type refusedError struct {
	why   string
	taken bool // another has its number, perhaps this machine's connection that is about to end
}

func (e *refusedError) Error() string { return e.why }

// reach connects to the worker, which may not be there yet, or be started again.
func (l *lender) reach(ctx context.Context, device int) (c call, err error) {
	const every = 500 * time.Millisecond
	since := time.Now()
	for {
		c, err = l.connect(ctx, device)
		var refused *refusedError
		switch {
		case err == nil, err == errComplete, errors.As(err, new(*OverError)):
			return c, err
		case ctx.Err() != nil:
			return c, context.Cause(ctx)
		case errors.Is(err, errKey):
			return c, fmt.Errorf("launch: the worker of %s at %s: %w", l.Agent, l.Address, err)
		case errors.As(err, &refused) && (!refused.taken || time.Since(since) > 2*l.Lease):
			return c, fmt.Errorf("launch: the worker of %s at %s refuses machine %d: %w", l.Agent, l.Address, l.Machine, err)
		case time.Since(since) > l.Timeout:
			return c, &AbsentError{Who: fmt.Sprintf("the worker of %s at %s", l.Agent, l.Address), Waited: l.Timeout, Because: fmt.Sprintf("%v; start `mgrpo worker FILE --agent %s` there", err, l.Agent)}
		}
		l.waits(err)
		select {
		case <-time.After(every):
		case <-l.Asked:
			return c, ErrStopped
		case <-ctx.Done():
			return c, context.Cause(ctx)
		}
	}
}

// connect connects to the worker once, and says who this is.
func (l *lender) connect(ctx context.Context, device int) (c call, err error) {
	dialer := net.Dialer{Timeout: l.Lease, KeepAliveConfig: keepAlive(l.Lease)}
	conn, err := dialer.DialContext(ctx, "tcp", l.Address)
	if err != nil {
		return c, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	if err = errors.Join(abandonAfter(conn, l.Lease), conn.SetDeadline(time.Now().Add(l.Lease))); err != nil {
		return c, err
	}
	c.Conn = tls.Client(conn, l.tls)
	c.in = bufio.NewReader(c.Conn)
	if err = c.HandshakeContext(ctx); err != nil {
		return c, err
	}
	h := hello{Program: l.program, Agent: l.Agent, Machine: l.Machine, Count: l.Count, Device: device, Devices: l.Devices, Address: addressOf(conn.LocalAddr()), Lease: l.Lease}
	if err = say(c, helloFrame, h); err != nil {
		return c, err
	}
	w, err := c.hear()
	switch {
	case err != nil:
		return c, err
	case w.Over != nil:
		return c, w.Over.err(l.Agent)
	case w.Refused != "":
		return c, &refusedError{why: w.Refused, taken: w.Taken}
	case !w.Entered:
		return c, errors.New("launch: the worker begins before it has said hello")
	}
	return c, conn.SetDeadline(time.Time{})
}

// hear is the worker's next word.
func (c call) hear() (w word, err error) {
	_, content, err := readFrame(c.in, wordFrame)
	if err == nil {
		err = decodeJSON(content, &w)
	}
	return w, err
}

// serve has the worker use a device for a round. The error is why there is none after it.
func (l *lender) serve(ctx context.Context, c call, device int) error {
	defer context.AfterFunc(ctx, c.hangUp)()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-l.Asked:
			_ = say(c, stopFrame, nil) // or the worker is gone, and there is nothing to stop
		case <-over:
		}
	}()
	l.takesPart()
	w, err := c.hear()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil: // the worker is gone, and may be started again
		time.Sleep(100 * time.Millisecond) // not without end beside one that says no more than hello
		return nil
	case w.Over != nil:
		return w.Over.err(l.Agent)
	case w.Begin < signsOfLife:
		return errors.New("launch: the worker says something else than what it is to say")
	}
	l.follow(c, device, w.Begin)
	return context.Cause(ctx)
}

// follow starts a follower and connects it with the worker until one of them is gone. Orders are handed on as they come, and what the
// follower says frame by frame, so that how it ended can be told after a whole one.
func (l *lender) follow(c call, device int, lease time.Duration) {
	var p process
	var orders sync.WaitGroup
	var how end
	err := p.start(l.Agent, l.Machine*len(l.Devices)+device, l.Devices[device], append(environment(l.Without), followerEnv+"="+lease.String()))
	if err != nil {
		how.How = "does not start: " + err.Error()
	} else {
		orders.Go(func() {
			_, _ = io.Copy(&p, c.in)
			p.kill()
			_, _ = io.Copy(io.Discard, c.in) // until the worker has heard of it
		})
		err = relay(c, &p, 2*max(lease, toStart))
		if how = p.finish(); err != nil {
			how.How = err.Error()
		}
	}
	_ = c.SetDeadline(time.Now().Add(l.Lease))
	_ = errors.Join(say(c, endedFrame, how), c.CloseWrite())
	orders.Wait()
}

// relay hands on what a follower says until it says no more. The error says what is wrong with it. The worker is the first to lose patience
// with a silent one: this patience is for when the worker itself is gone.
func relay(to io.Writer, p *process, patience time.Duration) error {
	for in := bufio.NewReader(p); ; {
		if err := p.replies.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		kind, content, err := readFrame(in, replyFrame, aliveFrame, turnFrame)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrClosed):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("has given no sign of life for %v", patience)
		case err != nil:
			return fmt.Errorf("wrote something else than a reply: %w", err)
		}
		b, err := frame(kind, content)
		if err == nil {
			_, err = to.Write(b)
		}
		if err != nil { // the worker has left, and nobody hears of it
			return nil
		}
	}
}
