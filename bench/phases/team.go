package phases

import (
	"context"
	"errors"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// Two agents with a model each make a step in turn. CoMLRL, which also trains such teams on a CPU, makes a step of the same size.

const (
	teamLabel = "team"
	comlrl    = "comlrl"
)

// team is a row. Its case describes each of the two agents.
type team struct{ bench }

func teamOf(quick bool) team {
	b := bench{name: teamLabel, suite: "step", weights: smolLM2, shape: shape{prompts: 2, rollouts: 8, promptTokens: 90, newTokens: 64},
		targets: []measure.Target{faster(comlrl, 5)}}
	if quick {
		b.weights, b.shape = tiny, shape{prompts: 2, rollouts: 3, promptTokens: 12, newTokens: 7}
	}
	return team{b}
}

func (t team) measure(ctx context.Context, o Options) (row measure.Row, err error) {
	err = t.prepared(ctx, o, func(w *workload) error {
		providers := []measure.Opener{{Name: measure.Ours, Open: func(ctx context.Context) (measure.Provider, measure.Setup, error) {
			return openTeam(ctx, w, o)
		}}}
		if o.Peers {
			if err := w.askFloat64(ctx, o); err != nil {
				return err
			}
			providers = append(providers, o.Peer(comlrl, w))
		}
		row = t.rowOfTwo()
		row.Bytes, row.FLOPs = double(stepBytes(w.config, t.shape, 4, 0)), double(stepFLOPs(w.config, t.shape, 0))
		row, err = o.Schedule().Measure(ctx, row, providers)
		return err
	})
	return row, err
}

func double(a measure.Amount) measure.Amount {
	return measure.Amount{Formula: "2·(" + a.Formula + ")", Value: 2 * a.Value}
}

// openTeam returns the provider of two agents that make their steps one after the other, each with all threads.
func openTeam(ctx context.Context, w *workload, o Options) (measure.Provider, measure.Setup, error) {
	var agents [2]*measure.Native
	var setup measure.Setup
	for i := range agents {
		a, s, err := open(ctx, phases["step"], w, o)
		if err != nil {
			for _, a := range agents[:i] {
				err = errors.Join(err, a.Done())
			}
			return nil, s, err
		}
		agents[i], setup = a, s
	}
	each := func(f func(*measure.Native) error) (err error) {
		for _, a := range agents {
			err = errors.Join(err, f(a))
		}
		return err
	}
	return &measure.Native{
		Reset: func() { agents[0].Reset(); agents[1].Reset() },
		Work:  func() error { return each(func(a *measure.Native) error { return a.Work() }) },
		Error: func() (worst float64, err error) {
			err = each(func(a *measure.Native) error {
				e, err := a.Error()
				worst = max(worst, e)
				return err
			})
			return worst, err
		},
		Done:   func() error { return each(func(a *measure.Native) error { return a.Done() }) },
		Memory: agents[0].Memory, // of the whole process
	}, setup, nil
}
