package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// followerHandle is rank 0's handle on one follower's process.
type followerHandle struct {
	link
	agent, device string
	rank          int
	machine       string      // its machine, as a text; "" for this one
	allowed       []frameKind // kinds of frames that it may send
	stop          func()      // ends the run because a stop was asked for at the follower's machine
	exit          *exitReport // how its process ended, as its machine reported
	writing       sync.Mutex
	answers       chan Reply    // replies to orders, one order at a time
	pending       pendingTurns  // open requests for turns, many at once and also during an order
	alive         atomic.Bool   // a heartbeat came since the last check
	ended         chan struct{} // closed when the process is gone
}

// link is the connection to a follower's process: orders are written to it, replies are read from it.
type link interface {
	io.ReadWriter
	kill()              // ends the process, or the connection to it; pending reads and writes return
	finish() exitReport // kills the process, and returns when it is gone
	lastOutput() string // the end of its output, as far as it is known here
}

func newFollowerHandle(agent string, rank int, device string, l link) *followerHandle {
	return &followerHandle{link: l, agent: agent, device: device, rank: rank, allowed: []frameKind{replyFrame, aliveFrame, turnFrame},
		answers: make(chan Reply, 1), ended: make(chan struct{})}
}

func (f *followerHandle) name() string {
	return fmt.Sprintf("rank %d of %s on %s%s", f.rank, f.agent, f.device, f.machine)
}

// send writes frames, one after another.
func (f *followerHandle) send(frames ...[]byte) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	for _, b := range frames {
		if _, err := f.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func (f *followerHandle) failed(r Reply) *FailedError {
	if r.Missing && f.machine != "" {
		r.Error += fmt.Sprintf("; all machines of %s need its files and run.dir under the same paths, on a file system that they share", f.agent)
	}
	return &FailedError{f.name(), r.Error, r.OutOfMemory, r.OtherLost}
}

func (f *followerHandle) lost(how string) *LostError {
	return &LostError{Follower: f.name(), How: how, Output: f.lastOutput()}
}

// handleReplies handles a follower's replies until it is gone.
func (g *RankGroup) handleReplies(f *followerHandle) {
	defer close(f.ended)
	err := g.listen(f)
	var failed *FailedError
	switch {
	case errors.As(err, &failed) && failed.OutOfMemory: // rank 0 learns this in the same exchange, without a remedy
		_ = g.end(err)
	case err != nil:
		_ = g.endAfter(context.Background(), err)
	}
	how := f.finish()
	if f.exit != nil {
		how = *f.exit
	}
	g.end(&LostError{Follower: f.name(), How: how.How, Output: how.Output, GPU: how.GPU})
}

// listen returns an error on a failed order or an unexpected frame, and nil at the end of the follower's output.
func (g *RankGroup) listen(f *followerHandle) error {
	for in := bufio.NewReader(f); ; f.alive.Store(true) {
		kind, content, err := readFrame(in, f.allowed...)
		var reply Reply
		wanted := true
		switch {
		case err != nil:
		case kind == replyFrame:
			err = decodeJSON(content, &reply)
		case kind == turnFrame:
			wanted, err = f.pending.take(content)
		case kind == stopFrame:
			f.stop()
		case kind == endedFrame:
			f.exit = &exitReport{}
			err = decodeJSON(content, f.exit)
		}
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return f.lost("wrote something that is not a reply: " + err.Error())
		case !wanted:
			return f.lost("answered a turn that was not requested")
		case f.exit != nil:
			return nil
		case kind != replyFrame:
			continue
		case reply.Error != "":
			return f.failed(reply)
		}
		select {
		case f.answers <- reply:
		default:
			return f.lost("replied without an order")
		}
	}
}

// heartbeatsPerLease is the number of heartbeats that a follower sends within a lease.
const heartbeatsPerLease = 5

// startTimeout bounds the time until a follower's first heartbeat.
const startTimeout = time.Minute

// watch ends the group when a follower has sent no heartbeat for a lease. The first heartbeat may take startTimeout, if that is longer.
// watch counts checks instead of measuring time, so that a worker that was itself suspended does not consider its followers dead.
func (g *RankGroup) watch(f *followerHandle) {
	look := time.NewTicker(g.lease / heartbeatsPerLease)
	defer look.Stop()
	limit, silent := max(g.lease, startTimeout), time.Duration(0)
	for {
		select {
		case <-g.ended:
			return
		case <-look.C:
		}
		if silent += g.lease / heartbeatsPerLease; f.alive.Swap(false) {
			limit, silent = g.lease, 0
		}
		if silent > limit {
			g.end(f.lost(fmt.Sprintf("has sent no heartbeat for %v", limit)))
			return
		}
	}
}
