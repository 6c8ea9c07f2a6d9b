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

// Rendezvous is a TCP store of LibTorch that the ranks of groups use to find each other. It has
// no access control: listen on an address of a private network.
type Rendezvous struct {
	addr   string
	native *C.mgt_rendezvous
}

// ServeRendezvous serves a rendezvous at addr, "host:port", with port 0 for a free port.
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

// Close ends the service. Open groups continue.
func (r *Rendezvous) Close() {
	C.mgt_rendezvous_close(r.native)
	r.native = nil
}

// GroupOptions names the group that a process joins, and its rank.
type GroupOptions struct {
	Rendezvous string        // Rendezvous.Addr
	Name       string        // of the group; never the name of an earlier group of the same rendezvous
	Bind       string        // the address of this machine for the other ranks; any process that reaches it can disturb the group
	Rank, Size int           // this process's number, from 0; number of processes
	Join       time.Duration // maximum wait for the others when the group is opened
	Timeout    time.Duration // maximum wait for the others in each call
}

// Group is a set of processes that compute together. NCCL sends tensors on GPUs if every rank has its own GPU.
// Gloo sends all other data, through the host's memory. Every rank must call the same methods in the same order,
// with tensors of one dtype and, except in AllToAll, of one shape. Methods with tensors are called inside Do of their device. Only one
// goroutine at a time may use a Group.
//
// A call that fails, or ends with its context, closes the group, so the other ranks fail, too. The tensor that it should overwrite
// may then hold part of the data. Gloo does not notice a rank that was killed while it sent, and NCCL between GPUs of one machine
// notices no lost rank. The others then wait for Timeout or until ctx ends, so the program that starts the processes must watch
// them. To continue, open another group under another name. Equal inputs and sizes give equal bits after any such error.
type Group struct {
	rank, size int

	mu     sync.Mutex
	native *C.mgt_group
	ended  error // the reason if native is nil
}

// GroupError reports that a group's call failed because of another rank.
type GroupError struct {
	Op       string // "open", "reduce scatter", ...
	Rank     int    // the lost or late rank; -1 if unknown
	TimedOut bool   // it did not reply in time; otherwise its connection broke
	Message  string // message of LibTorch or Gloo
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

// replyMargin is the additional time after GroupOptions.Join for LibTorch's own error, which names the awaited rank.
// On a busy machine that error is late, and it never comes if a rendezvous accepts the connection without replying.
const replyMargin = 10 * time.Second

// OpenGroup waits for all ranks of a group and connects this process with them. If ctx ends first, or no reply comes in time, OpenGroup
// returns while LibTorch still waits in the background.
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
	late := time.NewTimer(o.Join + replyMargin)
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

// nameInterface makes NCCL, which otherwise chooses an interface itself, listen at Gloo's address, unless the user chose an interface.
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

// groupError returns the error of r and frees its C memory.
func groupError(op string, r C.mgt_group_result) error {
	text := message(r.error)
	switch {
	case text == "":
		return nil
	case r.why == C.MGT_GROUP_MISUSED:
		return newError(op, text)
	}
	return &GroupError{Op: op, Rank: int(r.peer), TimedOut: r.why == C.MGT_GROUP_TIMED_OUT, Message: text}
}

// Rank returns this process's number.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of processes.
func (g *Group) Size() int { return g.size }

// Share returns the range [from, to) of a rank's share of n elements. Shares begin at multiples of 64. The last may be shorter or empty.
func Share(n int64, rank, size int) (from, to int64) {
	var first, last C.int64_t
	C.mgt_group_share(C.int64_t(n), C.int(rank), C.int(size), &first, &last)
	return int64(first), int64(last)
}

// ReduceScatter writes the sum of all ranks' t, float32 or float64, into this rank's share of t. Each element is summed from rank 0 to the
// last. The rest of t does not change.
func (g *Group) ReduceScatter(ctx context.Context, t *Tensor) error {
	s := t.scopeFor("reduce scatter")
	return g.call(ctx, "reduce scatter", func() C.mgt_group_result {
		return C.mgt_group_reduce_scatter_(s.dev.native, g.native, t.handle)
	})
}

// Accumulate adds this rank's share of every rank's t, of any dtype, to sum, rank 0's first. sum is float32 or float64 and has the size of
// the share.
func (g *Group) Accumulate(ctx context.Context, sum, t *Tensor) error {
	s := t.scopeFor("accumulate")
	return g.call(ctx, "accumulate", func() C.mgt_group_result {
		return C.mgt_group_accumulate_(s.dev.native, g.native, sum.handle, t.handle)
	})
}

// AllGather overwrites every other rank's share of t with that rank's values.
func (g *Group) AllGather(ctx context.Context, t *Tensor) error {
	s := t.scopeFor("all gather")
	return g.call(ctx, "all gather", func() C.mgt_group_result {
		return C.mgt_group_all_gather_(s.dev.native, g.native, t.handle)
	})
}

// StartAllGather begins an AllGather of t. The group may make other calls before FinishAllGather; until then t must not be written,
// and only this rank's share may be read.
func (g *Group) StartAllGather(ctx context.Context, t *Tensor) error {
	s := t.scopeFor("start all gather")
	return g.call(ctx, "start all gather", func() C.mgt_group_result {
		return C.mgt_group_start_all_gather(s.dev.native, g.native, t.handle)
	})
}

// FinishAllGather ends the AllGather of t, which must be the first that was started and not finished.
func (g *Group) FinishAllGather(ctx context.Context, t *Tensor) error {
	s := t.scopeFor("all gather")
	return g.call(ctx, "all gather", func() C.mgt_group_result {
		return C.mgt_group_finish_all_gather(s.dev.native, g.native, t.handle)
	})
}

// Send overwrites t on rank `to` with the values of t on rank `from`. The other ranks must call it, too.
func (g *Group) Send(ctx context.Context, t *Tensor, from, to int) error {
	s := t.scopeFor("send")
	if min(from, to) < 0 || max(from, to) >= g.size {
		fail("send", fmt.Sprintf("from rank %d to rank %d of a group of %d", from, to, g.size), t)
	}
	return g.call(ctx, "send", func() C.mgt_group_result {
		return C.mgt_group_send_(s.dev.native, g.native, t.handle, C.int(from), C.int(to))
	})
}

// AllToAll sends rows of out to all ranks and receives rows into in. sent[r] rows of out go to rank r, and received[r] rows of in come
// from rank r, in the order of ranks. in and out are [rows, n]. The number of rows may differ between ranks; n and dtype must be equal.
func (g *Group) AllToAll(ctx context.Context, in, out *Tensor, received, sent []int64) error {
	s := out.scopeFor("all to all", in)
	if len(received) != g.size || len(sent) != g.size {
		fail("all to all", fmt.Sprintf("numbers of rows for %d and %d ranks, of %d", len(received), len(sent), g.size), in, out)
	}
	return g.call(ctx, "all to all", func() C.mgt_group_result {
		return C.mgt_group_all_to_all_(s.dev.native, g.native, in.handle, out.handle, (*C.int64_t)(&received[0]), (*C.int64_t)(&sent[0]))
	})
}

// atOnce is the number of bytes that a rank sends together with its length in the first round. Longer data needs a second round.
const atOnce = 4 << 10

// Exchange returns the bytes of every rank, by rank. A rank may pass at most `most` bytes. Exchange may be called outside of Do.
func (g *Group) Exchange(ctx context.Context, mine []byte, most int) ([][]byte, error) {
	first := make([]byte, 8+atOnce)
	binary.LittleEndian.PutUint64(first, uint64(len(mine)))
	copied := copy(first[8:], mine)
	all, err := g.exchange(ctx, first)
	if err != nil {
		return nil, err
	}
	lengths, longest := make([]int, g.size), 0
	for r := range all {
		n := binary.LittleEndian.Uint64(all[r])
		if n > uint64(max(most, 0)) {
			return nil, fmt.Errorf("torch: group: exchange: rank %d gives %d bytes, of %d at most", r, n, most)
		}
		lengths[r], all[r] = int(n), all[r][8:]
		longest = max(longest, lengths[r])
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
	for r, n := range lengths {
		all[r] = all[r][:n:n]
	}
	return all, nil
}

// exchange returns every rank's bytes. All ranks must pass the same number, at least one.
func (g *Group) exchange(ctx context.Context, mine []byte) ([][]byte, error) {
	flat := make([]byte, g.size*len(mine))
	err := g.call(ctx, "exchange", func() C.mgt_group_result {
		return C.mgt_group_exchange(g.native, unsafe.Pointer(unsafe.SliceData(mine)), C.int64_t(len(mine)), unsafe.Pointer(unsafe.SliceData(flat)))
	})
	return slices.Collect(slices.Chunk(flat, len(mine))), err
}

// call runs f, and aborts it if ctx ends.
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
	if err != nil { // after any error the others would wait for this rank's data
		return g.abandon(err)
	}
	return nil
}

// end closes the group's connections. Every later call returns why.
func (g *Group) end(why error) {
	C.mgt_group_close(g.native)
	g.native, g.ended = nil, why
}

// abandon ends a group while other ranks wait for this rank's data. Data in transit is lost.
func (g *Group) abandon(why error) error {
	C.mgt_group_abort(g.native)
	g.end(why)
	return why
}

// Transport makes the ranks agree on the transport of tensors on GPUs, as the first call with such a tensor
// would. It returns "NCCL" with its version, or "Gloo" with the reason for using it. On a CPU it returns "".
func (g *Group) Transport(ctx context.Context, s *Scope) (name string, err error) {
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
	return message(C.mgt_group_transport(g.native)), nil
}

// Abort closes the connections to the other ranks after an error between two calls, so that their calls fail. It waits for the call in
// progress. Every later call returns why. A group that has already ended keeps its own reason.
func (g *Group) Abort(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended == nil {
		_ = g.abandon(why)
	}
}

// Close closes the connections to the other ranks when this rank's data has arrived. It waits
// for the call in progress. Further calls have no effect.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended == nil {
		g.end(errors.New("torch: group: used after it was closed"))
	}
	return nil
}
