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
	ready   chan struct{} // closed when data for the group has arrived, or the connection is broken
	broken  error         // reason why no further data arrives

	machines *Machines
}

// await waits for the first data of the group, and detects a machine that is gone before. Until then a machine may only
// forward a request to stop.
func (d *deviceConn) await() {
	var first []byte
	for d.broken == nil {
		if first, d.broken = d.in.Peek(1); d.broken != nil || frameKind(first[0]) != stopFrame {
			break
		}
		if _, _, d.broken = readFrame(d.in, stopFrame); d.broken == nil {
			d.machines.opt.Stop(d.machine)
		}
	}
	if d.broken != nil {
		d.kill()
	}
	close(d.ready)
}

// Write and Read exchange data with the follower. After either fails the connection has ended.
func (d *deviceConn) Write(b []byte) (int, error) { return d.conn.Write(b) }

func (d *deviceConn) Read(b []byte) (int, error) {
	<-d.ready
	if d.broken != nil {
		return 0, io.EOF
	}
	n, err := d.in.Read(b)
	if err != nil && n == 0 {
		d.broken = err
		err = io.EOF
	}
	return n, err
}

// kill closes the connection, which makes the machine kill the follower. It sends no TLS close message, which would
// block if the other end does not read.
func (d *deviceConn) kill() {
	d.machines.remove(d)
	_ = d.conn.NetConn().Close()
}

func (d *deviceConn) finish() exitReport {
	d.kill()
	how := "has lost its connection"
	if d.broken != nil && !errors.Is(d.broken, io.EOF) {
		how += " (" + d.broken.Error() + ")"
	}
	return exitReport{How: how}
}

func (d *deviceConn) lastOutput() string { return "" }

// dismiss sends a last control message.
func (d *deviceConn) dismiss(message control) {
	_ = d.conn.SetWriteDeadline(time.Now().Add(d.machines.opt.Lease))
	_ = writeFrame(d.conn, controlFrame, message)
	_ = d.conn.Close()
}
