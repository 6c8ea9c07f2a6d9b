package torch

// #include <stdlib.h>
// #include "mgrpo_torch.h"
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"
)

// Rendezvous is a TCP store of LibTorch through which the ranks of groups find each other. Whoever reaches it can read and
// write it: listen on an address of a private network.
type Rendezvous struct {
	addr   string
	native *C.mgt_rendezvous
}

// ServeRendezvous serves a rendezvous at addr, "host:port", where port 0 means a free one.
func ServeRendezvous(addr string) (*Rendezvous, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("torch: rendezvous at %s: %w", addr, err)
	}
	defer listener.Close()
	at := listener.Addr().(*net.TCPAddr)
	host := C.CString(at.IP.String())
	defer C.free(unsafe.Pointer(host))
	conn, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("torch: rendezvous at %s: %w", addr, err)
	}
	var served C.mgt_pointer
	err = conn.Control(func(socket uintptr) { served = C.mgt_rendezvous_serve(host, C.int(at.Port), C.int(socket)) })
	if err != nil || served.error != nil {
		return nil, fmt.Errorf("torch: rendezvous at %s: %w", addr, errors.Join(err, errors.New(message(served.error))))
	}
	return &Rendezvous{addr: at.String(), native: (*C.mgt_rendezvous)(served.value)}, nil
}

// Addr returns the address that GroupOptions.Rendezvous takes.
func (r *Rendezvous) Addr() string { return r.addr }

// Close ends the service. Groups that are open go on.
func (r *Rendezvous) Close() {
	C.mgt_rendezvous_close(r.native)
	r.native = nil
}

// GroupOptions says which group a process joins, and as what.
type GroupOptions struct {
	Rendezvous string        // Rendezvous.Addr
	Name       string        // of the group; never that of an earlier group of the same rendezvous
	Bind       string        // the address of this machine that the other ranks reach; whoever reaches it can disturb the group
	Rank, Size int           // this process's number, from 0, and how many processes there are
	Join       time.Duration // how long opening waits for the others
	Timeout    time.Duration // how long each call waits for the others
}

// Group is processes that compute together. Tensors on GPUs travel over NCCL where every rank has a GPU of its own; all else over Gloo, through
// the host's memory. Every rank calls the same methods in the same order, with tensors of one shape and dtype, inside Do of their device; one
// goroutine at a time uses a Group.
//
// A call that fails or ends with its context closes the group, so that the other ranks fail too, and leaves any part of what was on its way in
// the tensor that it was to overwrite. Gloo does not see that a rank is gone which was killed while it sent, and NCCL between GPUs of one
// machine sees it of none: the others wait for Timeout, or until ctx ends, so whoever starts the processes is to watch them. To go on, open
// another group under another name: equal inputs and sizes give equal bits, whatever happened before.
type Group struct {
	rank, size int

	mu     sync.Mutex
	native *C.mgt_group
	ended  error // why native is nil
}

// GroupError is the failure of a group's call because of another rank.
type GroupError struct {
	Op       string // "open", "reduce scatter", ...
	Rank     int    // the rank that was lost or waited for; -1 where it is not known
	TimedOut bool   // it did not answer in time; otherwise its connection broke
	Message  string // in the words of LibTorch or Gloo
}

func (e *GroupError) Error() string {
	who, how := "a rank", "was lost"
	if e.Rank >= 0 {
		who = "rank " + strconv.Itoa(e.Rank)
	}
	if e.TimedOut {
		how = "did not answer in time"
	}
	return fmt.Sprintf("torch: group: %s: %s %s: %s", e.Op, who, how, e.Message)
}

// toAnswer is how long after GroupOptions.Join LibTorch may say itself what it waited for. Of a rendezvous that takes the connection and
// says nothing it never does, and on a busy machine it is late.
const toAnswer = 10 * time.Second

// OpenGroup waits for all ranks of a group and connects this process with them. Where ctx ends first, or nothing answers in time, LibTorch's
// waiting goes on unseen.
func OpenGroup(ctx context.Context, o GroupOptions) (*Group, error) {
	host, port, err := net.SplitHostPort(o.Rendezvous)
	if err != nil {
		return nil, fmt.Errorf("torch: group: rendezvous %q: %w", o.Rendezvous, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || number == 0:
		return nil, fmt.Errorf("torch: group: rendezvous %q: %q is not a port", o.Rendezvous, port)
	case o.Name == "" || o.Bind == "":
		return nil, errors.New("torch: group: Name and Bind must be given")
	case o.Size < 1 || o.Size > 1024 || o.Rank < 0 || o.Rank >= o.Size:
		return nil, fmt.Errorf("torch: group: rank %d of %d; want 0 to size-1, of 1 to 1024", o.Rank, o.Size)
	case o.Join < time.Millisecond || o.Timeout < time.Millisecond:
		return nil, fmt.Errorf("torch: group: time-outs of %v and %v; want a millisecond or more", o.Join, o.Timeout)
	}
	if err := checkLibrary(); err != nil {
		return nil, fmt.Errorf("torch: group: %w", err)
	}
	if loadCUDA() == nil {
		nameInterface(o.Bind)
	}
	opened := make(chan C.mgt_group_result, 1)
	go func() {
		text := [3]*C.char{C.CString(host), C.CString(o.Name), C.CString(o.Bind)}
		opened <- C.mgt_group_open(text[0], C.int(number), text[1], text[2], C.int(o.Rank), C.int(o.Size),
			C.int64_t(o.Join.Milliseconds()), C.int64_t(o.Timeout.Milliseconds()))
		for _, s := range text {
			C.free(unsafe.Pointer(s))
		}
	}()
	late := time.NewTimer(o.Join + toAnswer)
	defer late.Stop()
	select {
	case r := <-opened:
		err := groupError("open", r)
		var failed *GroupError
		if errors.As(err, &failed) {
			failed.Message = "rendezvous " + o.Rendezvous + ": " + failed.Message
		}
		if err != nil {
			return nil, err
		}
		return &Group{rank: o.Rank, size: o.Size, native: r.group}, nil
	case <-late.C:
		err = &GroupError{Op: "open", Rank: -1, TimedOut: true, Message: "rendezvous " + o.Rendezvous + ": it does not answer"}
	case <-ctx.Done():
		err = ctx.Err()
	}
	go func() {
		if r := <-opened; groupError("open", r) == nil {
			C.mgt_group_close(r.group)
		}
	}()
	return nil, err
}

// nameInterface has NCCL, which looks for an interface itself, listen where Gloo does, unless the user chose one.
func nameInterface(bind string) {
	const key = "NCCL_SOCKET_IFNAME"
	if _, chosen := os.LookupEnv(key); chosen {
		return
	}
	all, _ := net.Interfaces() // without them NCCL chooses
	for _, i := range all {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(net.ParseIP(bind)) {
				_ = os.Setenv(key, "="+i.Name)
				return
			}
		}
	}
}

// groupError takes over the error of r.
func groupError(op string, r C.mgt_group_result) error {
	said := message(r.error)
	switch {
	case said == "":
		return nil
	case r.why == C.MGT_GROUP_MISUSED:
		return newError(op, said)
	}
	return &GroupError{Op: op, Rank: int(r.peer), TimedOut: r.why == C.MGT_GROUP_TIMED_OUT, Message: said}
}

// Rank returns this process's number, Size the number of processes.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of processes.
func (g *Group) Size() int { return g.size }

// Share returns which of n elements are those of a rank of so many: from from up to to. Shares begin at multiples of 64; the last may be
// shorter or empty.
func Share(n int64, rank, size int) (from, to int64) {
	var first, last C.int64_t
	C.mgt_group_share(C.int64_t(n), C.int(rank), C.int(size), &first, &last)
	return int64(first), int64(last)
}

// ReduceScatter writes the sum of all ranks' t, float32 or float64, into this rank's share of t: element by element, from rank 0
// to the last. The rest of t stays as it is.
func (g *Group) ReduceScatter(ctx context.Context, t *Tensor) error {
	s := t.scopeFor("reduce scatter")
	return g.call(ctx, "reduce scatter", func() C.mgt_group_result {
		return C.mgt_group_reduce_scatter_(s.dev.native, g.native, t.handle)
	})
}

// Accumulate adds every rank's t, of any dtype, to sum, float32 or float64, which has this rank's share of t alone: rank 0's first.
func (g *Group) Accumulate(ctx context.Context, sum, t *Tensor) error {
	s := t.scopeFor("accumulate")
	return g.call(ctx, "accumulate", func() C.mgt_group_result {
		return C.mgt_group_accumulate_(s.dev.native, g.native, sum.handle, t.handle)
	})
}

// AllGather overwrites every other rank's share of t with what that rank has there.
func (g *Group) AllGather(ctx context.Context, t *Tensor) error {
	s := t.scopeFor("all gather")
	return g.call(ctx, "all gather", func() C.mgt_group_result {
		return C.mgt_group_all_gather_(s.dev.native, g.native, t.handle)
	})
}

// StartAllGather begins an AllGather of t. The group may make other calls before FinishAllGather; until then nobody writes t, or reads more
// of it than this rank's share.
func (g *Group) StartAllGather(ctx context.Context, t *Tensor) error {
	s := t.scopeFor("start all gather")
	return g.call(ctx, "start all gather", func() C.mgt_group_result {
		return C.mgt_group_start_all_gather(s.dev.native, g.native, t.handle)
	})
}

// FinishAllGather ends that of t, which was started first of those under way.
func (g *Group) FinishAllGather(ctx context.Context, t *Tensor) error {
	s := t.scopeFor("all gather")
	return g.call(ctx, "all gather", func() C.mgt_group_result {
		return C.mgt_group_finish_all_gather(s.dev.native, g.native, t.handle)
	})
}

// Send overwrites rank to's t with what rank from has. The other ranks call it, too.
func (g *Group) Send(ctx context.Context, t *Tensor, from, to int) error {
	s := t.scopeFor("send")
	if min(from, to) < 0 || max(from, to) >= g.size {
		fail("send", fmt.Sprintf("from rank %d to rank %d of a group of %d", from, to, g.size), t)
	}
	return g.call(ctx, "send", func() C.mgt_group_result {
		return C.mgt_group_send_(s.dev.native, g.native, t.handle, C.int(from), C.int(to))
	})
}

// AllToAll overwrites the rows of in with those of out of all ranks that are for this one: sent[r] rows of out are for rank r, and came[r] of in
// from it, those of rank 0 first. in and out [rows, n] have a number of rows in each rank, and n and dtype in all.
func (g *Group) AllToAll(ctx context.Context, in, out *Tensor, came, sent []int64) error {
	s := out.scopeFor("all to all", in)
	if len(came) != g.size || len(sent) != g.size {
		fail("all to all", fmt.Sprintf("numbers of rows for %d and %d ranks, of %d", len(came), len(sent), g.size), in, out)
	}
	return g.call(ctx, "all to all", func() C.mgt_group_result {
		return C.mgt_group_all_to_all_(s.dev.native, g.native, in.handle, out.handle, (*C.int64_t)(&came[0]), (*C.int64_t)(&sent[0]))
	})
}

// atOnce is how many bytes a rank sends in the round that tells how many it has. The rest of more bytes takes a second round.
const atOnce = 4 << 10

// Exchange returns what every rank gave, by rank; no rank may give more than most bytes. It needs no Do.
func (g *Group) Exchange(ctx context.Context, mine []byte, most int) ([][]byte, error) {
	first := make([]byte, 8+atOnce)
	binary.LittleEndian.PutUint64(first, uint64(len(mine)))
	copied := copy(first[8:], mine)
	all, err := g.exchange(ctx, first)
	if err != nil {
		return nil, err
	}
	given, longest := make([]int, g.size), 0
	for r := range all {
		n := binary.LittleEndian.Uint64(all[r])
		if n > uint64(max(most, 0)) {
			return nil, fmt.Errorf("torch: group: exchange: rank %d gives %d bytes, of %d at most", r, n, most)
		}
		given[r], all[r] = int(n), all[r][8:]
		longest = max(longest, given[r])
	}
	if longest > atOnce {
		rest := make([]byte, longest-atOnce)
		copy(rest, mine[copied:])
		others, err := g.exchange(ctx, rest)
		if err != nil {
			return nil, err
		}
		for r := range all {
			all[r] = slices.Concat(all[r], others[r])
		}
	}
	for r, n := range given {
		all[r] = all[r][:n:n]
	}
	return all, nil
}

// exchange returns every rank's bytes, of which all ranks give as many, and at least one.
func (g *Group) exchange(ctx context.Context, mine []byte) ([][]byte, error) {
	flat := make([]byte, g.size*len(mine))
	err := g.call(ctx, "exchange", func() C.mgt_group_result {
		return C.mgt_group_exchange(g.native, unsafe.Pointer(unsafe.SliceData(mine)), C.int64_t(len(mine)), unsafe.Pointer(unsafe.SliceData(flat)))
	})
	return slices.Collect(slices.Chunk(flat, len(mine))), err
}

// call runs f, and aborts it where ctx ends.
func (g *Group) call(ctx context.Context, op string, f func() C.mgt_group_result) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		return g.ended
	}
	if err := ctx.Err(); err != nil {
		return g.abandon(err)
	}
	aborted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		C.mgt_group_abort(g.native)
		close(aborted)
	})
	err := groupError(op, f())
	if !stop() {
		<-aborted
		return g.abandon(ctx.Err())
	}
	if err != nil { // whatever it is: the others would wait for what this rank has not sent
		return g.abandon(err)
	}
	return nil
}

// end closes the group's connections; every later call returns why.
func (g *Group) end(why error) {
	C.mgt_group_close(g.native)
	g.native, g.ended = nil, why
}

// abandon ends a group whose other ranks wait for what does not come. What is on its way is lost.
func (g *Group) abandon(why error) error {
	C.mgt_group_abort(g.native)
	g.end(why)
	return why
}

// Over has the ranks agree on what moves tensors that lie on GPUs, as they would in the first call with one: "NCCL" with its version, or "Gloo"
// and why. On a CPU it is empty.
func (g *Group) Over(ctx context.Context, s *Scope) (over string, err error) {
	if !s.dev.cuda {
		return "", nil
	}
	if err := g.AllGather(ctx, s.Zeros(Float32, 1)); err != nil {
		return "", err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		return "", g.ended
	}
	return message(C.mgt_group_over(g.native)), nil
}

// GiveUp closes the connections to the other ranks, whose calls fail, after an error between two calls. It waits for the call in
// progress. Every later call returns why; a group that has ended already keeps its own reason.
func (g *Group) GiveUp(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended == nil {
		_ = g.abandon(why)
	}
}

// Close closes the connections to the other ranks, when what this rank has sent has arrived. It waits for the call in progress; closing again is
// harmless.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended == nil {
		g.end(errors.New("torch: group: used after it was closed"))
	}
	return nil
}
