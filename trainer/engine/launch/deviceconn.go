package launch

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"time"
)

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
