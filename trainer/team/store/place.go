package store

import (
	"context"
	"fmt"
	"strconv"
)

// place is the right of a worker to act for its agent. The parts of a Member read and write the store through it.
type place struct {
	*Store
	agent string
	epoch int64
	nonce string // random name of the round

	ctx    context.Context // ends with the place
	cancel context.CancelCauseFunc
}

// fencingToken returns the member's epoch and the round's nonce. A write has an effect only if the store has the same
// values. The epoch alone is not enough, because a store that lost its data counts from 1 again.
func (at *place) fencingToken() string { return strconv.FormatInt(at.epoch, 10) + ":" + at.nonce }

// fencedBy returns the error of a writer whose fencing token differs from the token in the store.
func (at *place) fencedBy(reply []any) *FencedError {
	e := &FencedError{Agent: at.agent, Epoch: at.epoch, Now: clip(replyText(reply, 1))}
	if now, err := strconv.ParseInt(e.Now, 10, 64); err != nil || now <= at.epoch {
		e.Now = "" // the store lost its data and counts from 1 again
	}
	return e
}

// write evaluates a script that writes for the member. It repeats the script while the server cannot be reached, up to the
// store's timeout. `what` names the written value in errors.
func (at *place) write(ctx context.Context, script *script, what string, v values) (reply []any, err error) {
	keys, args := script.inOrder(v.writtenBy(at))
	err = at.retry(ctx, what, func(ctx context.Context) error {
		reply, err = at.batches.eval(ctx, script.Script, keys, args)
		return err
	})
	if err != nil {
		return nil, err
	}
	switch replyText(reply, 0) {
	case "fenced":
		err := at.fencedBy(reply)
		at.cancel(err)
		return nil, err
	case "conflict":
		return nil, &ConflictError{What: what}
	}
	return reply, nil
}

// writeOnce writes a value of a phase that is never changed, and publishes the topic of its kind.
func (at *place) writeOnce(ctx context.Context, p Phase, kind, field string, v checker, what string) error {
	what += " of " + p.String()
	value, err := checkAndEncode(what, v, &p)
	if err != nil {
		return err
	}
	_, err = at.write(ctx, writeScript, what, values{
		"events": at.key("events"), "hash": at.key(kind, p.String()), "phases": at.key("phases"),
		"field": field, "value": value, "topic": kind + "/" + p.String(), "phase": p.String(), "step": p.Step})
	return err
}

// replyText returns element i of a script's reply as text, or "" if the reply is shorter.
func replyText(reply []any, i int) string {
	if i >= len(reply) || reply[i] == nil {
		return ""
	}
	return fmt.Sprint(reply[i])
}
