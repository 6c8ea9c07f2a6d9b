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

// Machines are the further machines of an agent as its worker sees them. It listens, and they connect, once for each device. A
// connection lasts as long as a follower: when that ends, the machine connects again, for the next round. nil has no machines.
type Machines struct {
	settings  MachineSettings
	program   string
	tls       *tls.Config
	listener  net.Listener
	accepting sync.WaitGroup
	entering  chan struct{} // has an element for each connection that has not proven itself

	mu      sync.Mutex
	lines   map[int]*line // that are there, by rank
	changed chan struct{} // closed and replaced when a line comes
	untold  map[int]bool  // machines that have been there, and have not heard that the run is over
	over    *Over         // nil: it goes on
	refused int           // connections that do not take part
}

// MachineSettings say whose machines they are.
type MachineSettings struct {
	Agent   string
	Count   int      // with the worker's
	Devices []string // of each
	Address string   // HOST:PORT; all of this machine's addresses if HOST is a name
	Key     []byte
	Lease   time.Duration // who has not answered for so long is lost
	Timeout time.Duration // the longest wait for machines
	Note    func(text string)
	Stop    func(machine int) // is called when a machine is asked to stop the run
}

// Listen waits for machines from now on.
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
	if net.ParseIP(host) == nil { // a name may be one that only others know this machine by
		host = ""
	}
	listening := net.ListenConfig{KeepAliveConfig: keepAlive(s.Lease)}
	listener, err := listening.Listen(context.Background(), "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("launch: agents.%s.machines.address: %w%s", s.Agent, err, cannotListen(s.Agent, err))
	}
	const mostStrangers = 64
	m := &Machines{settings: s, program: digest, tls: config, listener: listener, entering: make(chan struct{}, mostStrangers),
		lines: map[int]*line{}, changed: make(chan struct{}), untold: map[int]bool{}}
	m.accepting.Go(m.accept)
	return m, nil
}

// cannotListen is what to do about it; "" if that is not known.
func cannotListen(agent string, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf(": does another worker of %s run on this machine?", agent)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf(": it is of another machine, where the worker belongs; a further machine of %s is started with --machine N", agent)
	}
	return ""
}

// accept lets connections in, a bounded number of strangers at a time.
func (m *Machines) accept() {
	for {
		conn, err := m.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptor is left, or the other end is gone already
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

// admit has a connection prove itself.
func (m *Machines) admit(conn net.Conn) {
	secure := tls.Server(conn, m.tls)
	l := &line{conn: secure, in: bufio.NewReader(secure), here: addressOf(conn.LocalAddr()), machines: m, ready: make(chan struct{})}
	const toProve = 5 * time.Second
	err := errors.Join(abandonAfter(conn, m.settings.Lease), conn.SetDeadline(time.Now().Add(min(m.settings.Lease, toProve))))
	var content []byte
	var h hello
	if err == nil {
		err = secure.Handshake()
	}
	if err != nil {
		_ = conn.Close()
		m.speak(fmt.Sprintf("a connection from %v does not prove that it has the key of %s's machines: %v", conn.RemoteAddr(), m.settings.Agent, err))
		return
	}
	if _, content, err = readFrame(l.in, helloFrame); err == nil {
		h, err = decodeHello(content)
	}
	if err != nil {
		_ = conn.Close()
		if !errors.Is(err, io.EOF) { // a machine of which another connection was refused
			m.speak(fmt.Sprintf("a connection from %v is not one of the machines of %s: %v", conn.RemoteAddr(), m.settings.Agent, err))
		}
		return
	}
	if why := h.refusal(m.settings, m.program); why != "" {
		m.speak(fmt.Sprintf("machine %d at %s is refused: %s", h.Machine, h.Address, why))
		l.dismiss(word{Refused: why})
		return
	}
	if why := m.strays(l.here, h.Address); why != "" {
		m.speak(fmt.Sprintf("machine %d at %s is refused: %s", h.Machine, h.Address, why))
		l.dismiss(word{Refused: why})
		return
	}
	l.machine, l.device, l.address, l.rank = h.Machine, h.Devices[h.Device], h.Address, h.Machine*len(h.Devices)+h.Device
	m.enter(l)
}

// strays says why ranks could not meet at the two ends of a connection; "" if they can.
func (m *Machines) strays(here, there string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.lines {
		if other.here != here {
			return fmt.Sprintf("it reached this machine at %s, and another at %s, where its ranks are to meet: make agents.%s.machines.address one address that all reach", here, other.here, m.settings.Agent)
		}
	}
	if isLoopback(there) != isLoopback(here) {
		return fmt.Sprintf("it says that its own address is %s, and reached this machine at %s: ranks connect both ways, without a tunnel", there, here)
	}
	return ""
}

func isLoopback(address string) bool {
	at, err := netip.ParseAddr(address)
	return err == nil && at.IsLoopback()
}

// speak says what became of a connection that does not take part, but not without end.
func (m *Machines) speak(text string) {
	const most = 20
	m.mu.Lock()
	m.refused++
	silent := m.refused > most || m.over != nil
	m.mu.Unlock()
	if !silent {
		m.settings.Note(text)
	}
}

// enter keeps a line for the next round, unless the run is over.
func (m *Machines) enter(l *line) {
	m.mu.Lock()
	other, over := m.lines[l.rank], m.over
	enters := other == nil && over == nil
	if enters && say(l.conn, wordFrame, word{Entered: true}) == nil && l.conn.SetDeadline(time.Time{}) == nil {
		m.lines[l.rank], m.untold[l.machine] = l, true
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
		l.dismiss(word{Taken: true, Refused: fmt.Sprintf("machine %d is there already, at %s", other.machine, other.address)})
	}
}

// leave forgets a line.
func (m *Machines) leave(l *line) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lines[l.rank] == l {
		delete(m.lines, l.rank)
	}
}

// dismiss tells a machine that the run is over.
func (m *Machines) dismiss(l *line, over Over) {
	l.dismiss(word{Over: &over})
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.untold, l.machine)
}

// take waits until every device of every machine is there and none belongs to a crew, and has each start a follower.
func (m *Machines) take(ctx context.Context) (taken []*line, err error) {
	if m == nil {
		return nil, nil
	}
	late, said := time.After(m.settings.Timeout), ""
	for {
		m.mu.Lock()
		missing := m.missing()
		for rank := len(m.settings.Devices); missing == "" && rank < m.settings.Count*len(m.settings.Devices); rank++ {
			m.lines[rank].taken = true
			taken = append(taken, m.lines[rank])
		}
		changed := m.changed
		m.mu.Unlock()
		if missing == "" {
			break
		}
		if missing != said {
			said = missing
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
		_ = say(l.conn, wordFrame, word{Begin: m.settings.Lease}) // or it is gone: the crew finds it lost
	}
	return taken, nil
}

// missing are the machines that are not there with all their devices, as a text.
func (m *Machines) missing() string {
	var names []string
	for rank := len(m.settings.Devices); rank < m.settings.Count*len(m.settings.Devices); rank++ {
		name := fmt.Sprintf("machine %d of %s", rank/len(m.settings.Devices), m.settings.Agent)
		if l := m.lines[rank]; (l == nil || l.taken) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, " and ")
}

// Close tells the machines how the run ended, and listens no longer. Those that were in a crew come back for it when their followers are
// gone; who does not within the time in which a follower must give a sign of life is not waited for.
func (m *Machines) Close(over Over) {
	const longest = 4 << 10
	if m == nil {
		return
	}
	over.Why = over.Why[:min(len(over.Why), longest)]
	m.mu.Lock()
	closed, idle := m.over != nil, m.lines
	m.over, m.lines = &over, map[int]*line{}
	m.mu.Unlock()
	if closed {
		return
	}
	for _, l := range idle {
		m.dismiss(l, over)
	}
	const look = 20 * time.Millisecond
	for waited := time.Duration(0); waited < max(m.settings.Lease, toStart) && m.anyUntold(); waited += look {
		time.Sleep(look)
	}
	_ = m.listener.Close()
	m.accepting.Wait()
}

func (m *Machines) anyUntold() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.untold) > 0
}

// line is the connection of a device of another machine, and the link to the follower that is started there.
type line struct {
	conn    *tls.Conn
	in      *bufio.Reader
	machine int
	device  string
	rank    int
	address string        // of the machine
	here    string        // of this one, as the machine reaches it
	taken   bool          // it belongs to a crew; guarded by Machines.mu
	ready   chan struct{} // closed when something has come, which belongs to the crew
	broken  error         // why nothing more comes

	machines *Machines
}

// await notices when a machine is gone before it belongs to a crew. All that a machine may say before is that it is asked to stop.
func (l *line) await() {
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

// Write and Read are of the follower. After a failure of either its connection has ended.
func (l *line) Write(b []byte) (int, error) { return l.conn.Write(b) }

func (l *line) Read(b []byte) (int, error) {
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

// kill closes the connection, at which the machine kills the follower. No goodbye: it would wait where nobody reads.
func (l *line) kill() {
	l.machines.leave(l)
	_ = l.conn.NetConn().Close()
}

func (l *line) finish() end {
	l.kill()
	how := "has lost its connection"
	if l.broken != nil && !errors.Is(l.broken, io.EOF) {
		how += " (" + l.broken.Error() + ")"
	}
	return end{How: how}
}

func (l *line) words() string { return "" }

// dismiss says a last word.
func (l *line) dismiss(w word) {
	_ = l.conn.SetWriteDeadline(time.Now().Add(l.machines.settings.Lease))
	_ = say(l.conn, wordFrame, w)
	_ = l.conn.Close()
}
