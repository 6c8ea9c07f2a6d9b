package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
)

// RankGroup holds rank 0's handles on the followers of an agent. It is nil for an agent with one device, and then all methods
// except Each and Addresses may be called. It executes one order at a time; several goroutines may give orders. After a failed
// order the group has ended, because its processes may have executed any part of the order.
type RankGroup struct {
	lease     time.Duration
	followers []*followerHandle
	addresses []string // of all ranks

	ordering sync.Mutex // locked while an order is executed: writing a checkpoint of frozen weights gives orders, too

	mu    sync.Mutex
	why   error         // the cause of the end
	ended chan struct{} // closed when the group has ended
	left  sync.WaitGroup
}

// GroupOptions are the settings of a group.
type GroupOptions struct {
	Agent     string
	Devices   []string      // of this machine: rank 0's, which needs no follower, and those of ranks 1 to n
	Machines  *Machines     // with the devices of further ranks; nil: there are none
	Lease     time.Duration // a follower without a heartbeat for this time counts as lost
	HiddenEnv []string      // environment variables that followers do not inherit
}

// errEnded is the cause of an end that rank 0 requested.
var errEnded = errors.New("launch: the followers were ended")

// checkParent returns an error in a process that would start itself again and again.
func checkParent() error {
	if _, follows := os.LookupEnv(followerEnv); follows {
		return errors.New("launch: a follower was started as a worker: call trainer.ServeChild first in main")
	}
	return nil
}

// StartGroup waits for the further machines and starts a follower for each device. The first order describes the model to
// load.
func StartGroup(ctx context.Context, opt GroupOptions) (*RankGroup, error) {
	if err := checkParent(); err != nil {
		return nil, err
	}
	g := &RankGroup{lease: opt.Lease, ended: make(chan struct{}), addresses: slices.Repeat([]string{loopback}, len(opt.Devices))}
	far, err := opt.Machines.take(ctx)
	if err != nil {
		return nil, err
	}
	for i, device := range opt.Devices[1:] {
		g.followers = append(g.followers, newFollowerHandle(opt.Agent, i+1, device, &process{}))
	}
	here := slices.Clone(g.followers)
	for _, d := range far {
		g.add(opt, d)
	}
	started := make(chan error)
	env := append(secret.Environ(opt.HiddenEnv), followerEnv+"="+opt.Lease.String())
	g.left.Go(func() { g.parent(here, started, env) })
	if err := <-started; err != nil {
		g.left.Wait()
		for _, d := range far {
			d.kill()
		}
		return nil, err
	}
	for _, f := range g.followers {
		g.left.Go(func() { g.handleReplies(f) })
		g.left.Go(func() { g.watch(f) })
	}
	return g, nil
}

// add adds the follower of a connection. All ranks then meet at addresses that their machines can reach.
func (g *RankGroup) add(opt GroupOptions, d *deviceConn) {
	f := newFollowerHandle(opt.Agent, d.rank, d.device, d)
	f.machine = fmt.Sprintf(" of machine %d (%s)", d.machine, d.address)
	f.allowed = append(f.allowed, stopFrame, endedFrame)
	f.stop = func() { opt.Machines.opt.Stop(d.machine) }
	g.followers = append(g.followers, f)
	g.addresses = append(g.addresses, d.address)
	for rank := range opt.Devices {
		g.addresses[rank] = d.here
	}
}

// loopback is the address at which the ranks of one machine meet.
const loopback = "127.0.0.1"

// Addresses returns the addresses at which the ranks reach each other, by rank.
func (g *RankGroup) Addresses() []string { return g.addresses }

// parent runs on the thread that the kernel considers the followers' parent. It lives as long as they do.
func (g *RankGroup) parent(here []*followerHandle, started chan<- error, environ []string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i, f := range here {
		if err := f.link.(*process).start(f.agent, f.rank, f.device, environ); err != nil {
			for _, before := range here[:i] {
				before.finish()
			}
			started <- fmt.Errorf("launch: cannot start %s: %w", f.name(), err)
			return
		}
	}
	close(started)
	for _, f := range here {
		<-f.ended
	}
}

// Each sends every follower the order of its rank and calls own, which does rank 0's part, at the same time. It returns
// the replies.
func (g *RankGroup) Each(ctx context.Context, orderOf func(rank int) Order, own func(context.Context) error) ([]Reply, error) {
	orders := make([][][]byte, len(g.followers))
	for i, f := range g.followers {
		var err error
		if orders[i], err = encodeOrder(orderOf(f.rank), nil); err != nil {
			return nil, err
		}
	}
	return g.do(ctx, orders, own)
}

// Do sends every follower an order with its batch and calls own, which does rank 0's part, at the same time. It returns
// the replies. The context of own ends when a follower is lost; Do then returns the loss instead of own's error.
func (g *RankGroup) Do(ctx context.Context, o Order, batch []*learner.Sequence, own func(context.Context) error) ([]Reply, error) {
	if g == nil {
		return nil, own(ctx)
	}
	frames, err := encodeOrder(o, batch)
	if err != nil {
		return nil, err
	}
	return g.do(ctx, slices.Repeat([][][]byte{frames}, len(g.followers)), own)
}

// do sends each follower the frames of its order. If a follower does not read them, watch detects it.
func (g *RankGroup) do(ctx context.Context, orders [][][]byte, own func(context.Context) error) ([]Reply, error) {
	g.ordering.Lock()
	defer g.ordering.Unlock()
	if err := g.Err(); err != nil {
		return nil, err
	}
	acting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g.left.Go(func() {
		select {
		case <-g.ended:
			cancel(g.Err())
		case <-acting.Done():
		}
	})
	for i, f := range g.followers {
		g.left.Go(func() {
			_ = f.send(orders[i]...) // if the process is gone, handleReplies reports the reason
		})
	}
	if err := own(acting); err != nil {
		return nil, g.endAfter(ctx, err)
	}
	replies := make([]Reply, len(g.followers))
	for i, f := range g.followers {
		select {
		case replies[i] = <-f.answers:
		case <-g.ended:
			return nil, g.Err()
		case <-ctx.Done():
			return nil, g.end(context.Cause(ctx))
		}
	}
	return replies, nil
}

// EndUnlessEqual returns an error and ends the group if a follower's digest differs from rank 0's.
func (g *RankGroup) EndUnlessEqual(digest uint32, replies []Reply) error {
	for i, r := range replies {
		if r.Digest != digest {
			return g.end(&FailedError{Follower: g.followers[i].name(), Reason: fmt.Sprintf("has other weights (%08x) than rank 0 (%08x)", r.Digest, digest)})
		}
	}
	return nil
}

// lossTimeout bounds the time until the loss of a process is noticed.
const lossTimeout = 2 * time.Second

// endAfter ends the group because of a rank's error. If a follower is lost at the same time, that is the reason. If a
// rank reports only that it lost another one, endAfter waits longer, because the other may report the cause. If no rank
// reports a cause and no process is lost, endAfter assumes a hanging device, and the error allows a new round.
func (g *RankGroup) endAfter(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return g.end(context.Cause(ctx))
	}
	wait := lossTimeout
	var own *torch.GroupError
	var theirs *FailedError
	if errors.As(err, &own) || errors.As(err, &theirs) && theirs.OtherLost {
		err = &LostError{Follower: "a rank of " + g.followers[0].agent, How: "was lost to the others: " + err.Error()}
		wait *= 2
	}
	select {
	case <-g.ended:
	case <-time.After(wait):
	}
	return g.end(err)
}

// end kills the followers, once, and returns the cause.
func (g *RankGroup) end(why error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why != nil {
		return g.why
	}
	g.why = why
	close(g.ended)
	for _, f := range g.followers {
		f.kill()
	}
	return why
}

// Err returns the cause of the group's end, or nil while it runs.
func (g *RankGroup) Err() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

// Close ends the followers. They have no state to save: rank 0 saves it.
func (g *RankGroup) Close() {
	if g == nil {
		return
	}
	g.end(errEnded)
	g.left.Wait()
}
