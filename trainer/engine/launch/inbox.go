package launch

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/trainer/engine/learner"
)

// Inbox is a follower's end of the pipes: it receives orders and requests for turns.
type Inbox struct {
	orders  chan receivedOrder
	mu      sync.Mutex // guards the writing of replies
	replies io.Writer
	turns   turns
}

type receivedOrder struct {
	order Order
	batch []*learner.Sequence
	err   error
}

// Follower returns the inbox of a process that StartGroup or ServeMachine started, and nil in any other process. From then
// on the process ends when rank 0 ends, even in the middle of a computation. It ignores SIGINT, SIGTERM and SIGHUP, which a
// service manager sends to all processes: rank 0 receives them, too, and ends its followers in order.
func Follower() *Inbox {
	lease, err := time.ParseDuration(os.Getenv(followerEnv))
	if err != nil || lease < heartbeatsPerLease {
		return nil
	}
	os.Unsetenv(followerEnv) // processes that this one starts are not followers
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	inbox := &Inbox{orders: make(chan receivedOrder), replies: os.NewFile(repliesFD, "replies")}
	go inbox.heartbeat(lease / heartbeatsPerLease)
	go inbox.receive(bufio.NewReader(os.NewFile(ordersFD, "orders")), func() { os.Exit(0) })
	return inbox
}

// receive reads orders and requests, and calls gone when rank 0 has closed the pipe.
func (inbox *Inbox) receive(in io.Reader, gone func()) {
	for {
		kind, content, err := readFrame(in, orderFrame, requestFrame, cancelFrame)
		r := receivedOrder{err: err}
		switch {
		case err == io.EOF:
			gone()
			return
		case err != nil:
		case kind == orderFrame:
			r = receiveOrder(content, in)
		case kind == requestFrame:
			r.err = inbox.begin(content)
		case kind == cancelFrame:
			r.err = inbox.turns.cancel(content)
		}
		if kind == orderFrame || r.err != nil {
			inbox.orders <- r
		}
		if r.err != nil {
			return
		}
	}
}

// receiveOrder returns the order in a frame with its batch, which follows the frame.
func receiveOrder(content []byte, in io.Reader) (r receivedOrder) {
	if r.order, r.err = decodeOrder(content); r.err != nil {
		return r
	}
	for i := 0; i < r.order.Batch && r.err == nil; i++ {
		var q *learner.Sequence
		if _, content, r.err = readFrame(in, sequenceFrame); r.err == nil {
			q, r.err = decodeColumns[*learner.Sequence](content)
		}
		r.batch = append(r.batch, q)
	}
	if r.err == io.EOF {
		r.err = io.ErrUnexpectedEOF
	}
	return r
}

// Next waits for an order. A malformed order is an error, after which no order follows.
func (inbox *Inbox) Next() (Order, []*learner.Sequence, error) {
	r := <-inbox.orders
	return r.order, r.batch, r.err
}

// heartbeat sends heartbeats.
func (inbox *Inbox) heartbeat(interval time.Duration) {
	for inbox.send(aliveFrame, nil) == nil {
		time.Sleep(interval)
	}
}

// Answer reports to rank 0 that an order was executed, or the reason why it failed.
func (inbox *Inbox) Answer(r Reply) error {
	content, err := json.Marshal(r.shortened())
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	return inbox.send(replyFrame, content)
}

func (inbox *Inbox) send(kind frameKind, content []byte) error {
	b, err := frame(kind, content)
	if err != nil {
		return err
	}
	inbox.mu.Lock()
	defer inbox.mu.Unlock()
	_, err = inbox.replies.Write(b)
	return err
}
