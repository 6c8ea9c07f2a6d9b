package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	shared "github.com/mgrpo/mgrpo/trainer/team/store"
)

// job describes the work of one client process.
type job struct {
	Store   shared.Options `json:"store"`
	Agents  []string       `json:"agents"`  // of the run, main first
	Members []string       `json:"members"` // agents of this process: the main agent alone, or sub-agents
	Load    Load           `json:"load"`
}

// report is the result of a client process.
type report struct {
	Exchange []float64 `json:"exchange,omitempty"` // seconds from the due time of each invocation to its answer
	Begun    time.Time `json:"begun"`
	Ended    time.Time `json:"ended"`
	CPU      float64   `json:"cpu"` // seconds of processor time during the load
}

// Client runs a client process: it reads a job from in, takes its agents' places in the run, and writes a report to out.
func Client(ctx context.Context, in io.Reader, out io.Writer) error {
	var j job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return fmt.Errorf("the job: %w", err)
	}
	runtime.GOMAXPROCS(j.Load.Threads)
	s, err := shared.Open(ctx, j.Store)
	if err != nil {
		return err
	}
	defer s.Close()
	members, err := join(ctx, s, j)
	if err != nil {
		return err
	}
	if err := forEachMember(members, startRound); err != nil {
		return err
	}
	var r report
	before := cpuSeconds() // after joining
	if j.Members[0] == j.Agents[0] {
		r, err = ask(members[0], j)
	} else {
		err = answer(members, j)
	}
	if err != nil {
		return err
	}
	r.CPU = cpuSeconds() - before
	return json.NewEncoder(out).Encode(r)
}

// join takes the places of the job's members.
func join(ctx context.Context, s *shared.Store, j job) ([]*shared.Member, error) {
	members := make([]*shared.Member, len(j.Members))
	request := shared.JoinRequest{Agents: j.Agents, Offers: []shared.Offer{{Version: shared.FromStart}}, Deterministic: true}
	for i, agent := range j.Members {
		var err error
		if members[i], err = s.Join(ctx, agent, request, func(string) {}); err != nil {
			return nil, err
		}
	}
	return members, nil
}

// startRound waits until all agents have joined, and starts the round.
func startRound(m *shared.Member) error {
	if _, err := m.Round.Start(m.Context()); err != nil {
		return err
	}
	return m.Round.Barrier(m.Context(), shared.Ready, func([]string) {})
}

// forEachMember calls do for all members at once.
func forEachMember(members []*shared.Member, do func(m *shared.Member) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(members))
	for i, m := range members {
		wg.Go(func() { errs[i] = do(m) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// answer plays the sub-agents: it answers every claimed invocation at once, phase after phase, until the main agent stops the run.
func answer(members []*shared.Member, j job) error {
	text := strings.Repeat("a", j.Load.AnswerBytes)
	return forEachMember(members, func(m *shared.Member) error {
		for n := int64(0); ; {
			vs, err := m.Invocations.Claim(m.Context(), shared.TrainPhase(n), 1)
			if err == nil {
				err = m.Invocations.Complete(m.Context(), vs[0], shared.Result{Text: text})
			}
			var stop *shared.StopError
			switch {
			case errors.Is(err, shared.ErrPhaseEnded):
				n++
			case errors.As(err, &stop) && stop.Kind == shared.Asked:
				return nil
			case err != nil:
				return err
			}
		}
	})
}

// ask plays the main agent. Invocations become due at a steady rate, even if earlier ones are not answered,
// and go to the sub-agents in turn. As in a run the number of conversations is limited. If as many
// invocations are in flight as there are workers, the next one waits, and its time counts from its due time.
func ask(m *shared.Member, j job) (report, error) {
	r := report{Begun: time.Now()}
	l, agents := j.Load, j.Agents[1:]
	total := int64(l.Rate * l.Seconds)
	r.Exchange = make([]float64, total)
	var trim, phase sync.WaitGroup
	ctx, cancel := context.WithCancelCause(context.Background())
	fail := func(err error) {
		if err != nil {
			cancel(err)
		}
	}
	text := strings.Repeat("t", l.TaskBytes)
	slots := make(chan struct{}, l.Workers)
	n := int64(-1)
	for i := range total {
		if i%l.PhaseInvocations == 0 {
			if n >= 0 {
				phase.Wait() // a phase ends with its last rollout, as in a run
				fail(m.Phases.End(m.Context(), shared.TrainPhase(n)))
				old := n
				trim.Go(func() { fail(m.Checkpoints.Trim(m.Context(), old-1)) })
			}
			n++
			fail(m.Phases.Begin(m.Context(), shared.TrainPhase(n), shared.Plan{Queries: []string{"q"}, Rollouts: int(l.PhaseInvocations)}))
		}
		due := r.Begun.Add(time.Duration(float64(i) / l.Rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		v := shared.Invocation{Phase: shared.TrainPhase(n), Query: "q", Rollout: int(i % l.PhaseInvocations), Agent: agents[i%int64(len(agents))], Task: text}
		slots <- struct{}{}
		phase.Go(func() {
			defer func() { <-slots }()
			_, err := m.Invocations.Call(m.Context(), v)
			r.Exchange[i] = time.Since(due).Seconds()
			fail(err)
		})
		if ctx.Err() != nil {
			break
		}
	}
	phase.Wait()
	trim.Wait()
	r.Ended = time.Now()
	fail(m.Round.Stop(m.Context(), shared.Asked, "measured"))
	return r, context.Cause(ctx)
}

// cpuSeconds returns the processor time that this process has used.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
