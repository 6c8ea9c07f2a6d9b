package store

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Limits of a batch, and of the number of batches that are sent at the same time.
const (
	maxBatch      = 256
	maxBatchBytes = 1 << 20
	maxBatches    = 4
)

// batches sends the commands of many goroutines together: commands that arrive while other batches are in progress go into
// the next batch. The command of a single goroutine is sent at once.
type batches struct {
	rdb redis.UniversalClient
	wg  sync.WaitGroup

	mu      sync.Mutex
	waiting []*command
	running int // goroutines that send
	closed  bool
}

// command is a command whose reply is awaited. done is closed when the reply has arrived.
type command struct {
	redis.Cmder
	ctx  context.Context
	done chan struct{}
}

// do sends a command and waits for its reply. If ctx ends first, the command may still take effect.
func (b *batches) do(ctx context.Context, c redis.Cmder) error {
	a := &command{c, ctx, make(chan struct{})}
	if !b.add(a) {
		return ErrClosed
	}
	select {
	case <-a.done:
		return c.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *batches) add(a *command) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.waiting = append(b.waiting, a)
	if b.running < maxBatches {
		b.running++
		b.wg.Go(b.send)
	}
	return true
}

// close waits for the batches in progress. The client must be closed already.
func (b *batches) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wg.Wait()
}

// send sends batches until no command waits.
func (b *batches) send() {
	for {
		batch := b.next()
		if batch == nil {
			return
		}
		p := b.rdb.Pipeline()
		for _, a := range batch {
			_ = p.Process(context.Background(), a.Cmder)
		}
		exec(context.Background(), p) // the client's timeouts bound the wait
		for _, a := range batch {
			close(a.done)
		}
	}
}

// exec sends a pipeline. Afterwards each command has a reply or an error. If the connection fails, for example because the
// password is refused, the client returns an error that is not set in any command; exec sets it in all commands.
func exec(ctx context.Context, p redis.Pipeliner) []redis.Cmder {
	cmds, err := p.Exec(ctx)
	if err != nil && !slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		for _, c := range cmds {
			c.SetErr(err)
		}
	}
	return cmds
}

// next returns the next batch of waiting commands, or nil if no command is waiting. It drops commands whose context has
// ended.
func (b *batches) next() []*command {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = slices.DeleteFunc(b.waiting, func(a *command) bool { return a.ctx.Err() != nil })
	if len(b.waiting) == 0 {
		b.running--
		return nil
	}
	n, bytes := 0, 0
	for n < min(len(b.waiting), maxBatch) && bytes < maxBatchBytes {
		for _, arg := range b.waiting[n].Args() {
			if text, ok := arg.(string); ok {
				bytes += len(text)
			}
		}
		n++
	}
	batch := slices.Clone(b.waiting[:n])
	b.waiting = slices.Delete(b.waiting, 0, n)
	return batch
}

// eval runs a script. If the server already has the script, it is one command of a batch.
func (b *batches) eval(ctx context.Context, script *redis.Script, keys []string, args []any) ([]any, error) {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", script.Hash(), len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	c := redis.NewCmd(ctx, append(all, args...)...)
	c.SetFirstKeyPos(3)
	err := b.do(ctx, c)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return script.Eval(ctx, b.rdb, keys, args...).Slice()
	}
	if err != nil {
		return nil, err
	}
	return c.Slice()
}
