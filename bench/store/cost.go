package store

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mgrpo/mgrpo/bench/measure"
	shared "github.com/mgrpo/mgrpo/trainer/team/store"
)

// Cost is the network traffic and the time of an operation on a server without other work.
type Cost struct {
	What       string  `json:"what"`
	TLS        bool    `json:"tls"`
	RoundTrips float64 `json:"round_trips,omitempty"` // summed over all agents
	Up         float64 `json:"bytes_up,omitempty"`    // to the server
	Down       float64 `json:"bytes_down,omitempty"`
	P50        float64 `json:"p50_s,omitempty"`
	P99        float64 `json:"p99_s,omitempty"`
}

// The measured step has two agents and texts of the same size as the loads'.
const queries, rollouts, calls, steps = 16, 8, 2, 5

// costs plays steps with a main agent and a sub-agent, one rollout after another, through counting proxies.
func costs(ctx context.Context, withTLS bool) ([]Cost, error) {
	s, err := startServer(withTLS)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	m, err := startMeter(s.options.URL)
	if err != nil {
		return nil, err
	}
	defer m.stop()
	s.options.URL = strings.Replace(s.options.URL, m.server, m.listener.Addr().String(), 1)
	agents := []string{"main", "sub"}
	var stores [2]*shared.Store
	var members [2]*shared.Member
	for i, a := range agents {
		if stores[i], err = shared.Open(ctx, s.options); err != nil {
			return nil, err
		}
		defer stores[i].Close()
		one, err := join(ctx, stores[i], job{Agents: agents, Members: []string{a}})
		if err != nil {
			return nil, err
		}
		members[i] = one[0]
	}
	if err := forEachMember(members[:], startRound); err != nil {
		return nil, err
	}
	p := &stepPlayer{times: map[string][]float64{}}
	before := m.read()
	var inRollouts tally
	for n := range int64(steps) {
		errs := make(chan error, 1)
		go func() { errs <- p.sub(members[1], shared.TrainPhase(n)) }()
		if err := p.main(members[0], shared.TrainPhase(n), m, &inRollouts); err != nil {
			return nil, err
		}
		if err := <-errs; err != nil {
			return nil, err
		}
	}
	step := m.read().minus(before)
	out := []Cost{
		inRollouts.cost(fmt.Sprintf("rollout of %d calls", calls), withTLS, steps*queries*rollouts),
		step.cost(fmt.Sprintf("step of %d rollouts", queries*rollouts), withTLS, steps),
	}
	for _, what := range []string{"Call", "Complete", "PublishOutcome", "PublishVersion"} {
		out = append(out, Cost{What: what, TLS: withTLS, P50: measure.Quantile(p.times[what], 0.5), P99: measure.Quantile(p.times[what], 0.99)})
	}
	return out, nil
}

// stepPlayer plays the two agents' parts of a step, and records how long each call took.
type stepPlayer struct {
	mu    sync.Mutex
	times map[string][]float64
}

func (p *stepPlayer) time(what string, do func() error) error {
	began := time.Now()
	err := do()
	took := time.Since(began).Seconds()
	p.mu.Lock()
	p.times[what] = append(p.times[what], took)
	p.mu.Unlock()
	return err
}

func (p *stepPlayer) main(m *shared.Member, phase shared.Phase, meter *meter, inRollouts *tally) error {
	ctx := m.Context()
	plan := shared.Plan{Rollouts: rollouts}
	for i := range queries {
		plan.Queries = append(plan.Queries, fmt.Sprintf("query-%d", i))
	}
	if err := m.Phases.Begin(ctx, phase, plan); err != nil {
		return err
	}
	before := meter.read()
	for _, q := range plan.Queries {
		for k := range rollouts {
			if err := p.rollout(m, phase, q, k); err != nil {
				return err
			}
		}
	}
	inRollouts.add(meter.read().minus(before))
	if err := m.Phases.End(ctx, phase); err != nil {
		return err
	}
	return p.agree(m, phase)
}

func (p *stepPlayer) rollout(m *shared.Member, phase shared.Phase, query string, k int) error {
	ctx := m.Context()
	for i := range calls {
		v := shared.Invocation{Phase: phase, Query: query, Rollout: k, Agent: "sub", Index: i, Task: strings.Repeat("t", taskBytes)}
		if err := p.time("Call", func() error { _, err := m.Invocations.Call(ctx, v); return err }); err != nil {
			return err
		}
	}
	o := shared.Outcome{Query: query, Rollout: k, Format: true, Correct: 1, Reward: 1, Answer: strings.Repeat("a", answerBytes),
		Calls: map[string]int{"sub": calls}}
	return p.time("PublishOutcome", func() error { return m.Phases.PublishOutcome(ctx, phase, o) })
}

func (p *stepPlayer) sub(m *shared.Member, phase shared.Phase) error {
	ctx := m.Context()
	if _, err := m.Phases.Plan(ctx, phase); err != nil {
		return err
	}
	for {
		vs, err := m.Invocations.Claim(ctx, phase, 1)
		if err == shared.ErrPhaseEnded {
			return p.agree(m, phase)
		}
		if err != nil {
			return err
		}
		r := shared.Result{Text: strings.Repeat("a", answerBytes)}
		if err := p.time("Complete", func() error { return m.Invocations.Complete(ctx, vs[0], r) }); err != nil {
			return err
		}
	}
}

// agree plays the end of a step, which is the same for all agents.
func (p *stepPlayer) agree(m *shared.Member, phase shared.Phase) error {
	ctx := m.Context()
	outcomes, err := m.Phases.Outcomes(ctx, phase, queries*rollouts)
	if err != nil {
		return err
	}
	var held []string
	for _, o := range outcomes {
		held = append(held, o.ID())
	}
	if err := m.Phases.PublishTrajectories(ctx, phase, held); err != nil {
		return err
	}
	if _, err := m.Phases.Trajectories(ctx, phase); err != nil {
		return err
	}
	if err := p.time("PublishVersion", func() error { return m.Versions.Publish(ctx, phase.Step+1) }); err != nil {
		return err
	}
	return m.Versions.Await(ctx, phase.Step+1)
}

// meter is a proxy in front of a server. It counts bytes and round trips.
type meter struct {
	server   string
	listener net.Listener
	wg       sync.WaitGroup

	up, down, trips atomic.Int64
}

func startMeter(url string) (*meter, error) {
	_, server, _ := strings.Cut(url, "://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &meter{server: server, listener: l}
	m.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			m.wg.Go(func() { m.serve(client) })
		}
	})
	return m, nil
}

func (m *meter) stop() {
	m.listener.Close()
	m.wg.Wait()
}

// serve forwards bytes until either side closes. A round trip begins when a connection's direction changes from down to up.
func (m *meter) serve(client net.Conn) {
	server, err := net.Dial("tcp", m.server)
	if err != nil {
		client.Close()
		return
	}
	var asking atomic.Bool
	var both sync.WaitGroup
	pass := func(to io.Writer, from io.Reader, count *atomic.Int64, up bool) {
		defer client.Close()
		defer server.Close()
		buffer := make([]byte, 1<<16)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			count.Add(int64(n))
			if asking.Swap(up) != up && up {
				m.trips.Add(1)
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	both.Go(func() { pass(server, client, &m.up, true) })
	both.Go(func() { pass(client, server, &m.down, false) })
	both.Wait()
}

// tally holds a meter's counts.
type tally struct{ up, down, trips int64 }

func (m *meter) read() tally { return tally{m.up.Load(), m.down.Load(), m.trips.Load()} }

func (t tally) minus(u tally) tally { return tally{t.up - u.up, t.down - u.down, t.trips - u.trips} }

func (t *tally) add(u tally) { *t = tally{t.up + u.up, t.down + u.down, t.trips + u.trips} }

// cost returns the tally divided by n.
func (t tally) cost(what string, withTLS bool, n float64) Cost {
	return Cost{What: what, TLS: withTLS, RoundTrips: float64(t.trips) / n, Up: float64(t.up) / n, Down: float64(t.down) / n}
}
