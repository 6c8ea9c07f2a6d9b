package launch

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

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
	d := &deviceConn{conn: secure, in: bufio.NewReader(secure), here: addressOf(conn.LocalAddr()), machines: m, ready: make(chan struct{})}
	const toProve = 5 * time.Second
	err := errors.Join(abandonAfter(conn, m.opt.Lease), conn.SetDeadline(time.Now().Add(min(m.opt.Lease, toProve))))
	var content []byte
	var h handshake
	if err == nil {
		err = secure.Handshake()
	}
	if err != nil {
		_ = conn.Close()
		m.noteRefusal(fmt.Sprintf("a connection from %v does not prove that it has the key of %s's machines: %v", conn.RemoteAddr(), m.opt.Agent, err))
		return
	}
	if _, content, err = readFrame(d.in, handshakeFrame); err == nil {
		h, err = decodeHandshake(content)
	}
	if err != nil {
		_ = conn.Close()
		if !errors.Is(err, io.EOF) { // otherwise the machine closed it, because another of its connections was refused
			m.noteRefusal(fmt.Sprintf("a connection from %v is not one of the machines of %s: %v", conn.RemoteAddr(), m.opt.Agent, err))
		}
		return
	}
	if why := h.refusal(m.opt, m.program); why != "" {
		m.noteRefusal(fmt.Sprintf("machine %d at %s is refused: %s", h.Machine, h.Address, why))
		d.dismiss(control{Refused: why})
		return
	}
	if why := m.addressMismatch(d.here, h.Address); why != "" {
		m.noteRefusal(fmt.Sprintf("machine %d at %s is refused: %s", h.Machine, h.Address, why))
		d.dismiss(control{Refused: why})
		return
	}
	d.machine, d.device, d.address, d.rank = h.Machine, h.Devices[h.Device], h.Address, h.Machine*len(h.Devices)+h.Device
	m.enter(d)
}

// addressMismatch returns the reason why ranks cannot use the addresses at the two ends of a connection to reach each
// other, or "" if they can.
func (m *Machines) addressMismatch(here, there string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.conns {
		if other.here != here {
			return fmt.Sprintf("it reached this machine at %s and another machine reached it at %s, but all ranks must use one address: "+
				"set agents.%s.machines.address to an address that all machines can reach", here, other.here, m.opt.Agent)
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
	const maxNotes = 20
	m.mu.Lock()
	m.refused++
	silent := m.refused > maxNotes || m.runEnd != nil
	m.mu.Unlock()
	if !silent {
		m.opt.Note(text)
	}
}

// enter keeps a connection for the next round, unless the run is over.
func (m *Machines) enter(d *deviceConn) {
	m.mu.Lock()
	other, over := m.conns[d.rank], m.runEnd
	enters := other == nil && over == nil
	if enters && writeFrame(d.conn, controlFrame, control{Entered: true}) == nil && d.conn.SetDeadline(time.Time{}) == nil {
		m.conns[d.rank], m.unnotified[d.machine] = d, true
		m.wakeWaits()
	}
	m.mu.Unlock()
	switch {
	case enters:
		go d.await()
	case over != nil:
		m.dismiss(d, *over)
	default:
		d.dismiss(control{Taken: true, Refused: fmt.Sprintf("machine %d is already connected, from %s", other.machine, other.address)})
	}
}
