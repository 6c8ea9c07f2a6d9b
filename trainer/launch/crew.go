package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/learner"
)

// Crew is the followers of an agent as rank 0 sees them; nil is that of an agent with one device. One goroutine gives orders. After an
// error of an order the crew is gone: its processes may be anywhere in what was ordered.
type Crew struct {
	lease     time.Duration
	followers []*follower

	ordering sync.Mutex // held while an order is carried out: a checkpoint of frozen weights reads them beside the steps

	mu   sync.Mutex
	why  error         // of the end
	over chan struct{} // closed when the crew has ended, for whatever reason
	left sync.WaitGroup
}

// Settings of a crew.
type Settings struct {
	Agent   string
	Devices []string      // of ranks 1 to n
	Lease   time.Duration // a follower without a sign of life for so long is lost
	Without []string      // environment variables that are none of the followers' business
}

// LostError is a follower that is gone, or that no longer answers. Nothing need be wrong with what it was to do.
type LostError struct {
	Follower string // rank, agent and device
	How      string // how it was lost
	Said     string // its last words; may be ""
	GPU      bool   // a failure of CUDA took its GPU from it
}

func (e *LostError) Error() string {
	text := fmt.Sprintf("%s %s", e.Follower, e.How)
	if e.Said != "" {
		text += "; its last words: " + e.Said
	}
	return text
}

// FailedError is an order that a follower could not carry out.
type FailedError struct {
	Follower string // rank, agent and device
	Reason   string
	Memory   bool // an allocation failed
	Alone    bool // another rank was lost
}

func (e *FailedError) Error() string { return fmt.Sprintf("%s: %s", e.Follower, e.Reason) }

// follower is a process and what is known of it.
type follower struct {
	*process
	answers chan Reply    // of one order at a time
	asked   asked         // turns, of which many are sampled at once, also while an order is carried out
	alive   atomic.Bool   // it gave a sign of life since the last look
	ended   chan struct{} // closed when the process is gone
}

func (f *follower) lost(how string) *LostError {
	return &LostError{Follower: f.name(), How: how, Said: f.said.String()}
}

// errEnded is the reason of a crew that rank 0 has ended.
var errEnded = errors.New("launch: the followers were ended")

// Start starts a follower for each device. What they are to load is the first order.
func Start(s Settings) (*Crew, error) {
	if _, follows := os.LookupEnv(followerEnv); follows { // it would start itself again and again
		return nil, errors.New("launch: a follower runs this program as if it were a worker: call trainer.ServeFollower first in main")
	}
	c := &Crew{lease: s.Lease, over: make(chan struct{})}
	for i, device := range s.Devices {
		c.followers = append(c.followers, &follower{process: &process{agent: s.Agent, rank: i + 1, device: device},
			answers: make(chan Reply, 1), ended: make(chan struct{})})
	}
	started := make(chan error)
	c.left.Go(func() { c.parent(started, append(environment(s.Without), followerEnv+"="+s.Lease.String())) })
	if err := <-started; err != nil {
		c.left.Wait()
		return nil, err
	}
	for _, f := range c.followers {
		c.left.Go(func() { c.attend(f) })
		c.left.Go(func() { c.watch(f) })
	}
	return c, nil
}

// parent is the thread that the kernel takes for the followers' parent. It lives as long as they do.
func (c *Crew) parent(started chan<- error, environ []string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i, f := range c.followers {
		if err := f.start(environ); err != nil {
			for _, before := range c.followers[:i] {
				before.finish()
			}
			started <- fmt.Errorf("launch: %s does not start: %w", f.name(), err)
			return
		}
	}
	close(started)
	for _, f := range c.followers {
		<-f.ended
	}
}

// attend takes in what a follower says until it is gone.
func (c *Crew) attend(f *follower) {
	defer close(f.ended)
	err := c.listen(f)
	var failed *FailedError
	switch {
	case errors.As(err, &failed) && failed.Memory: // rank 0 hears of it in the same exchange, without what to do about it
		_ = c.end(err)
	case err != nil:
		_ = c.endAfter(context.Background(), err)
	}
	how, gpu := f.finish()
	lost := f.lost(how)
	lost.GPU = gpu
	c.end(lost)
}

// listen returns an error if a follower says something other than that an order was carried out, and nil at the end of what it says.
func (c *Crew) listen(f *follower) error {
	for in := bufio.NewReader(f.replies); ; f.alive.Store(true) {
		kind, content, err := readFrame(in, replyFrame, aliveFrame, turnFrame)
		var reply Reply
		wanted := true
		switch {
		case err != nil:
		case kind == replyFrame:
			err = decodeJSON(content, &reply)
		case kind == turnFrame:
			wanted, err = f.asked.take(content)
		}
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return f.lost("wrote something else than a reply: " + err.Error())
		case !wanted:
			return f.lost("answers what it was not asked")
		case kind != replyFrame:
			continue
		case reply.Error != "":
			return &FailedError{f.name(), reply.Error, reply.Memory, reply.Alone}
		}
		select {
		case f.answers <- reply:
		default:
			return f.lost("answers what it was not asked")
		}
	}
}

// signsOfLife is how many signs of life a follower gives within a lease.
const signsOfLife = 5

// watch ends the crew when a follower has given no sign of life for a lease, or none at all since it was started. It counts looks and not
// time, so that a worker which was itself suspended does not take its followers for dead.
func (c *Crew) watch(f *follower) {
	const toStart = time.Minute
	look := time.NewTicker(c.lease / signsOfLife)
	defer look.Stop()
	patience, silent := max(c.lease, toStart), time.Duration(0)
	for {
		select {
		case <-c.over:
			return
		case <-look.C:
		}
		if silent += c.lease / signsOfLife; f.alive.Swap(false) {
			patience, silent = c.lease, 0
		}
		if silent > patience {
			c.end(f.lost(fmt.Sprintf("has given no sign of life for %v", patience)))
			return
		}
	}
}

// Open has every follower load what of says of its rank, while own does rank 0's part.
func (c *Crew) Open(ctx context.Context, of func(rank int) Opening, own func(context.Context) error) ([]Reply, error) {
	orders := make([][][]byte, len(c.followers))
	for i, f := range c.followers {
		opening := of(f.rank)
		var err error
		if orders[i], err = encodeOrder(Order{Kind: Open, Open: &opening}, nil); err != nil {
			return nil, err
		}
	}
	return c.do(ctx, orders, own)
}

// Do has every follower carry out an order with its batch while own does rank 0's part of it, and returns what they answered. The context
// of own ends when a follower is lost. That is then the error, whatever own makes of it.
func (c *Crew) Do(ctx context.Context, o Order, batch []*learner.Sequence, own func(context.Context) error) ([]Reply, error) {
	if c == nil {
		return nil, own(ctx)
	}
	frames, err := encodeOrder(o, batch)
	if err != nil {
		return nil, err
	}
	return c.do(ctx, slices.Repeat([][][]byte{frames}, len(c.followers)), own)
}

// do gives each follower the frames of its order. Whoever does not read them is found by watch.
func (c *Crew) do(ctx context.Context, orders [][][]byte, own func(context.Context) error) ([]Reply, error) {
	c.ordering.Lock()
	defer c.ordering.Unlock()
	if err := c.Err(); err != nil {
		return nil, err
	}
	acting, done := context.WithCancelCause(ctx)
	defer done(nil)
	c.left.Go(func() {
		select {
		case <-c.over:
			done(c.Err())
		case <-acting.Done():
		}
	})
	for i, f := range c.followers {
		c.left.Go(func() {
			_ = f.send(orders[i]...) // or the process is gone: attend says why
		})
	}
	if err := own(acting); err != nil {
		return nil, c.endAfter(ctx, err)
	}
	replies := make([]Reply, len(c.followers))
	for i, f := range c.followers {
		select {
		case replies[i] = <-f.answers:
		case <-c.over:
			return nil, c.Err()
		case <-ctx.Done():
			return nil, c.end(context.Cause(ctx))
		}
	}
	return replies, nil
}

// Agree is an error if a follower has another digest than rank 0.
func (c *Crew) Agree(digest uint32, replies []Reply) error {
	for i, r := range replies {
		if r.Digest != digest {
			return c.end(&FailedError{Follower: c.followers[i].name(), Reason: fmt.Sprintf("has other weights (%08x) than rank 0 (%08x)", r.Digest, digest)})
		}
	}
	return nil
}

// soon is how long it takes, at most, until a lost process is known to be.
const soon = 2 * time.Second

// endAfter ends the crew because of an error of a rank's. If a follower is lost at the same time, that is the reason. A rank that has lost
// another says so last, as that one may say why. If none does, and no process is lost, a device hangs, and a new round may go well.
func (c *Crew) endAfter(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return c.end(context.Cause(ctx))
	}
	patience := soon
	var own *torch.GroupError
	var theirs *FailedError
	if errors.As(err, &own) || errors.As(err, &theirs) && theirs.Alone {
		err = &LostError{Follower: "a rank of " + c.followers[0].agent, How: "was lost to the others: " + err.Error()}
		patience *= 2
	}
	select {
	case <-c.over:
	case <-time.After(patience):
	}
	return c.end(err)
}

// end kills the followers, once, and returns why.
func (c *Crew) end(why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != nil {
		return c.why
	}
	c.why = why
	close(c.over)
	for _, f := range c.followers {
		_ = f.cmd.Process.Kill() // one that has ended is not there to be killed
	}
	return why
}

// Err is why the crew has ended, nil while it is there.
func (c *Crew) Err() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// Close ends the followers. They have nothing to put in order: what is to be kept is rank 0's to keep.
func (c *Crew) Close() {
	if c == nil {
		return
	}
	c.end(errEnded)
	c.left.Wait()
}
