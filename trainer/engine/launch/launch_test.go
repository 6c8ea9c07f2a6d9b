package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
)

// TestMain runs a follower if a test started this binary as one, and the tests otherwise. The
// agent's name selects how the follower behaves.
func TestMain(m *testing.M) {
	if inbox := Follower(); inbox != nil {
		fmt.Println("said on the\nstandard output")
		fmt.Fprintln(os.Stderr, follow(inbox))
		os.Exit(3)
	}
	os.Exit(m.Run())
}

func follow(inbox *Inbox) error {
	o, _, err := inbox.Next()
	if err != nil {
		return err
	}
	ails := o.Open.Rank == 2
	if err := inbox.Answer(Reply{Digest: uint32(o.Open.Rank)}); err != nil {
		return err
	}
	for {
		next, batch, err := inbox.Next()
		switch {
		case err != nil:
			return err
		case next.Kind == Sample:
			inbox.Sample(sampled)
			if ails {
				inbox.Sample(faultyEngine(inbox, o.Open.Agent))
			}
		case ails && o.Open.Agent == "stops":
			syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		case ails && o.Open.Agent == "dies":
			panic("an accident")
		case ails && o.Open.Agent == "has no GPU":
			os.Exit(GPULost)
		case ails && o.Open.Agent == "is killed":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case ails && o.Open.Agent == "fails":
			inbox.Answer(Reply{Error: "no memory left", OutOfMemory: true})
		case ails && o.Open.Agent == "misses":
			inbox.Answer(Reply{Error: "open /models/m: no such file", Missing: true})
		case ails && o.Open.Agent == "fails slowly": // replies after rank 0 has returned an error
			time.Sleep(200 * time.Millisecond)
			inbox.Answer(Reply{Error: "no memory left", OutOfMemory: true})
		case o.Open.Agent == "hangs": // rank 2 never replies, so rank 1's sum times out
			if ails {
				select {}
			}
			inbox.Answer(Reply{Error: "rank 2 did not answer in time", OtherLost: true})
		case o.Open.Agent == "dies slowly": // rank 1 replies with an error before rank 2 dies
			if ails {
				time.Sleep(200 * time.Millisecond)
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			inbox.Answer(Reply{Error: "connection closed by peer", OtherLost: true})
		case ails && o.Open.Agent == "raves":
			inbox.replies.Write([]byte("Segmentation fault in thread 7"))
		case ails && o.Open.Agent == "chatters":
			inbox.Answer(Reply{})
			inbox.Answer(Reply{})
			inbox.Answer(Reply{})
		}
		tokens := 0
		for _, q := range batch {
			tokens += len(q.Tokens)
		}
		if err := inbox.Answer(Reply{Digest: uint32(tokens + len(next.Indices))}); err != nil {
			return err
		}
	}
}

func start(t *testing.T, agent string) *RankGroup {
	t.Helper()
	c, err := StartGroup(t.Context(), GroupOptions{Agent: agent, Devices: []string{"cpu", "cpu", "cpu"}, Lease: 15 * time.Second, HiddenEnv: []string{"LAUNCH_TEST_SECRET"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	opening := func(rank int) Order {
		return Order{Kind: Open, Open: &OpenOrder{Agent: agent, Rank: rank, Size: 3, SharingThreads: 1}}
	}
	replies, err := c.Each(t.Context(), opening, func(context.Context) error { return nil })
	if err != nil || len(replies) != 2 || replies[0].Digest != 1 || replies[1].Digest != 2 {
		t.Fatalf("replies to the opening: got %v, want digests 1 and 2; error %v", replies, err)
	}
	return c
}

func sequences(n int) (out []*learner.Sequence) {
	for i := range n {
		out = append(out, &learner.Sequence{ID: fmt.Sprint("q/", i), TrajectoryID: "q", Tokens: slices.Repeat([]int32{7}, 5), Sampled: make([]bool, 5)})
	}
	return out
}

// TestOrders: each follower gets an order with its whole batch and replies once. After Close no follower is left and no order is accepted.
func TestOrders(t *testing.T) {
	c := start(t, "obeys")
	for range 3 {
		did := false
		replies, err := c.Do(t.Context(), Order{Kind: Prepare}, sequences(10_000), func(context.Context) error { did = true; return nil })
		if want := []Reply{{Digest: 50_000}, {Digest: 50_000}}; err != nil || !slices.Equal(replies, want) || !did {
			t.Fatalf("got replies %v, want %v; rank 0's part ran: %v; error %v", replies, want, did, err)
		}
	}
	replies, err := c.Do(t.Context(), Order{Kind: Update, Indices: []int{0, 3}, AdamW: &AdamW{LR: 1e-6}}, nil, func(context.Context) error { return nil })
	if err != nil || replies[1].Digest != 2 {
		t.Fatalf("replies to an update: got %v, want digest 2; error %v", replies, err)
	}
	c.Close()
	for _, f := range c.followers {
		if err := syscall.Kill(f.link.(*process).cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s still runs after Close: got error %v, want ESRCH", f.name(), err)
		}
	}
	if _, err := c.Do(t.Context(), Order{Kind: ResetOptimizer}, nil, func(context.Context) error { t.Error("rank 0's part ran after Close"); return nil }); !errors.Is(err, errEnded) {
		t.Errorf("an order after Close: got error %v, want %v", err, errEnded)
	}
}

// TestEndUnlessEqual: a follower whose weights differ from rank 0's ends the group.
func TestEndUnlessEqual(t *testing.T) {
	c := start(t, "obeys")
	if err := c.EndUnlessEqual(2, []Reply{{Digest: 2}, {Digest: 2}}); err != nil || c.Err() != nil {
		t.Errorf("equal weights: got errors %v and %v", err, c.Err())
	}
	err := c.EndUnlessEqual(2, []Reply{{Digest: 2}, {Digest: 3}})
	if want := "rank 2 of obeys on cpu: has other weights (00000003) than rank 0 (00000002)"; err == nil || err.Error() != want || c.Err() != err {
		t.Errorf("different weights: got error %v, want %s", err, want)
	}
}

// TestLost: if a follower fails, the order ends with an error that names the follower, although rank 0's own part waits for it. The other
// followers are ended, too.
func TestLost(t *testing.T) {
	for agent, want := range map[string]string{
		"stops":       "rank 2 of stops on cpu has sent no heartbeat for 15s; its last output: said on the standard output",
		"dies":        "rank 2 of dies on cpu ended with exit status 2; its last output: said on the standard output panic: an accident",
		"has no GPU":  "rank 2 of has no GPU on cpu ended with exit status 75",
		"is killed":   "rank 2 of is killed on cpu was killed (signal 9)",
		"hangs":       "a rank of hangs was lost to the others: rank 1 of hangs on cpu: rank 2 did not answer in time",
		"dies slowly": "rank 2 of dies slowly on cpu was killed (signal 9)",
		"raves":       `rank 2 of raves on cpu wrote something that is not a reply: launch: a frame of kind 'S'`,
		"chatters":    "rank 2 of chatters on cpu replied without an order",
		"fails":       "rank 2 of fails on cpu: no memory left",
	} {
		t.Run(agent, func(t *testing.T) {
			c := start(t, agent)
			_, err := c.Do(t.Context(), Order{Kind: ResetOptimizer}, nil, func(ctx context.Context) error {
				<-ctx.Done() // like a collective that waits for the lost rank
				return errors.New("connection closed by peer")
			})
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got error %v, want %s", err, want)
			}
			var lost *LostError
			var failed *FailedError
			if agent == "fails" {
				if !errors.As(err, &failed) || !failed.OutOfMemory {
					t.Errorf("got %#v, want a FailedError with Memory set", err)
				}
			} else if !errors.As(err, &lost) || lost.GPU != (agent == "has no GPU") {
				t.Errorf("got %#v, want a LostError with GPU %v", err, agent == "has no GPU")
			}
			c.Close()
			if err := c.followers[0].link.(*process).cmd.Process.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("rank 1 still runs after Close: got error %v, want %v", err, os.ErrProcessDone)
			}
		})
	}
}

// TestFollowerStartsNone: a follower's process cannot start followers or serve a machine. A program that does not call ServeChild would
// otherwise start itself without end.
func TestFollowerStartsNone(t *testing.T) {
	t.Setenv(followerEnv, "5s")
	c, err := StartGroup(t.Context(), GroupOptions{Agent: "planner", Devices: []string{"cpu", "cpu"}, Lease: 15 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "trainer.ServeChild") {
		t.Errorf("StartGroup: got %v, error %v; want an error that names trainer.ServeChild", c, err)
	}
	if err := ServeMachine(t.Context(), ServeOptions{}); err == nil || !strings.Contains(err.Error(), "trainer.ServeChild") {
		t.Errorf("ServeMachine: got error %v, want one that names trainer.ServeChild", err)
	}
}

// TestOwnError: if no follower failed, an order returns the error of rank 0's part, or the cause for which the context was cancelled.
func TestOwnError(t *testing.T) {
	own := errors.New("own")
	if _, err := start(t, "obeys").Do(t.Context(), Order{Kind: ResetOptimizer}, nil, func(context.Context) error { return own }); err != own {
		t.Errorf("rank 0's part failed: got error %v, want %v", err, own)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	if _, err := start(t, "obeys").Do(ctx, Order{Kind: ResetOptimizer}, nil, func(context.Context) error { cancel(own); return ctx.Err() }); err != own {
		t.Errorf("the context was cancelled: got error %v, want %v", err, own)
	}
}

// TestNoMemory: the order returns a follower's error about memory, also if rank 0's own part failed before it because of the same follower.
func TestNoMemory(t *testing.T) {
	_, err := start(t, "fails slowly").Do(t.Context(), Order{Kind: ResetOptimizer}, nil, func(context.Context) error { return errors.New("learner: rank 2: no memory left") })
	var failed *FailedError
	if !errors.As(err, &failed) || !failed.OutOfMemory {
		t.Errorf("got error %v, want a FailedError with Memory set", err)
	}
}

// TestEnvironment: a follower inherits the environment except for the variables listed in HiddenEnv.
func TestEnvironment(t *testing.T) {
	t.Setenv("LAUNCH_TEST_SECRET", "open sesame")
	c := start(t, "obeys")
	got, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.followers[0].link.(*process).cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(got, []byte("\x00PATH=")) || bytes.Contains(got, []byte("sesame")) {
		t.Errorf("got environment %q, want PATH in it and not the secret", got)
	}
}

// TestSequences: encoding and decoding a sequence changes nothing, not even values that are not finite. Columns of different lengths are
// refused.
func TestSequences(t *testing.T) {
	nan := float32(math.NaN())
	for _, q := range []*learner.Sequence{
		{ID: "q/0/sub/1", TrajectoryID: "q/0/sub", Tokens: []int32{1, -2, math.MaxInt32}, Sampled: []bool{false, true, true}, Behaviour: []float32{0, nan, -1},
			Group: -1, Weight: 2.5, Advantage: math.Inf(1), Stale: true, Routes: []uint16{7, 65535}},
		{ID: "demonstration", Tokens: []int32{4}, Sampled: []bool{false}},
		{},
	} {
		content, err := encodeSequence(q)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeColumns[*learner.Sequence](content)
		if err != nil {
			t.Fatal(err)
		}
		same := cmp.Options{cmpopts.EquateNaNs(), cmpopts.IgnoreUnexported(learner.Sequence{})}
		if d := cmp.Diff(q, got, same); d != "" {
			t.Errorf("%s (-want +got):\n%s", q.ID, d)
		}
	}
	for _, q := range []*learner.Sequence{{Tokens: []int32{1}}, {Tokens: []int32{1}, Sampled: []bool{true}, Behaviour: []float32{1, 2}}} {
		if _, err := encodeSequence(q); err == nil {
			t.Errorf("columns of different lengths were encoded: %+v", q)
		}
	}
}

// TestHostileOrders: an order that rank 0 would never send is refused.
func TestHostileOrders(t *testing.T) {
	for text, want := range map[string]string{
		`{"kind":"reset_optimizer"}`:                                                 "",
		`{"kind":"prepare","batch":3}`:                                               "",
		`{"kind":"update","indices":[1],"adamw":{"lr":1}}`:                           "",
		`{"kind":"sample"}`:                                                          "",
		`{"kind":"read","span":{"from":3,"n":2}}`:                                    "",
		`{"kind":"read"}`:                                                            "does not have a valid range of weights",
		`{"kind":"read","span":{"from":-1,"n":2}}`:                                   "does not have a valid range of weights",
		`{"kind":"read","span":{"from":9223372036854775807,"n":2}}`:                  "does not have a valid range of weights",
		`{"kind":"copy_state","span":{"from":3,"n":2}}`:                              "has a field of another kind",
		`{"kind":"update_weights","version":3}`:                                      "",
		`{"kind":"update_weights","version":-1}`:                                     "version -1",
		`{"kind":"release","version":3}`:                                             "has a field of another kind",
		`{"kind":"rm -rf"}`:                                                          "unknown order",
		`{"kind":"reset_optimizer","batch":3}`:                                       "has a field of another kind",
		`{"kind":"reset_optimizer","shell":"sh"}`:                                    "unknown field",
		`{"kind":"reset_optimizer"}{}`:                                               "more than one value",
		`{"kind":"prepare","batch":-1}`:                                              "invalid number of sequences: -1",
		`{"kind":"prepare","batch":1e8}`:                                             "cannot unmarshal",
		`{"kind":"prepare","batch":100000000}`:                                       "invalid number of sequences: 100000000",
		`{"kind":"update"}`:                                                          "does not have a learning rate",
		`{"kind":"update","adamw":{"lr":-1}}`:                                        "does not have a learning rate",
		`{"kind":"update","adamw":{"steps":-1}}`:                                     "or count",
		`{"kind":"open"}`:                                                            "does not have a complete description of the model",
		`{"kind":"open","open":{"agent":"a","rank":0,"size":2,"sharing_threads":1}}`: "does not have a complete description of the model",
		`{"kind":"open","open":{"agent":"a","rank":1,"size":2}}`:                     "does not have a complete description of the model",
		`{"kind":"open","open":{"agent":"a","rank":1,"size":2,"sharing_threads":1}}`: "",
		`{"kind":"join","group":{"name":"a","bind":"10.0.0.7"}}`:                     "",
		`{"kind":"join","group":{"name":"a","bind":"0.0.0.0"}}`:                      "does not have a complete group",
		`{"kind":"join","group":{"name":"a","bind":"node7"}}`:                        "does not have a complete group",
		``: "EOF",
	} {
		_, err := decodeOrder([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want ...%s...", text, err, want)
		}
	}
}

// FuzzOrders: any bytes are read as an order or as an error. An order that was read can be written and read again.
func FuzzOrders(f *testing.F) {
	frames, err := encodeOrder(Order{Kind: ColdStartUpdate, AdamW: &AdamW{LR: 1}}, sequences(2))
	if err != nil {
		f.Fatal(err)
	}
	whole := bytes.Join(frames, nil)
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add([]byte("o\xff\xff\xff\xff"))
	receiveOrder := func(data []byte) receivedOrder {
		in := bytes.NewReader(data)
		_, content, err := readFrame(in, orderFrame)
		if err != nil {
			return receivedOrder{err: err}
		}
		return receiveOrder(content, in)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := receiveOrder(data)
		if r.err != nil {
			return
		}
		if err := r.order.check(); err != nil || len(r.batch) != r.order.Batch {
			t.Fatalf("the invalid order %+v with %d sequences was accepted: %v", r.order, len(r.batch), err)
		}
		again, err := encodeOrder(r.order, r.batch)
		if err != nil {
			t.Fatal(err)
		}
		if back := receiveOrder(bytes.Join(again, nil)); back.err != nil || len(back.batch) != len(r.batch) {
			t.Fatalf("an order that was read and written is not read again: got %d sequences, want %d; error %v", len(back.batch), len(r.batch), back.err)
		}
	})
}
