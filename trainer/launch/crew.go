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
	addresses []string // of all ranks

	ordering sync.Mutex // held while an order is carried out: a checkpoint of frozen weights reads them beside the steps

	mu   sync.Mutex
	why  error         // of the end
	over chan struct{} // closed when the crew has ended, for whatever reason
	left sync.WaitGroup
}

// Settings of a crew.
type Settings struct {
	Agent    string
	Devices  []string      // of this machine: that of rank 0, which needs no follower, and those of ranks 1 to n
	Machines *Machines     // whose devices the further ranks have; nil: there are none
	Lease    time.Duration // a follower without a sign of life for so long is lost
	Without  []string      // environment variables that are none of the followers' business
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
	link
	agent, device string
	rank          int
	machine       string // on which it is, as a text; "" for this one
	says          []frameKind
	stop          func() // ends the run, as its machine was asked to
	told          *end   // how its process ended, as its machine has told
	writing       sync.Mutex
	answers       chan Reply    // of one order at a time
	asked         asked         // turns, of which many are sampled at once, also while an order is carried out
	alive         atomic.Bool   // it gave a sign of life since the last look
	ended         chan struct{} // closed when the process is gone
}

// link leads to a follower's process, whose orders are written and whose replies are read.
type link interface {
	io.ReadWriter
	kill()         // ends the process, or what is known of it; whoever reads or writes waits no longer
	finish() end   // kills it, and returns when it is gone
	words() string // its last words, as far as they are known here
}

func newFollower(agent string, rank int, device string, l link) *follower {
	return &follower{link: l, agent: agent, device: device, rank: rank, says: []frameKind{replyFrame, aliveFrame, turnFrame},
		answers: make(chan Reply, 1), ended: make(chan struct{})}
}

func (f *follower) name() string {
	return fmt.Sprintf("rank %d of %s on %s%s", f.rank, f.agent, f.device, f.machine)
}

// send writes frames, one after another.
func (f *follower) send(frames ...[]byte) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	for _, b := range frames {
		if _, err := f.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) failed(r Reply) *FailedError {
	if r.Missing && f.machine != "" {
		r.Error += fmt.Sprintf("; all machines of %s need its files and run.dir under the same paths, on a file system that they share", f.agent)
	}
	return &FailedError{f.name(), r.Error, r.Memory, r.Alone}
}

func (f *follower) lost(how string) *LostError {
	return &LostError{Follower: f.name(), How: how, Said: f.words()}
}

// errEnded is the reason of a crew that rank 0 has ended.
var errEnded = errors.New("launch: the followers were ended")

// checkParent is an error in a process that would start itself again and again.
func checkParent() error {
	if _, follows := os.LookupEnv(followerEnv); follows {
		return errors.New("launch: a follower runs this program as if it were a worker: call trainer.ServeFollower first in main")
	}
	return nil
}

// Start waits for the further machines, and starts a follower for each device. What they are to load is the first order.
func Start(ctx context.Context, s Settings) (*Crew, error) {
	if err := checkParent(); err != nil {
		return nil, err
	}
	c := &Crew{lease: s.Lease, over: make(chan struct{}), addresses: slices.Repeat([]string{loopback}, len(s.Devices))}
	far, err := s.Machines.take(ctx)
	if err != nil {
		return nil, err
	}
	for i, device := range s.Devices[1:] {
		c.followers = append(c.followers, newFollower(s.Agent, i+1, device, &process{}))
	}
	here := slices.Clone(c.followers)
	for _, l := range far {
		c.add(s, l)
	}
	started := make(chan error)
	c.left.Go(func() { c.parent(here, started, append(environment(s.Without), followerEnv+"="+s.Lease.String())) })
	if err := <-started; err != nil {
		c.left.Wait()
		for _, l := range far {
			l.kill()
		}
		return nil, err
	}
	for _, f := range c.followers {
		c.left.Go(func() { c.attend(f) })
		c.left.Go(func() { c.watch(f) })
	}
	return c, nil
}

// add adds the follower at the end of a line. All ranks then meet at addresses that their machines share.
func (c *Crew) add(s Settings, l *line) {
	f := newFollower(s.Agent, l.rank, l.device, l)
	f.machine = fmt.Sprintf(" of machine %d (%s)", l.machine, l.address)
	f.says = append(f.says, stopFrame, endedFrame)
	f.stop = func() { s.Machines.settings.Stop(l.machine) }
	c.followers = append(c.followers, f)
	c.addresses = append(c.addresses, l.address)
	for rank := range s.Devices {
		c.addresses[rank] = l.here
	}
}

// loopback is where the ranks of one machine meet.
const loopback = "127.0.0.1"

// Addresses are those at which the ranks reach each other, by rank.
func (c *Crew) Addresses() []string { return c.addresses }

// parent is the thread that the kernel takes for the followers' parent. It lives as long as they do.
func (c *Crew) parent(here []*follower, started chan<- error, environ []string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i, f := range here {
		if err := f.link.(*process).start(f.agent, f.rank, f.device, environ); err != nil {
			for _, before := range here[:i] {
				before.finish()
			}
			started <- fmt.Errorf("launch: %s does not start: %w", f.name(), err)
			return
		}
	}
	close(started)
	for _, f := range here {
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
	how := f.finish()
	if f.told != nil {
		how = *f.told
	}
	c.end(&LostError{Follower: f.name(), How: how.How, Said: how.Said, GPU: how.GPU})
}

// listen returns an error if a follower says something other than that an order was carried out, and nil at the end of what it says.
func (c *Crew) listen(f *follower) error {
	for in := bufio.NewReader(f); ; f.alive.Store(true) {
		kind, content, err := readFrame(in, f.says...)
		var reply Reply
		wanted := true
		switch {
		case err != nil:
		case kind == replyFrame:
			err = decodeJSON(content, &reply)
		case kind == turnFrame:
			wanted, err = f.asked.take(content)
		case kind == stopFrame:
			f.stop()
		case kind == endedFrame:
			f.told = &end{}
			err = decodeJSON(content, f.told)
		}
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return f.lost("wrote something else than a reply: " + err.Error())
		case !wanted:
			return f.lost("answers what it was not asked")
		case f.told != nil:
			return nil
		case kind != replyFrame:
			continue
		case reply.Error != "":
			return f.failed(reply)
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

// toStart is how long a follower may take until its first.
const toStart = time.Minute

// watch ends the crew when a follower has given no sign of life for a lease, or none at all since it was started. It counts looks and not
// time, so that a worker which was itself suspended does not take its followers for dead.
func (c *Crew) watch(f *follower) {
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

// Each has every follower carry out the order of its rank, while own does rank 0's part.
func (c *Crew) Each(ctx context.Context, of func(rank int) Order, own func(context.Context) error) ([]Reply, error) {
	orders := make([][][]byte, len(c.followers))
	for i, f := range c.followers {
		var err error
		if orders[i], err = encodeOrder(of(f.rank), nil); err != nil {
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
		f.kill()
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
