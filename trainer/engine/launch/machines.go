package launch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
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
	opt       ListenOptions
	program   string
	tls       *tls.Config
	listener  net.Listener
	accepting sync.WaitGroup
	entering  chan struct{} // holds one element for each connection that is not authenticated yet

	mu         sync.Mutex
	conns      map[int]*deviceConn // open connections, by rank
	changed    chan struct{}       // closed and replaced when a connection enters or a machine receives the end of the run
	unnotified map[int]bool        // machines that took part and have not received the end of the run
	runEnd     *RunEnd             // nil: the run continues
	refused    int                 // number of refused connections
}

// ListenOptions configure Listen for the machines of one agent.
type ListenOptions struct {
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
func Listen(opt ListenOptions) (*Machines, error) {
	digest, err := program()
	if err != nil {
		return nil, err
	}
	config, err := secured(opt.Key)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(opt.Address)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) == nil { // a name may be known to other machines only
		host = ""
	}
	listening := net.ListenConfig{KeepAliveConfig: keepAlive(opt.Lease)}
	listener, err := listening.Listen(context.Background(), "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("launch: agents.%s.machines.address: %w%s", opt.Agent, err, cannotListen(opt.Agent, err))
	}
	const maxUnauthenticated = 64
	m := &Machines{opt: opt, program: digest, tls: config, listener: listener, entering: make(chan struct{}, maxUnauthenticated),
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

// remove removes a connection.
func (m *Machines) remove(d *deviceConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns[d.rank] == d {
		delete(m.conns, d.rank)
	}
}

// dismiss reports to a machine that the run is over.
func (m *Machines) dismiss(d *deviceConn, over RunEnd) {
	d.dismiss(control{Over: &over})
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.unnotified, d.machine)
	m.wakeWaits()
}

// wakeWaits wakes the waits for a change. The caller holds m.mu.
func (m *Machines) wakeWaits() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// take waits until every device of every machine is connected and none belongs to a group, and then has each start a
// follower.
func (m *Machines) take(ctx context.Context) (taken []*deviceConn, err error) {
	if m == nil {
		return nil, nil
	}
	late, noted := time.After(m.opt.Timeout), ""
	for {
		m.mu.Lock()
		missing := m.missing()
		for rank := len(m.opt.Devices); missing == "" && rank < m.opt.Count*len(m.opt.Devices); rank++ {
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
			m.opt.Note("waits for " + missing + " to connect to " + m.opt.Address)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late:
			return nil, &AbsentError{Who: missing, Waited: m.opt.Timeout, Because: fmt.Sprintf(
				"start `mgrpo worker FILE --agent %s --machine N` there; it must be able to reach %s", m.opt.Agent, m.opt.Address)}
		}
	}
	for _, d := range taken {
		_ = writeFrame(d.conn, controlFrame, control{Begin: m.opt.Lease}) // if it is gone, the group will find it lost
	}
	return taken, nil
}

// missing lists the machines for which not all devices are connected.
func (m *Machines) missing() string {
	var names []string
	for rank := len(m.opt.Devices); rank < m.opt.Count*len(m.opt.Devices); rank++ {
		name := fmt.Sprintf("machine %d of %s", rank/len(m.opt.Devices), m.opt.Agent)
		if d := m.conns[rank]; (d == nil || d.taken) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, " and ")
}

// Close reports the run's end to the machines, and stops listening. Machines that were in a group connect again to receive
// this report when their followers are gone. Close waits for them for the time within which a follower must send a
// heartbeat.
func (m *Machines) Close(over RunEnd) {
	const maxWhy = 4 << 10
	if m == nil {
		return
	}
	over.Why = over.Why[:min(len(over.Why), maxWhy)]
	m.mu.Lock()
	closed, idle := m.runEnd != nil, m.conns
	m.runEnd, m.conns = &over, map[int]*deviceConn{}
	m.mu.Unlock()
	if closed {
		return
	}
	for _, d := range idle {
		m.dismiss(d, over)
	}
	m.awaitNotified(max(m.opt.Lease, startTimeout))
	_ = m.listener.Close()
	m.accepting.Wait()
}

// awaitNotified waits until every machine that took part has received the end of the run, but not longer than given.
func (m *Machines) awaitNotified(longest time.Duration) {
	late := time.After(longest)
	for {
		m.mu.Lock()
		pending, changed := len(m.unnotified), m.changed
		m.mu.Unlock()
		if pending == 0 {
			return
		}
		select {
		case <-changed:
		case <-late:
			return
		}
	}
}
