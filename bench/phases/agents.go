package phases

import (
	"context"
	"errors"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
)

// Two agents with adapters on one base decode in one batch. The same two agents, one after the other, are measured next to them.

// inTurns is our own provider that plays the second agent after the first.
const inTurns = "mgrpo-in-turns"

// agents is a row. Its case describes one of the two agents.
type agents struct{ bench }

const agentsLabel = "two-agents"

func agentsOf(quick bool) agents {
	b := bench{name: agentsLabel, suite: "rollout", weights: adapted, shape: shape{prompts: 8, rollouts: 1, promptTokens: 90, newTokens: 64},
		targets: []measure.Target{faster(inTurns, 1.5)}}
	if quick {
		b.weights, b.shape = tiny.adapted(), shape{prompts: 3, rollouts: 1, promptTokens: 12, newTokens: 7}
	}
	return agents{b}
}

func (r agents) measure(ctx context.Context, o Options) (row measure.Row, err error) {
	d, err := openAgentPair(ctx, r.bench, o)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, d.close(context.WithoutCancel(ctx))) }()
	config, adapters := d.base.model.Config, d.agents[0].adapters.Numel()
	both := r.shape
	both.prompts *= 2
	row = r.rowOfTwo()
	row.Bytes, row.FLOPs = decodeBytes(config, both, 4, adapters), rolloutFLOPs(config, both, adapters)
	return o.Schedule().Measure(ctx, row, []measure.Opener{d.opener(measure.Ours, d.together), d.opener(inTurns, d.inTurns)})
}

// opener returns a provider that runs work with the agents of d.
func (d *agentPair) opener(name string, work func(context.Context) error) measure.Opener {
	return measure.Opener{Name: name, Open: func(ctx context.Context) (measure.Provider, measure.Setup, error) {
		weights := 4 * (d.base.model.Config.Parameters() + 2*d.agents[0].adapters.Numel())
		native := &measure.Native{
			Reset:  d.forget,
			Work:   func() error { return work(ctx) },
			Error:  func() (float64, error) { return d.sampledError(ctx) },
			Memory: func(_ context.Context, run func() error) (int64, error) { return weights, run() },
		}
		settings := map[string]any{"device": d.base.device.Spec(), "threads": d.base.device.Threads(),
			"memory": "bytes of the weights that generation reads", "max_error_against": "the trainer's forward pass"}
		return native, measure.Setup{Version: "LibTorch " + torch.Version(), Settings: settings}, nil
	}}
}

// agentPair holds two agents of one engine.
type agentPair struct {
	base     *actor
	engine   *local.Engine
	agents   []*actor
	workload *workload // of each agent
}

func openAgentPair(ctx context.Context, b bench, o Options) (d *agentPair, err error) {
	d = &agentPair{base: &actor{}, workload: &workload{Rollouts: 1, NewTokens: b.shape.newTokens}}
	defer closeOnError(ctx, &err, d.close)
	if d.base.device, err = torch.Open(o.Device, o.Threads); err != nil {
		return d, err
	}
	if err = d.base.makeWeights(ctx, b, o.Root); err != nil {
		return d, err
	}
	d.workload.Prompts = b.shape.makePrompts(0, b.promptVocabulary(d.base.model.Config.VocabSize))
	if d.engine, err = local.Open(ctx, d.base.model, local.Options{Slots: 2 * b.shape.prompts}); err != nil {
		return d, err
	}
	for seed := range uint64(2) {
		if err = d.join(ctx, b.weights.rank, seed); err != nil {
			return d, err
		}
	}
	return d, nil
}

// join adds an agent, whose adapters are small random numbers.
func (d *agentPair) join(ctx context.Context, rank int, seed uint64) error {
	a := &actor{device: d.base.device, model: d.base.model}
	if err := a.adapt(ctx, rank); err != nil {
		return err
	}
	d.agents = append(d.agents, a)
	rng := rand.New(rand.NewPCG(seed, 0))
	err := a.adapters.Restore(ctx, func(_ int64, dst []float32) error {
		for i := range dst {
			dst[i] = float32(rng.NormFloat64()) / 64
		}
		return nil
	})
	if err != nil {
		return err
	}
	tenant, err := d.engine.Join(ctx, a.policy(), local.TenantOptions{})
	if err != nil {
		return err
	}
	a.engine = tenant
	return nil
}

func (d *agentPair) together(ctx context.Context) error {
	both, ctx := errgroup.WithContext(ctx)
	for _, a := range d.agents {
		both.Go(func() error { return rollOut(ctx, a, d.workload) })
	}
	return both.Wait()
}

func (d *agentPair) inTurns(ctx context.Context) error {
	for _, a := range d.agents {
		if err := rollOut(ctx, a, d.workload); err != nil {
			return err
		}
	}
	return nil
}

func (d *agentPair) forget() {
	for _, a := range d.agents {
		a.forget()
	}
}

// sampledError returns the larger error of the two agents.
func (d *agentPair) sampledError(ctx context.Context) (worst float64, err error) {
	for _, a := range d.agents {
		e, err := a.sampledError(ctx, d.workload)
		if err != nil {
			return 0, err
		}
		worst = max(worst, e)
	}
	return worst, nil
}

func (d *agentPair) close(ctx context.Context) error {
	var all []error
	if d.engine != nil {
		all = append(all, d.engine.Close(ctx))
	}
	for _, a := range d.agents {
		all = append(all, a.adapters.Close(ctx))
	}
	return errors.Join(append(all, d.base.close(ctx))...)
}
