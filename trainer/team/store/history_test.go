package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// event is a request of a client with the store's reply.
type event struct {
	about string // id of an invocation, or "version"; events with the same value form a part of the history
	do    string // submit, claim, complete, await, publish, read; takeover
	epoch int64
	value string
	n     int64

	unknown, conflict, fenced, refused bool // result: all false after a success
}

// modelState is the state of the sequential model: one invocation, and help's version.
type modelState struct {
	task, answer string
	handed       bool // the worker of this epoch has claimed the invocation
	epoch        int64
	version      int64
}

// follows reports whether an event can happen in a state, and returns the next state.
func follows(s modelState, e event) (bool, modelState) {
	old := e.epoch < s.epoch
	if e.fenced { // the first attempt may have taken effect, with its reply lost
		if old {
			return true, s
		}
		e.unknown = true
	}
	switch e.do {
	case "takeover":
		s.epoch, s.handed = e.epoch, false
		return true, s
	case "submit":
		there := s.task
		if there == "" {
			s.task = e.value
		}
		return e.unknown || e.conflict == (there != "" && there != e.value), s
	case "claim":
		ok := s.task == e.value && !old && !s.handed
		s.handed = true
		return ok, s
	case "complete":
		if old {
			return e.unknown, s
		}
		there := s.answer
		if there == "" {
			s.answer = e.value
		}
		return e.unknown || e.conflict == (there != "" && there != e.value), s
	case "await":
		return s.answer == e.value, s
	case "publish":
		if old {
			return e.unknown, s
		}
		fits := s.version == e.n || s.version == e.n-1
		if fits {
			s.version = e.n
		}
		return e.unknown || e.refused == !fits, s
	case "read":
		return s.version == e.n, s
	}
	panic(e.do)
}

// history is the list of all clients' events for porcupine, which checks that they are linearizable.
type history struct {
	mu    sync.Mutex
	began time.Time
	ops   []porcupine.Operation
}

// note makes a request and records it with its times and its result.
func (h *history) note(client int, e event, do func(e *event) error) error {
	call := int64(time.Since(h.began))
	err := do(&e)
	back := int64(time.Since(h.began))
	var conflict *ConflictError
	var fenced *FencedError
	switch {
	case err == nil:
	case errors.As(err, &conflict):
		e.conflict = true
	case errors.As(err, &fenced):
		e.fenced = true
	case e.refused:
	case e.do == "claim" || e.do == "await" || e.do == "read":
		return err // without a reply it changed nothing that a client could see
	default: // the write may take effect at any later time
		e.unknown, back = true, math.MaxInt64
	}
	if e.do == "claim" && e.fenced {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: e, Call: call, Return: back})
	return err
}

// await waits until enough events of a kind have happened.
func (h *history) await(t *testing.T, what string, enough int, kind func(event) bool) {
	t.Helper()
	for range 2000 {
		h.mu.Lock()
		n := 0
		for _, op := range h.ops {
			if kind(op.Input.(event)) {
				n++
			}
		}
		h.mu.Unlock()
		if n >= enough {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("fewer than %d %s", enough, what)
}

// check compares each part of the history with the model. A takeover belongs to all parts.
func (h *history) check(t *testing.T) {
	t.Helper()
	model := porcupine.Model{
		Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
			parts := map[string][]porcupine.Operation{}
			for _, op := range ops {
				parts[op.Input.(event).about] = nil
			}
			delete(parts, "")
			for about := range parts {
				for _, op := range ops {
					if a := op.Input.(event).about; a == about || a == "" {
						parts[about] = append(parts[about], op)
					}
				}
			}
			var out [][]porcupine.Operation
			for _, part := range parts {
				out = append(out, part)
			}
			return out
		},
		Init: func() any { return modelState{} },
		Step: func(state, input, _ any) (bool, any) { return follows(state.(modelState), input.(event)) },
	}
	for _, part := range model.Partition(h.ops) {
		whole := model
		whole.Partition = nil
		if porcupine.CheckOperationsTimeout(whole, part, time.Minute) == porcupine.Ok {
			continue
		}
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		text := ""
		for _, op := range part {
			text += fmt.Sprintf("%12d to %12d, client %d: %+v\n", op.Call, op.Return, op.ClientId, op.Input)
		}
		t.Errorf("no sequential order explains these events:\n%s", text)
	}
}

// TestHistory: the replies to many concurrent clients are linearizable: some sequential order of the requests explains them. The clients
// belong to a main agent and to two workers of a sub-agent. The second worker takes over the place while the first is cut off from the
// store. Networks fail all the time, and the server is killed and started again.
func TestHistory(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	links := []*link{newLink(t, server), newLink(t, server), newLink(t, server)}
	h := &history{began: time.Now()}
	o := Options{Timeout: time.Hour, Lease: time.Hour} // no lease expires during the test
	boss := join(t, openAt(t, links[0].url, o), "boss")
	first, err := openAt(t, links[1].url, o).Join(t.Context(), "help", team, ignore)
	must(t, err)
	start(t, boss, first)

	ctx, stop := context.WithCancel(t.Context())
	var faulty, clients, asking sync.WaitGroup
	faulty.Go(func() { injectFaults(ctx, t, server, links) })
	const n = 40
	for c := range 4 {
		asking.Go(func() { askAll(ctx, h, boss, c, n) })
		clients.Go(func() { answerAll(ctx, h, first, 10+c) })
	}
	clients.Go(func() { commit(ctx, h, first, 20, 30) })
	clients.Go(func() { watch(ctx, h, boss, 30) })

	answered := func(e event) bool { return e.do == "complete" && !e.unknown && !e.fenced }
	h.await(t, "answers of the first worker", n/2, answered)
	links[1].Stop() // the first worker is cut off
	successor := takeOver(ctx, t, h, server, openAt(t, links[2].url, o))
	for c := range 4 {
		clients.Go(func() { answerAll(ctx, h, successor, 40+c) })
	}
	clients.Go(func() { commit(ctx, h, successor, 50, 30) })
	h.await(t, "conflicts with answers of the first worker", 4, func(e event) bool { return e.do == "complete" && e.conflict && e.epoch == successor.Epoch() })
	must(t, links[1].Start())
	h.await(t, "refusals of the first worker", 1, func(e event) bool { return e.fenced && e.epoch == first.Epoch() })
	asking.Wait()
	stop()
	faulty.Wait()
	for _, l := range links {
		l.heal(t)
	}
	clients.Wait()
	askAll(t.Context(), h, boss, 70, n) // reads all answers once more
	h.check(t)
}

// takeOver deletes the lease of the first worker of help and has a second one join.
func takeOver(ctx context.Context, t *testing.T, h *history, server *redisserver.Server, s *Store) *Member {
	must(t, server.Await("lease to take away", func(c *redis.Client) bool {
		// A killed server may have deleted it without a reply, so 0 deleted keys are fine.
		return c.Del(ctx, "mgrpo:{test}:lease:help").Err() == nil
	}))
	var successor *Member
	must(t, h.note(60, event{do: "takeover"}, func(e *event) error {
		able := team // can start from any version
		for v := range int64(40) {
			able.Offers = append(able.Offers, Offer{Version: v, Digest: "d"})
		}
		var err error
		if successor, err = s.Join(ctx, "help", able, ignore); err == nil {
			e.epoch = successor.Epoch()
		}
		return err
	}))
	return successor
}

// injectFaults breaks and mends links, and kills the server now and then.
func injectFaults(ctx context.Context, t *testing.T, server *redisserver.Server, links []*link) {
	r := rand.New(rand.NewPCG(1, 2))
	kinds := []string{"cut", "in pieces", "reset before the reply", "closed before the reply", "closed within a reply", "closed in a request"}
	for round := 0; ctx.Err() == nil; round++ {
		l := links[2*r.IntN(2)] // not the link of the first worker, which TestHistory cuts
		l.spoil(t, faults[kinds[r.IntN(len(kinds))]])
		if round%10 == 5 {
			server.Kill()
			must(t, server.Start())
		}
		time.Sleep(time.Duration(20+r.IntN(150)) * time.Millisecond)
		l.heal(t)
		time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
	}
}

// askAll submits all invocations and waits for the answers. Clients with odd and even numbers
// submit different tasks under the same id, so one of the two is refused as a conflict.
func askAll(ctx context.Context, h *history, boss *Member, client, n int) {
	for i := range n {
		v := call(i)
		v.Task = fmt.Sprintf("%s, as client %d has it", v.Task, client%2)
		h.note(client, event{about: v.ID(), do: "submit", value: v.Task}, func(*event) error { return boss.Invocations.Submit(ctx, v) })
		h.note(client, event{about: v.ID(), do: "await"}, func(e *event) error {
			r, err := boss.Invocations.Await(ctx, v)
			e.value = r.Text
			return err
		})
	}
}

// answerAll answers all invocations that it can claim until the phase ends. The client's number is in each answer.
func answerAll(ctx context.Context, h *history, m *Member, client int) {
	for ctx.Err() == nil {
		var v Invocation
		if err := h.note(client, event{do: "claim", epoch: m.Epoch()}, func(e *event) (err error) {
			v, err = claimOne(ctx, m, TrainPhase(0))
			e.about, e.value = v.ID(), v.Task
			return err
		}); err != nil {
			return
		}
		r := Result{Text: fmt.Sprintf("%s, by client %d", v.ID(), client)}
		for range 2 { // the second write changes nothing
			h.note(client, event{about: v.ID(), do: "complete", epoch: m.Epoch(), value: r.Text}, func(*event) error { return m.Invocations.Complete(ctx, v, r) })
		}
	}
}

// commit publishes versions 1 to n, and before each a version that does not follow.
func commit(ctx context.Context, h *history, m *Member, client int, n int64) {
	for v := int64(1); v <= n && ctx.Err() == nil; v++ {
		for _, version := range []int64{v + 2, v, v} {
			h.note(client, event{about: "version", do: "publish", epoch: m.Epoch(), n: version}, func(e *event) error {
				err := m.Versions.Publish(ctx, version)
				var conflict *ConflictError
				e.refused = errors.As(err, &conflict) && conflict.Why != ""
				return err
			})
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// watch reads help's version.
func watch(ctx context.Context, h *history, boss *Member, client int) {
	for ctx.Err() == nil {
		h.note(client, event{about: "version", do: "read"}, func(e *event) error {
			there, err := boss.Versions.All(ctx)
			e.n = there["help"]
			return err
		})
		time.Sleep(10 * time.Millisecond)
	}
}
