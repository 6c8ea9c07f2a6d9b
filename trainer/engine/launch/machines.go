package launch

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Machines holds the connections of an agent's further machines. The worker listens, and each machine connects once for
// each of its devices. A connection lasts as long as its follower; then the machine connects again for the next round.
// A nil *Machines has no machines.
type Machines struct {
	settings  MachineSettings
	program   string
	tls       *tls.Config
	listener  net.Listener
	accepting sync.WaitGroup
	entering  chan struct{} // holds one element for each connection that is not authenticated yet

	mu         sync.Mutex
	conns      map[int]*deviceConn // open connections, by rank
	changed    chan struct{}       // closed and replaced when a connection enters
	unnotified map[int]bool        // machines that took part and have not received the end of the run
	runEnd     *RunEnd             // nil: the run continues
	refused    int                 // number of refused connections
}

// MachineSettings describes the machines of one agent.
type MachineSettings struct {
	Agent   string
	Count   int      // including the worker's machine
	Devices []string // of each machine
	Address string   // HOST:PORT; all addresses of this machine if HOST is a name
	Key     []byte
	Lease   time.Duration // a machine without an answer for this time counts as lost
	Timeout time.Duration // the longest wait for machines
	Note    func(text string)
	Stop    func(machine int) // called when a machine is asked to stop the run
}

// Listen starts to listen for machines.
func Listen(s MachineSettings) (*Machines, error) {
	digest, err := program()
	if err != nil {
		return nil, err
	}
	config, err := secured(s.Key)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) == nil { // a name may be known to other machines only
		host = ""
	}
	listening := net.ListenConfig{KeepAliveConfig: keepAlive(s.Lease)}
	listener, err := listening.Listen(context.Background(), "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("launch: agents.%s.machines.address: %w%s", s.Agent, err, cannotListen(s.Agent, err))
	}
	const mostStrangers = 64
	m := &Machines{settings: s, program: digest, tls: config, listener: listener, entering: make(chan struct{}, mostStrangers),
		conns: map[int]*deviceConn{}, changed: make(chan struct{}), unnotified: map[int]bool{}}
	m.accepting.Go(m.accept)
	return m, nil
}

// cannotListen returns a remedy for an error of listening, or "".
func cannotListen(agent string, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf(": does another worker of %s run on this machine?", agent)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf(": the address belongs to another machine, on which the worker must run; start a further machine of %s with --machine N", agent)
	}
	return ""
}

// accept accepts connections, with a bounded number of unauthenticated ones at a time.
func (m *Machines) accept() {
	for {
		conn, err := m.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // there are no free descriptors, or the other end is already gone
			time.Sleep(100 * time.Millisecond)
			continue
		}
		select {
		case m.entering <- struct{}{}:
			go func() {
				m.admit(conn)
				<-m.entering
			}()
		default:
			_ = conn.Close()
		}
	}
}

// admit authenticates a connection.
func (m *Machines) admit(conn net.Conn) {
	secure := tls.Server(conn, m.tls)
	l := &deviceConn{conn: secure, in: bufio.NewReader(secure), here: addressOf(conn.LocalAddr()), machines: m, ready: make(chan struct{})}
	const toProve = 5 * time.Second
	err := errors.Join(abandonAfter(conn, m.settings.Lease), conn.SetDeadline(time.Now().Add(min(m.settings.Lease, toProve))))
	var content []byte
	var h handshake
	if err == nil {
		err = secure.Handshake()
	}
	if err != nil {
		_ = conn.Close()
		m.noteRefusal(fmt.Sprintf("a connection from %v does not prove that it has the key of %s's machines: %v", conn.RemoteAddr(), m.settings.Agent, err))
		return
	}
	if _, content, err = readFrame(l.in, handshakeFrame); err == nil {
		h, err = decodeHandshake(content)
	}
	if err != nil {
		_ = conn.Close()
		if !errors.Is(err, io.EOF) { // otherwise the machine closed it, because another of its connections was refused
			m.noteRefusal(fmt.Sprintf("a connection from %v is not one of the machines of %s: %v", conn.RemoteAddr(), m.settings.Agent, err))
		}
		return
	}
	if why := h.refusal(m.settings, m.program); why != "" {
		m.noteRefusal(fmt.Sprintf("machine %d at %s is refused: %s", h.Machine, h.Address, why))
		l.dismiss(control{Refused: why})
		return
	}
	if why := m.addressMismatch(l.here, h.Address); why != "" {
		m.noteRefusal(fmt.Sprintf("machine %d at %s is refused: %s", h.Machine, h.Address, why))
		l.dismiss(control{Refused: why})
		return
	}
	l.machine, l.device, l.address, l.rank = h.Machine, h.Devices[h.Device], h.Address, h.Machine*len(h.Devices)+h.Device
	m.enter(l)
}

// addressMismatch returns the reason why ranks cannot use the addresses at the two ends of a connection to reach each
// other, or "" if they can.
func (m *Machines) addressMismatch(here, there string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.conns {
		if other.here != here {
			return fmt.Sprintf("it reached this machine at %s and another machine reached it at %s, but all ranks must use one address: set agents.%s.machines.address to an address that all machines can reach", here, other.here, m.settings.Agent)
		}
	}
	if isLoopback(there) != isLoopback(here) {
		return fmt.Sprintf("its own address is %s, but its connection comes from %s: ranks connect in both directions, without a tunnel or NAT", there, here)
	}
	return ""
}

func isLoopback(address string) bool {
	at, err := netip.ParseAddr(address)
	return err == nil && at.IsLoopback()
}

// noteRefusal reports a refused connection, a bounded number of times.
func (m *Machines) noteRefusal(text string) {
	const most = 20
	m.mu.Lock()
	m.refused++
	silent := m.refused > most || m.runEnd != nil
	m.mu.Unlock()
	if !silent {
		m.settings.Note(text)
	}
}

// enter keeps a connection for the next round, unless the run is over.
func (m *Machines) enter(l *deviceConn) {
	m.mu.Lock()
	other, over := m.conns[l.rank], m.runEnd
	enters := other == nil && over == nil
	if enters && writeFrame(l.conn, controlFrame, control{Entered: true}) == nil && l.conn.SetDeadline(time.Time{}) == nil {
		m.conns[l.rank], m.unnotified[l.machine] = l, true
		close(m.changed)
		m.changed = make(chan struct{})
	}
	m.mu.Unlock()
	switch {
	case enters:
		go l.await()
	case over != nil:
		m.dismiss(l, *over)
	default:
		l.dismiss(control{Taken: true, Refused: fmt.Sprintf("machine %d is already connected, from %s", other.machine, other.address)})
	}
}

// remove removes a connection.
func (m *Machines) remove(l *deviceConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns[l.rank] == l {
		delete(m.conns, l.rank)
	}
}

// dismiss reports to a machine that the run is over.
func (m *Machines) dismiss(l *deviceConn, over RunEnd) {
	l.dismiss(control{Over: &over})
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.unnotified, l.machine)
}

// take waits until every device of every machine is connected and none belongs to a group, and then has each start a
// follower.
func (m *Machines) take(ctx context.Context) (taken []*deviceConn, err error) {
	if m == nil {
		return nil, nil
	}
	late, noted := time.After(m.settings.Timeout), ""
	for {
		m.mu.Lock()
		missing := m.missing()
		for rank := len(m.settings.Devices); missing == "" && rank < m.settings.Count*len(m.settings.Devices); rank++ {
			m.conns[rank].taken = true
			taken = append(taken, m.conns[rank])
		}
		changed := m.changed
		m.mu.Unlock()
		if missing == "" {
			break
		}
		if missing != noted {
			noted = missing
			m.settings.Note("waits for " + missing + ", to come to " + m.settings.Address)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late:
			return nil, &AbsentError{Who: missing, Waited: m.settings.Timeout, Because: fmt.Sprintf("start `mgrpo worker FILE --agent %s --machine N` there, with a way to %s", m.settings.Agent, m.settings.Address)}
		}
	}
	for _, l := range taken {
		_ = writeFrame(l.conn, controlFrame, control{Begin: m.settings.Lease}) // if it is gone, the group will find it lost
	}
	return taken, nil
}

// missing lists the machines for which not all devices are connected.
func (m *Machines) missing() string {
	var names []string
	for rank := len(m.settings.Devices); rank < m.settings.Count*len(m.settings.Devices); rank++ {
		name := fmt.Sprintf("machine %d of %s", rank/len(m.settings.Devices), m.settings.Agent)
		if l := m.conns[rank]; (l == nil || l.taken) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, " and ")
}

// Close reports the run's end to the machines, and stops listening. Machines that were in a group connect again to receive
// this report when their followers are gone. Close waits for them for the time within which a follower must send a
// heartbeat.
func (m *Machines) Close(over RunEnd) {
	const longest = 4 << 10
	if m == nil {
		return
	}
	over.Why = over.Why[:min(len(over.Why), longest)]
	m.mu.Lock()
	closed, idle := m.runEnd != nil, m.conns
	m.runEnd, m.conns = &over, map[int]*deviceConn{}
	m.mu.Unlock()
	if closed {
		return
	}
	for _, l := range idle {
		m.dismiss(l, over)
	}
	const look = 20 * time.Millisecond
	for waited := time.Duration(0); waited < max(m.settings.Lease, startTimeout) && m.anyUnnotified(); waited += look {
		time.Sleep(look)
	}
	_ = m.listener.Close()
	m.accepting.Wait()
}

func (m *Machines) anyUnnotified() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.unnotified) > 0
}

// deviceConn is the connection of one device of another machine, and the link to the follower there.
type deviceConn struct {
	conn    *tls.Conn
	in      *bufio.Reader
	machine int
	device  string
	rank    int
	address string        // of the machine
	here    string        // of this machine, as the other reaches it
	taken   bool          // it belongs to a group; guarded by Machines.mu
	ready   chan struct{} // closed when data has arrived, which belongs to the group
	broken  error         // reason why no further data arrives

	machines *Machines
}

// await notices if a machine is gone before it belongs to a group. Until then a machine may only forward a request to
// stop.
func (l *deviceConn) await() {
	var first []byte
	for l.broken == nil {
		if first, l.broken = l.in.Peek(1); l.broken != nil || frameKind(first[0]) != stopFrame {
			break
		}
		if _, _, l.broken = readFrame(l.in, stopFrame); l.broken == nil {
			l.machines.settings.Stop(l.machine)
		}
	}
	if l.broken != nil {
		l.kill()
	}
	close(l.ready)
}

// Write and Read exchange data with the follower. After either fails the connection has ended.
func (l *deviceConn) Write(b []byte) (int, error) { return l.conn.Write(b) }

func (l *deviceConn) Read(b []byte) (int, error) {
	<-l.ready
	if l.broken != nil {
		return 0, io.EOF
	}
	n, err := l.in.Read(b)
	if err != nil && n == 0 {
		l.broken = err
		err = io.EOF
	}
	return n, err
}

// kill closes the connection, which makes the machine kill the follower. It sends no TLS close message, which would
// block if the other end does not read.
func (l *deviceConn) kill() {
	l.machines.remove(l)
	_ = l.conn.NetConn().Close()
}

func (l *deviceConn) finish() exitReport {
	l.kill()
	how := "has lost its connection"
	if l.broken != nil && !errors.Is(l.broken, io.EOF) {
		how += " (" + l.broken.Error() + ")"
	}
	return exitReport{How: how}
}

func (l *deviceConn) lastOutput() string { return "" }

// dismiss sends a last control message.
func (l *deviceConn) dismiss(w control) {
	_ = l.conn.SetWriteDeadline(time.Now().Add(l.machines.settings.Lease))
	_ = writeFrame(l.conn, controlFrame, w)
	_ = l.conn.Close()
}
