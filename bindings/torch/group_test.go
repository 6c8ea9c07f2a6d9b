package torch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/cuda/cudatest"
)

// rankOrder is a test's order to the process of a rank, sent as one line of JSON. The process replies to each with a rankAnswer.
type rankOrder struct {
	Do      string // "open", "sums", "wait", "cancel", "signals", "stream"
	Options GroupOptions
	Device  string // for sums and stream; "" is the CPU
	Seed    uint64 // for delays
}

type rankAnswer struct {
	Error    string
	Typed    bool // whether the error is a *GroupError
	TimedOut bool
	Peer     int
	Over     string // after sums
}

// TestGroupRank runs one rank. The tests below start it as a process and write orders to its standard input.
func TestGroupRank(t *testing.T) {
	if os.Getenv("MGRPO_TEST_GROUP_RANK") == "" {
		t.Skip("runs only in processes that the group tests start")
	}
	var g *Group
	orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stderr)
	for {
		var o rankOrder
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			os.Exit(0)
		} else if err != nil {
			t.Fatal(err)
		}
		var a rankAnswer
		var err error
		switch o.Do {
		case "open":
			g, err = OpenGroup(context.Background(), o.Options)
		case "sums":
			if a.Over, err = rankSums(o.Device, g, o.Seed); err == nil {
				err = rankExchanges(g)
			}
			if err != nil {
				_ = g.Close() // otherwise the others would wait for a rank that has given up
			}
		case "signals":
			err = pipeBlocked()
		case "stream": // replies when it has begun, and again when it fails
			if err = rankStreams(o.Device, g, func() error { return answers.Encode(a) }); err == nil {
				t.Fatal("the stream ended without an error")
			}
		case "wait":
			_, err = g.Exchange(context.Background(), nil, 0)
		case "cancel":
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(50*time.Millisecond, cancel)
			_, err = g.Exchange(ctx, nil, 0)
		}
		var ge *GroupError
		if errors.As(err, &ge) {
			a.Typed, a.TimedOut, a.Peer = true, ge.TimedOut, ge.Rank
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			t.Fatal(err)
		}
	}
}

// pipeBlocked returns an error unless SIGPIPE is blocked in the threads of Gloo and of its process
// group, because Gloo may write to ranks that no longer exist. Go's own threads never block it.
func pipeBlocked() error {
	const sigpipe = 1 << (syscall.SIGPIPE - 1)
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		return err
	}
	safe := 0
	for _, path := range tasks {
		status, _ := os.ReadFile(path) // a thread may have ended in the meantime
		_, mask, _ := strings.Cut(string(status), "SigBlk:")
		mask, _, _ = strings.Cut(mask, "\n")
		if blocked, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && blocked&sigpipe != 0 {
			safe++
		}
	}
	if safe < 2 {
		return fmt.Errorf("%d threads have SIGPIPE blocked, want two", safe)
	}
	return nil
}

// groupSizes are numbers of elements: fewer than the ranks, with uneven shares, and more than one piece of a sum.
var groupSizes = []int64{1, 3, 1000, 1<<20 + 7}

// contribution returns rank r's summand for a sum of n elements.
func contribution(r int, n int64) []float32 {
	random, f := rand.New(rand.NewPCG(uint64(r), uint64(n))), make([]float32, n)
	for i := range f {
		f[i] = random.Float32() - 0.5
	}
	return f
}

// rankSums runs every collective after a random delay, and fails unless each result is bitwise equal to the result computed from the ranks'
// contributions. It returns the transport.
func rankSums(device string, g *Group, seed uint64) (over string, err error) {
	d, err := Open(cmp.Or(device, "cpu"), 1)
	if err != nil {
		return "", err
	}
	defer d.Close()
	ctx, r := context.Background(), rand.New(rand.NewPCG(seed, uint64(g.Rank())))
	pause := func() { time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond) }
	err = d.Do(ctx, func(s *Scope) error {
		if over, err = g.Transport(ctx, s); err != nil {
			return err
		}
		for _, n := range groupSizes {
			from, to := Share(n, g.Rank(), g.Size())
			mine, last := contribution(g.Rank(), n), contribution(g.Size()-1, n)
			sum, halves := make([]float32, n), make([]float32, to-from)
			for i := range halves {
				halves[i] = 0.25 // initial values to add to
			}
			rounded := make([]float32, n)
			for rank := range g.Size() { // in rank order
				theirs := contribution(rank, n)
				s.FromFloat32(theirs, n).To(BFloat16).Float32s(rounded)
				for i, x := range theirs {
					sum[i] += x
				}
				for i := range halves {
					halves[i] += rounded[from+int64(i)]
				}
			}
			want := func(what string, t *Tensor, values []float32) error {
				got := make([]float32, len(values))
				t.Float32s(got)
				if !slices.Equal(got, values) {
					return fmt.Errorf("rank %d: %s of %d elements is wrong", g.Rank(), what, n)
				}
				return nil
			}

			t := s.FromFloat32(mine, n)
			pause()
			if err := g.ReduceScatter(ctx, t); err != nil {
				return err
			}
			if err := want("reduce scatter", t, slices.Concat(mine[:from], sum[from:to], mine[to:])); err != nil {
				return err
			}
			pause()
			if err := g.AllGather(ctx, t); err != nil {
				return err
			}
			if err := want("all gather", t, sum); err != nil {
				return err
			}
			if err := gatherMeanwhile(s, g, pause, want, sum); err != nil {
				return err
			}
			pause()
			into := s.Full(Float32, 0.25, to-from)
			if err := g.Accumulate(ctx, into, s.FromFloat32(mine, n).To(BFloat16)); err != nil {
				return err
			}
			if err := want("accumulate", into, halves); err != nil {
				return err
			}
			pause()
			sent := s.FromFloat32(mine, n)
			if err := g.Send(ctx, sent, g.Size()-1, 0); err != nil {
				return err
			}
			if g.Rank() == 0 {
				mine = last
			}
			if err := want("send", sent, mine); err != nil {
				return err
			}
			pause()
			if err := rankSendsRows(ctx, g, s, n%5); err != nil {
				return err
			}
		}
		return nil
	})
	return over, err
}

// gatherMeanwhile gathers two tensors at once, and makes other calls in the meantime.
func gatherMeanwhile(s *Scope, g *Group, pause func(), want func(string, *Tensor, []float32) error, values []float32) error {
	ctx, n := context.Background(), int64(len(values))
	from, to := Share(n, g.Rank(), g.Size())
	under := func() *Tensor { // contains this rank's share of the values only
		t := s.Zeros(Float32, n)
		t.Narrow(0, from, to-from).CopyFrom(s.FromFloat32(values, n).Narrow(0, from, to-from))
		return t
	}
	first, second, between := under(), under(), under()
	for _, t := range []*Tensor{first, second} {
		pause()
		if err := g.StartAllGather(ctx, t); err != nil {
			return err
		}
	}
	pause()
	if err := g.AllGather(ctx, between); err != nil {
		return err
	}
	if _, err := g.Exchange(ctx, []byte("meanwhile"), 9); err != nil {
		return err
	}
	for _, t := range []*Tensor{first, second} {
		pause()
		if err := g.FinishAllGather(ctx, t); err != nil {
			return err
		}
	}
	return errors.Join(want("a gathering", first, values), want("another", second, values), want("one between them", between, values))
}

// rankSendsRows sends a number of rows from every rank to every rank. The number differs between pairs and is 0 for some.
func rankSendsRows(ctx context.Context, g *Group, s *Scope, seed int64) error {
	rows := func(from, to int) int64 { return (int64(from)*3 + int64(to)*5 + seed) % 4 }
	value := func(from, to, row, i int64) float32 { return float32(1000*from + 100*to + 10*row + i) }
	const width = 3
	var came, sent []int64
	var out, want []float32
	for r := range g.Size() {
		came, sent = append(came, rows(r, g.Rank())), append(sent, rows(g.Rank(), r))
		for row := range sent[r] {
			for i := range int64(width) {
				out = append(out, value(int64(g.Rank()), int64(r), row, i))
			}
		}
		for row := range came[r] {
			for i := range int64(width) {
				want = append(want, value(int64(r), int64(g.Rank()), row, i))
			}
		}
	}
	in := s.Empty(BFloat16, int64(len(want)/width), width)
	if err := g.AllToAll(ctx, in, s.FromFloat32(out, int64(len(out)/width), width).To(BFloat16), came, sent); err != nil {
		return err
	}
	got, rounded := make([]float32, len(want)), make([]float32, len(want))
	in.Float32s(got)
	s.FromFloat32(want, int64(len(want))).To(BFloat16).Float32s(rounded)
	if !slices.Equal(got, rounded) {
		return fmt.Errorf("rank %d: rows %v came, want %v", g.Rank(), got, rounded)
	}
	return nil
}

// rankStreams gathers tensors much larger than the buffers of sockets until a call fails or a signal arrives.
func rankStreams(device string, g *Group, begun func() error) error {
	d, err := Open(cmp.Or(device, "cpu"), 1)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGUSR1)
	defer stop()
	return d.Do(ctx, func(s *Scope) error {
		t := s.Zeros(Float32, 1<<24)
		for n := 0; ; n++ {
			if err := g.AllGather(ctx, t); err != nil {
				return err
			}
			if n == 0 {
				if err := begun(); err != nil {
					return err
				}
			}
		}
	})
}

// rankExchanges exchanges texts of different lengths, including empty ones, some that need two rounds, and one that is too long.
func rankExchanges(g *Group) error {
	for _, unit := range []int{1, atOnce / 2, atOnce/2 + 1} {
		text := func(rank, round int) []byte {
			said := make([]byte, (rank+round)%3*rank*unit)
			for i := range said {
				said[i] = byte(rank + i + i>>8)
			}
			return said
		}
		for round := range 3 {
			all, err := g.Exchange(context.Background(), text(g.Rank(), round), 6*unit)
			if err != nil {
				return err
			}
			for rank, got := range all {
				if want := text(rank, round); !bytes.Equal(got, want) {
					return fmt.Errorf("rank %d gave %d bytes %.40q, want %d bytes %.40q", rank, len(got), got, len(want), want)
				}
			}
		}
	}
	_, err := g.Exchange(context.Background(), make([]byte, 3*g.Rank()+1), 3*g.Size()-3)
	if want := fmt.Sprintf("rank %d gives %d bytes, of %d", g.Size()-1, 3*g.Size()-2, 3*g.Size()-3); err == nil || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("got %v, want %q", err, want)
	}
	return nil
}

// rankProcess is a test's handle on the process of one rank.
type rankProcess struct {
	cmd     *exec.Cmd
	orders  *json.Encoder
	answers *bufio.Reader
}

func startRanks(t *testing.T, n int) []*rankProcess {
	t.Helper()
	ranks := make([]*rankProcess, n)
	for i := range ranks {
		cmd := exec.Command(os.Args[0], "-test.run=^TestGroupRank$")
		cmd.Env = append(os.Environ(), "MGRPO_TEST_GROUP_RANK=1")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		ranks[i] = &rankProcess{cmd, json.NewEncoder(in), bufio.NewReader(out)}
	}
	return ranks
}

func (p *rankProcess) order(t *testing.T, o rankOrder) {
	t.Helper()
	if err := p.orders.Encode(o); err != nil {
		t.Fatal(err)
	}
}

// answer waits for the rank's next answer, and logs the other lines that it prints.
func (p *rankProcess) answer(t *testing.T) (a rankAnswer) {
	t.Helper()
	for {
		line, err := p.answers.ReadString('\n')
		if err != nil {
			t.Fatalf("the rank's process ended: %v; its last output: %s", err, line)
		}
		if !strings.HasPrefix(line, "{") {
			t.Log(strings.TrimSpace(line))
			continue
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
}

func (p *rankProcess) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// all gives every rank the same order and returns their answers.
func all(t *testing.T, ranks []*rankProcess, o rankOrder) []rankAnswer {
	t.Helper()
	for i, p := range ranks {
		o.Options.Rank, o.Options.Size = i, len(ranks)
		p.order(t, o)
	}
	answers := make([]rankAnswer, len(ranks))
	for i, p := range ranks {
		answers[i] = p.answer(t)
	}
	return answers
}

func allWell(t *testing.T, ranks []*rankProcess, o rankOrder) {
	t.Helper()
	for i, a := range all(t, ranks, o) {
		if a.Error != "" {
			t.Fatalf("%s: rank %d: %s", o.Do, i, a.Error)
		}
	}
}

// opening returns an order to join a group whose rendezvous the test serves. Calls wait for at most timeout.
func opening(t *testing.T, timeout time.Duration) rankOrder {
	t.Helper()
	r, err := ServeRendezvous("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return rankOrder{Do: "open", Options: GroupOptions{
		Rendezvous: r.Addr(), Name: "first", Bind: "127.0.0.1", Join: time.Hour, Timeout: timeout,
	}}
}

func TestGroupSumsInTheOrderOfItsRanks(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		onDeviceNames(t, func(t *testing.T, device string) {
			ranks := startRanks(t, n)
			allWell(t, ranks, opening(t, time.Hour))
			for seed := range uint64(3) {
				allWell(t, ranks, rankOrder{Do: "sums", Device: device, Seed: seed})
			}
		})
	}
}

// onDeviceNames runs a test of ranks with tensors on the CPU, and on a GPU if the machine has one.
func onDeviceNames(t *testing.T, test func(t *testing.T, device string)) {
	t.Run("cpu", func(t *testing.T) { test(t, "cpu") })
	if loadCUDA() == nil {
		t.Run("cuda:0", func(t *testing.T) { test(t, "cuda:0") })
	}
}

// Ranks with their own GPUs use NCCL. If one of them cannot, all use Gloo and report the reason.
func TestGroupOfGPUs(t *testing.T) {
	needGPU(t)
	over := func(t *testing.T, want string) {
		t.Helper()
		ranks := startRanks(t, 3)
		allWell(t, ranks, opening(t, time.Hour))
		for i, a := range all(t, ranks, rankOrder{Do: "sums", Device: "cuda:0"}) {
			if a.Error != "" || !strings.Contains(a.Over, want) {
				t.Errorf("rank %d: %+v, want %q", i, a, want)
			}
		}
	}
	if !cudatest.Emulated() {
		over(t, "Gloo, through the host's memory: rank 1 has the same GPU as rank 0")
		t.Skip("processes have separate GPUs only if they are emulated")
	}
	t.Run("each its own", func(t *testing.T) { over(t, "NCCL 2.28.9") })
	t.Run("old library", func(t *testing.T) {
		t.Setenv("MGRPO_EMULATED_NCCL", "old")
		over(t, "Gloo, through the host's memory: rank 0: NCCL 2.18 or later is needed, not 2.10")
	})
	t.Run("one cannot connect", func(t *testing.T) {
		ranks := startRanks(t, 2)
		t.Setenv("MGRPO_EMULATED_NCCL", "fails")
		ranks = append(ranks, startRanks(t, 1)...)
		allWell(t, ranks, opening(t, 8*time.Second))
		for i, a := range all(t, ranks, rankOrder{Do: "sums", Device: "cuda:0"}) {
			if want := "Gloo, through the host's memory: rank "; a.Error != "" || !strings.HasPrefix(a.Over, want) || !strings.Contains(a.Over, "NCCL") {
				t.Errorf("rank %d: %+v, want %q and NCCL's message", i, a, want)
			}
		}
	})
	t.Run("one stops", func(t *testing.T) {
		ranks := startRanks(t, 2)
		open, sums := opening(t, 8*time.Second), rankOrder{Do: "sums", Device: "cuda:0"}
		allWell(t, ranks, open)
		allWell(t, ranks, sums)
		ranks[1].signal(t, syscall.SIGSTOP)
		ranks[0].order(t, sums)
		if a := ranks[0].answer(t); !a.TimedOut || !strings.Contains(a.Error, "NCCL") {
			t.Errorf("got %+v, want a time-out of NCCL", a)
		}
		ranks[1].signal(t, syscall.SIGCONT)
		open.Options.Name, open.Options.Timeout = "second", 5*time.Minute
		allWell(t, ranks, open)
		allWell(t, ranks, sums)
	})
}

// If a rank is killed, the others get an error, and their processes can form another group.
func TestGroupLosesARank(t *testing.T) {
	ranks := startRanks(t, 4)
	open := opening(t, time.Hour)
	allWell(t, ranks, open)
	allWell(t, ranks, rankOrder{Do: "signals"})
	for _, p := range ranks[:3] {
		p.order(t, rankOrder{Do: "wait"})
	}
	ranks[3].signal(t, syscall.SIGKILL)
	for i, p := range ranks[:3] {
		if a := p.answer(t); !a.Typed || a.TimedOut || a.Peer < 0 {
			t.Errorf("rank %d: got %+v, want a lost rank", i, a)
		}
	}
	for i, a := range all(t, ranks[:3], rankOrder{Do: "wait"}) {
		if !a.Typed {
			t.Errorf("rank %d after the group was lost: got %+v, want the error again", i, a)
		}
	}
	open.Options.Name = "second"
	allWell(t, ranks[:3], open)
	allWell(t, ranks[:3], rankOrder{Do: "sums"})
}

// If a rank is killed while it sends, the others wait for at most the time-out. A rank that is
// notified ends the call at once, and the others can form another group.
func TestGroupLosesARankAtWork(t *testing.T) { onDeviceNames(t, losesARankAtWork) }

func losesARankAtWork(t *testing.T, device string) {
	t.Setenv("MGRPO_EMULATED_NCCL", "blind")
	ranks := startRanks(t, 3)
	open := opening(t, time.Hour)
	allWell(t, ranks, open)
	allWell(t, ranks, rankOrder{Do: "stream", Device: device})
	ranks[1].signal(t, syscall.SIGKILL)
	left := []*rankProcess{ranks[0], ranks[2]}
	for i, p := range left {
		p.signal(t, syscall.SIGUSR1)
		if a := p.answer(t); a.Error != context.Canceled.Error() && (!a.Typed || a.TimedOut) {
			t.Errorf("remaining rank %d: got %+v, want the end of its call", i, a)
		}
	}
	open.Options.Name = "second"
	allWell(t, left, open)
	allWell(t, left, rankOrder{Do: "sums", Device: device})
}

// If a rank is stopped, the others get an error after their time-out, and the rank is no longer in their group when it resumes.
func TestGroupTimesOut(t *testing.T) {
	ranks := startRanks(t, 2)
	open := opening(t, 500*time.Millisecond)
	allWell(t, ranks, open)
	ranks[1].signal(t, syscall.SIGSTOP)
	ranks[0].order(t, rankOrder{Do: "wait"})
	if a := ranks[0].answer(t); !a.TimedOut || a.Peer != 1 {
		t.Errorf("got %+v, want a time-out of rank 1", a)
	}
	ranks[1].signal(t, syscall.SIGCONT)
	ranks[1].order(t, rankOrder{Do: "sums"})
	if a := ranks[1].answer(t); !a.Typed {
		t.Errorf("the resumed rank: got %+v, want an error", a)
	}
	open.Options.Name, open.Options.Timeout = "second", 5*time.Minute
	allWell(t, ranks, open)
	allWell(t, ranks, rankOrder{Do: "sums"})
}

// Ranks that make different calls do not accept each other's messages.
func TestGroupCallsMustMatch(t *testing.T) {
	ranks := startRanks(t, 2)
	allWell(t, ranks, opening(t, time.Second))
	ranks[0].order(t, rankOrder{Do: "wait"})
	ranks[1].order(t, rankOrder{Do: "sums"})
	for i, p := range ranks {
		if a := p.answer(t); !a.Typed {
			t.Errorf("rank %d: got %+v, want an error", i, a)
		}
	}
}

func TestGroupIsCancelled(t *testing.T) {
	ranks := startRanks(t, 2)
	allWell(t, ranks, opening(t, time.Hour))
	ranks[0].order(t, rankOrder{Do: "cancel"})
	if a := ranks[0].answer(t); a.Error != context.Canceled.Error() {
		t.Errorf("got %+v, want %v", a, context.Canceled)
	}
	ranks[1].order(t, rankOrder{Do: "wait"})
	if a := ranks[1].answer(t); !a.Typed || a.TimedOut {
		t.Errorf("the other rank: got %+v, want a lost rank", a)
	}
}

// A failed join prints one line only, the error with the address of the rendezvous. LibTorch's back-traces of each attempt are not logged.
func TestGroupFailsInOneLine(t *testing.T) {
	if os.Getenv("TORCH_CPP_LOG_LEVEL") != "" {
		t.Skip("TORCH_CPP_LOG_LEVEL enables more logging")
	}
	o := opening(t, time.Second)
	o.Options.Join, o.Options.Size = time.Second, 2
	nobody := o.Options.Rendezvous
	for rendezvous, said := range map[string]string{"127.0.0.1:1": "timed out after 1000ms while trying to connect", nobody: "wait timeout after 1000ms"} {
		p := startRanks(t, 1)[0]
		o.Options.Rendezvous = rendezvous
		p.order(t, o)
		line, err := p.answers.ReadString('\n')
		var a rankAnswer
		if err != nil || json.Unmarshal([]byte(line), &a) != nil {
			t.Fatalf("before the answer: %s, %v", line, err)
		}
		if !a.TimedOut || !strings.Contains(a.Error, "rendezvous "+rendezvous+": ") || !strings.Contains(a.Error, said) || strings.Contains(a.Error, "\n") {
			t.Errorf("%+v", a)
		}
	}
}

// Opening a group times out if the rendezvous accepts the connection but does not answer, for example because its process is suspended.
func TestGroupMeetsSilence(t *testing.T) {
	t.Parallel() // it waits for the time-out
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, err = OpenGroup(context.Background(), GroupOptions{Rendezvous: silent.Addr().String(), Name: "x", Bind: "127.0.0.1", Size: 1,
		Join: 10 * time.Millisecond, Timeout: time.Second})
	var late *GroupError
	if !errors.As(err, &late) || !late.TimedOut || !strings.Contains(err.Error(), silent.Addr().String()) {
		t.Errorf("got %v, want a time-out with the address of the rendezvous", err)
	}
}

func TestGroupRefuses(t *testing.T) {
	good := GroupOptions{Rendezvous: "127.0.0.1:1", Name: "x", Bind: "127.0.0.1", Size: 1, Join: time.Millisecond, Timeout: time.Second}
	for want, change := range map[string]func(*GroupOptions){
		"missing port":           func(o *GroupOptions) { o.Rendezvous = "127.0.0.1" },
		"is not a port":          func(o *GroupOptions) { o.Rendezvous = "127.0.0.1:65536" },
		"Name and Bind":          func(o *GroupOptions) { o.Name = "" },
		"rank 1 of 1":            func(o *GroupOptions) { o.Rank = 1 },
		"time-outs of":           func(o *GroupOptions) { o.Join = 0 },
		"did not answer in time": func(o *GroupOptions) {},
	} {
		o := good
		change(&o)
		_, err := OpenGroup(context.Background(), o)
		wantMessage(t, err, want)
	}
}
