package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// maxTurns bounds the turns that a follower samples at once.
const maxTurns = 1 << 16

// turns holds a follower's turns in flight.
type turns struct {
	mu     sync.Mutex
	sample func(ctx context.Context, r policy.Request) Turn // nil: the follower does not sample yet
	ends   map[uint64]context.CancelFunc                    // functions that end turns in flight, by number
}

// Sample makes the inbox answer requests with sample from now on.
func (inbox *Inbox) Sample(sample func(ctx context.Context, r policy.Request) Turn) {
	inbox.turns.mu.Lock()
	defer inbox.turns.mu.Unlock()
	inbox.turns.sample, inbox.turns.ends = sample, map[uint64]context.CancelFunc{}
}

// begin begins the turn of a request.
func (inbox *Inbox) begin(content []byte) error {
	in, err := decodeColumns[turnRequest](content)
	if err != nil {
		return err
	}
	id, r := in.ID, policy.Request{Tokens: in.Tokens, Sampling: in.Sampling, Key: in.Key, Computed: in.Computed}
	t := &inbox.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	_, again := t.ends[id]
	switch {
	case t.sample == nil:
		return errors.New("launch: a request came before the order to sample")
	case again:
		return fmt.Errorf("launch: request %d came twice", id)
	case len(t.ends) == maxTurns:
		return fmt.Errorf("launch: more than %d requests at once", maxTurns)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.ends[id] = cancel
	sample := t.sample
	go func() {
		turn := sample(ctx, r)
		t.mu.Lock()
		delete(t.ends, id)
		t.mu.Unlock()
		cancel()
		inbox.answerTurn(id, turn)
	}()
	return nil
}

// cancel ends the turn of a request, which may have ended already.
func (t *turns) cancel(content []byte) error {
	if len(content) != 8 {
		return errors.New("launch: a malformed frame to cancel a turn")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if end := t.ends[binary.LittleEndian.Uint64(content)]; end != nil {
		end()
	}
	return nil
}

// answerTurn sends the answer to a request. If a turn cannot be encoded, the answer is that error.
func (inbox *Inbox) answerTurn(id uint64, t Turn) {
	t.Reply = t.Reply.shortened()
	content, err := encodeColumns(turnAnswer{id, t})
	if err == nil {
		err = inbox.send(turnFrame, content)
	}
	if err == nil {
		return
	}
	if content, err = encodeColumns(turnAnswer{id, Turn{Reply: Reply{Error: err.Error()}.shortened(), Stats: t.Stats}}); err == nil {
		_ = inbox.send(turnFrame, content) // if the worker is gone, this process ends
	}
}
