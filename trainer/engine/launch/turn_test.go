package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// mixed is the model of these tests. It uses 2 of 4 experts for each token.
var mixed = arch.Config{VocabSize: 1000, Layers: 1, Mixture: &arch.Mixture{Experts: 4, PerToken: 2, Step: 1}}

// sampled returns the turn that an engine of these tests samples: for each token of the prompt, the sum of the token and the number of the
// rollout. A prompt that ends with -1 continues until it is cancelled.
func sampled(ctx context.Context, r policy.Request) (t Turn) {
	t.Finish, t.Version = policy.FinishStop, r.Key.Step
	for _, id := range r.Tokens {
		if id < 0 {
			<-ctx.Done()
			t.Finish = policy.FinishCancelled
			break
		}
		t.Tokens, t.LogProbs = append(t.Tokens, id+int32(r.Key.Rollout)), append(t.LogProbs, -1)
	}
	if computed := len(r.Tokens) + len(t.Tokens) - 1; t.Finish == policy.FinishStop {
		t.Routes = make([]uint16, computed*mixed.RouteWidth())
	}
	t.Stats.SampledTokens, t.Stats.Batches = int64(len(t.Tokens)), map[int]int64{1: 1}
	return t
}

// faultyEngine returns the engine of a faulty follower. The agent's name selects the fault.
func faultyEngine(inbox *Inbox, agent string) func(ctx context.Context, r policy.Request) Turn {
	return func(ctx context.Context, r policy.Request) (t Turn) {
		t = sampled(ctx, r)
		switch agent {
		case "dies over a turn":
			syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		case "stops over a turn":
			syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
		case "has no memory":
			return Turn{Reply: Reply{Error: "no memory left", OutOfMemory: true}}
		case "invents turns":
			inbox.answerTurn(1<<40, t)
		case "raves over a turn":
			inbox.send(turnFrame, []byte("turn"))
		case "invents tokens":
			t.Tokens[0] = 1 << 20
		case "invents log-probs":
			t.LogProbs[0] = float32(math.NaN())
		case "invents an end":
			t.Finish = "the end"
		case "invents a version":
			t.Version++
		case "invents experts":
			t.Routes = make([]uint16, len(t.Routes)+2)
		case "invents an expert":
			t.Routes[3] = 4
		case "ends by itself":
			t.Finish = policy.FinishCancelled
		case "cannot tell":
			t.LogProbs = nil
		}
		return t
	}
}

// countingPolicy is rank 0's policy. It counts requests.
type countingPolicy struct {
	policy.Policy
	mu      sync.Mutex
	asked   int
	version int64
}

func (o *countingPolicy) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	o.mu.Lock()
	o.asked++
	o.mu.Unlock()
	return sampled(ctx, r).Completion, context.Cause(ctx)
}

func (o *countingPolicy) Version() int64 { return o.version }
func (o *countingPolicy) Stats() policy.Stats {
	return policy.Stats{SampledTokens: 5, Batches: map[int]int64{1: 1}}
}
func (o *countingPolicy) UpdateWeights(_ context.Context, version int64) error {
	o.version = version
	return nil
}

// samplers starts a group whose followers sample together with rank 0.
func samplers(t *testing.T, agent string) (*RankGroup, *countingPolicy, policy.Policy) {
	t.Helper()
	c, o := start(t, agent), &countingPolicy{version: 3}
	if _, err := c.Do(t.Context(), Order{Kind: Sample}, nil, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return c, o, c.Sampler(o, mixed)
}

func ask(rollout int, tokens ...int32) policy.Request {
	return policy.Request{Key: policy.Key{Query: fmt.Sprint("q", rollout), Rollout: rollout, Step: 3}, Tokens: tokens, Sampling: policy.Sampling{MaxNew: 8}}
}

// TestTurns: many turns are sampled at once, spread over all ranks, also while the ranks carry out an order. Each caller gets its own turn.
func TestTurns(t *testing.T) {
	c, o, p := samplers(t, "samples")
	var all sync.WaitGroup
	_, err := c.Do(t.Context(), Order{Kind: ResetOptimizer}, nil, func(context.Context) error {
		for rollout := range 60 {
			all.Go(func() {
				r, shown := ask(rollout, 1, 2, 3), []int32{}
				r.OnToken = func(id int32) { shown = append(shown, id) }
				got, err := p.Generate(t.Context(), r)
				want := []int32{int32(1 + rollout), int32(2 + rollout), int32(3 + rollout)}
				if err != nil || !slices.Equal(got.Tokens, want) || got.Version != 3 || got.LogProbs[2] != -1 {
					t.Errorf("turn %d: got %+v, want tokens %v of version 3; error %v", rollout, got, want, err)
				}
				if len(shown) > 0 && !slices.Equal(shown, want) {
					t.Errorf("turn %d: OnToken received %v, want %v", rollout, shown, want)
				}
			})
		}
		all.Wait()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s := p.Stats()
	if o.asked == 0 || o.asked == 60 || len(s.Ranks) != 3 || s.Ranks[0] != 5 || s.SampledTokens != 5+s.Ranks[1]+s.Ranks[2] || s.Ranks[2] == 0 || s.Batches[1] != 3 {
		t.Errorf("rank 0 sampled %d turns of 60, want some and not all; statistics %+v", o.asked, s)
	}
	if err := p.UpdateWeights(t.Context(), 7); err != nil || o.version != 7 {
		t.Errorf("after an update rank 0 has version %d, want 7; error %v", o.version, err)
	}
}

// TestVersionsOfTurns: a turn that overlaps an update may have the old version or the new one.
// A turn requested after the update must have the new one.
func TestVersionsOfTurns(t *testing.T) {
	v := versions{oldest: 3, newest: 3}
	allows := func(when string, from int64, want ...int64) {
		t.Helper()
		for _, got := range []int64{-1, 0, 2, 3, 4, 5, 1 << 62} {
			if err := v.check(from, got); (err == nil) != slices.Contains(want, got) {
				t.Errorf("%s: version %d: got error %v, want one: %v", when, got, err, !slices.Contains(want, got))
			}
		}
	}
	before := v.from()
	allows("before", before, 3)
	done := v.renew(4)
	during := v.from()
	allows("asked before, answered during", before, 3, 4)
	done()
	allows("asked during, answered after", during, 3, 4)
	allows("after", v.from(), 4)
}

// TestCancelledTurn: a cancelled turn ends with the context's cause on every rank, and returns the tokens sampled so far.
func TestCancelledTurn(t *testing.T) {
	_, _, p := samplers(t, "samples")
	why := errors.New("enough")
	for rollout := range 6 {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
		got, err := p.Generate(ctx, ask(rollout, 4, 5, -1))
		if err != why || got.Finish != policy.FinishCancelled || len(got.Tokens) != 2 {
			t.Errorf("turn %d: got %+v and error %v, want 2 tokens and %v", rollout, got, err, why)
		}
	}
}

// TestLostTurn: if a follower fails during a turn, the turn ends with an error that names the follower. Once a follower is lost, all later
// turns fail, too.
func TestLostTurn(t *testing.T) {
	for agent, want := range map[string]string{
		"dies over a turn":  "rank 2 of dies over a turn on cpu was killed (signal 9)",
		"stops over a turn": "rank 2 of stops over a turn on cpu has sent no heartbeat for 15s",
		"has no memory":     "rank 2 of has no memory on cpu: no memory left",
		"invents turns":     "rank 2 of invents turns on cpu answered a turn that was not requested",
		"raves over a turn": "rank 2 of raves over a turn on cpu wrote something that is not a reply: launch: a malformed launch.turnAnswer",
		"invents tokens":    "rank 2 of invents tokens on cpu: token 1048576 is outside the vocabulary of 1000",
		"invents log-probs": "rank 2 of invents log-probs on cpu: the log-prob of sampled token 0 is NaN",
		"invents an end":    `rank 2 of invents an end on cpu: unknown finish reason "the end"`,
		"invents a version": "rank 2 of invents a version on cpu: a turn of version 4, requested when the policy had version 3",
		"invents experts":   "rank 2 of invents experts on cpu: 12 recorded experts do not fit 5 tokens with 2 experts each",
		"invents an expert": "rank 2 of invents an expert on cpu: expert 4 of token 1: the model has only 4 experts",
		"ends by itself":    "rank 2 of ends by itself on cpu: a turn was cancelled without a request to cancel it",
		"cannot tell":       "rank 2 of cannot tell on cpu: the engine returned 3 tokens but 0 log-probs",
	} {
		t.Run(agent, func(t *testing.T) {
			c, _, p := samplers(t, agent)
			var failed []error
			for rollout := 0; len(failed) == 0 && rollout < 100; rollout++ {
				if _, err := p.Generate(t.Context(), ask(rollout, 1, 2, 3)); err != nil {
					failed = append(failed, err)
				}
			}
			if len(failed) == 0 || !strings.HasPrefix(failed[0].Error(), want) {
				t.Fatalf("got errors %v, want %s", failed, want)
			}
			var fault *FailedError
			if errors.As(failed[0], &fault) {
				if fault.OutOfMemory != (agent == "has no memory") {
					t.Errorf("got %#v, want Memory %v", fault, agent == "has no memory")
				}
				return
			}
			<-c.ended
			for rollout := range 3 { // one for each rank
				var lost *LostError
				if _, err := p.Generate(t.Context(), ask(rollout, 1)); !errors.As(err, &lost) {
					t.Errorf("a turn after the loss: got error %v, want a LostError", err)
				}
			}
		})
	}
}

// TestTurnFrames: encoding and decoding a request or a turn changes nothing, not even values that are not finite and invalid UTF-8.
func TestTurnFrames(t *testing.T) {
	inf := math.Inf(-1)
	for _, want := range []turnRequest{
		{9, []int32{1, math.MaxInt32}, policy.Sampling{Temperature: inf, TopK: 5, TopP: 0.1, MinP: 1e-300, MaxNew: 6, StopIDs: []int32{-7}, StopStrings: []string{"", "\xfe"}},
			policy.Key{RunSeed: 1 << 63, Step: -1, Query: "q\xff", Rollout: 2, Agent: "a", Invocation: 3, Root: math.MaxUint64}, 4},
		{},
	} {
		arrives(t, want)
	}
	for _, want := range []Turn{
		{Completion: policy.Completion{Tokens: []int32{1}, LogProbs: []float32{float32(inf)}, Finish: policy.FinishStop, Version: 3,
			Routes: []uint16{1, 65535}}, Stats: policy.Stats{Passes: 4, Batches: map[int]int64{2: 3}}},
		{Reply: Reply{Error: "no", OutOfMemory: true}},
	} {
		arrives(t, turnAnswer{9, want})
	}
}

// arrives checks that a value is the same after it was encoded and decoded.
func arrives[T any](t *testing.T, want T) {
	t.Helper()
	got, err := decodeColumns[T](encoded(t, want))
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func encoded(t testing.TB, value any) []byte {
	t.Helper()
	content, err := encodeColumns(value)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestHostileRequests: a follower stops at frames that rank 0 would never send, with an error that states the fault.
func TestHostileRequests(t *testing.T) {
	asks := func(id uint64) []byte {
		return mustFrame(t, requestFrame, encoded(t, turnRequest{ID: id, Tokens: ask(0, -1).Tokens}))
	}
	for _, c := range []struct {
		name, want string
		samples    bool
		frames     [][]byte
	}{
		{"too early", "before the order to sample", false, [][]byte{asks(1)}},
		{"twice", "request 1 came twice", true, [][]byte{asks(1), asks(1)}},
		{"malformed", "malformed", true, [][]byte{mustFrame(t, requestFrame, []byte("{}"))}},
		{"a malformed end", "malformed", true, [][]byte{asks(1), mustFrame(t, cancelFrame, []byte("1"))}},
		{"too long an end", "announces 9 bytes", true, [][]byte{[]byte("c\x09\x00\x00\x00123456789")}},
		{"too long a request", "announces 4294967295 bytes", true, [][]byte{[]byte("q\xff\xff\xff\xff")}},
		{"an end of nothing", "", true, [][]byte{mustFrame(t, cancelFrame, make([]byte, 8))}},
	} {
		inbox := &Inbox{orders: make(chan receivedOrder, 1), replies: io.Discard}
		if c.samples {
			inbox.Sample(sampled)
		}
		gone := false
		inbox.receive(bytes.NewReader(bytes.Join(c.frames, nil)), func() { gone = true })
		if gone != (c.want == "") {
			t.Errorf("%s: the follower read to the end: %v, want %v", c.name, gone, c.want == "")
		}
		if c.want == "" {
			continue
		}
		if _, _, err := inbox.Next(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want ...%s...", c.name, err, c.want)
		}
	}
}

func mustFrame(t *testing.T, kind frameKind, content []byte) []byte {
	t.Helper()
	b, err := frame(kind, content)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzTurns: any bytes are decoded as a request, a turn or an error. A decoded value is the same after it is encoded and decoded again.
func FuzzTurns(f *testing.F) {
	turn := encoded(f, turnAnswer{1, sampled(f.Context(), ask(2, 3, 4))})
	for _, content := range [][]byte{encoded(f, turnRequest{ID: 1, Tokens: []int32{3, 4}}), turn, turn[:len(turn)-1], bytes.Repeat([]byte{255}, 200)} {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if r, err := decodeColumns[turnRequest](content); err == nil {
			again, err := decodeColumns[turnRequest](encoded(t, r))
			if d := cmp.Diff(r, again, cmpopts.EquateNaNs(), cmpopts.EquateEmpty()); d != "" || err != nil {
				t.Fatalf("%v (-first +again):\n%s", err, d)
			}
		}
		if a, err := decodeColumns[turnAnswer](content); err == nil {
			again, err := decodeColumns[turnAnswer](encoded(t, a))
			if d := cmp.Diff(a, again, cmpopts.EquateNaNs(), cmpopts.EquateEmpty()); d != "" || err != nil {
				t.Fatalf("%v (-first +again):\n%s", err, d)
			}
		}
	})
}
