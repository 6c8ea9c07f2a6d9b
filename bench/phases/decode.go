package phases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// This file measures only decode passes, after cached prompts, for several numbers of sequences and lengths of context.

// sweep holds the rows of one network with random weights. All rows use one model and one engine. The first row opens them, and the last
// row closes them.
type sweep struct {
	network
	rows, contexts []int
	newTokens      int
	precision      precision

	actor *actor
}

func sweepsOf(quick bool) []*sweep {
	if quick {
		return []*sweep{{network: tiny, rows: []int{3}, contexts: []int{21}, newTokens: 5, precision: half}}
	}
	var all []*sweep
	for _, n := range []network{qwen3Large, qwen3Small} {
		all = append(all, &sweep{network: n, rows: []int{64, 1, 8, 128}, contexts: []int{2048, 256}, newTokens: 65, precision: half})
	}
	return all
}

// label returns the text that --only matches.
func (w *sweep) label() string { return "decode " + w.network.name }

func (w *sweep) cases(o Options) (all []measure.Case) {
	for i, length := range w.contexts {
		for j, rows := range w.rows {
			isLast := i == len(w.contexts)-1 && j == len(w.rows)-1
			all = append(all, measure.Case{Label: w.label(), Measure: func(ctx context.Context) (row measure.Row, err error) {
				if isLast {
					defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
				}
				return w.measure(ctx, rows, length, o)
			}})
		}
	}
	return all
}

// open makes the weights, and an engine with room for the largest row.
func (w *sweep) open(ctx context.Context, o Options) (err error) {
	if w.actor != nil {
		return nil
	}
	a := &actor{}
	defer closeOnError(ctx, &err, a.close)
	if a.device, err = torch.Open(o.Device, o.Threads); err != nil {
		return err
	}
	slots, limit := slices.Max(w.rows), slices.Max(w.contexts)+w.newTokens+1
	opt := a.modelOptions(w.precision, limit)
	opt.Frozen = opt.Compute == torch.BFloat16
	if a.model, err = model.RandomOnDevice(ctx, a.device, w.config, 1, opt); err != nil {
		return err
	}
	engineOpt := local.Options{Slots: slots, Context: limit, Note: func(text string) { o.Log("%s", text) }}
	engine, err := local.OpenTenant(ctx, a.model, engineOpt, local.TenantOptions{})
	if err != nil {
		return err
	}
	a.engine, w.actor = engine, a
	return nil
}

func (w *sweep) close(ctx context.Context) error {
	if w.actor == nil {
		return nil
	}
	a := w.actor
	w.actor = nil
	return a.close(ctx)
}

func (w *sweep) measure(ctx context.Context, rows, length int, o Options) (measure.Row, error) {
	row := w.row(rows, length)
	row, err := o.Schedule().Measure(ctx, row, []measure.Opener{{Name: measure.Ours, Open: func(ctx context.Context) (measure.Provider, measure.Setup, error) {
		if err := w.open(ctx, o); err != nil {
			return nil, measure.Setup{}, err
		}
		c := &cached{w.actor, &workload{Rollouts: 1, NewTokens: w.newTokens, Checked: min(rows, 2), config: w.config}}
		c.workload.Prompts = shape{prompts: rows, promptTokens: length}.makePrompts(uint32(1000*rows), w.config.VocabSize)
		setup, err := w.setup(ctx, c, o)
		return c, setup, err
	}}})
	if err == nil {
		o.Log("%s, %d rows at %d tokens: %.0f tokens/s, %s a pass", w.network.name, rows, length, float64(rows*(w.newTokens-1))/row.Providers[0].Median,
			measure.Seconds(row.Providers[0].Median/float64(w.newTokens-1)))
	}
	return row, err
}

func (w *sweep) row(rows, length int) measure.Row {
	weight, passes := w.precision.weight(), float64(w.newTokens-1)
	read := float64(w.config.Parameters()) - unreadWeights(w.config, rows)
	cached := float64(rows*2*w.config.Layers*w.config.KVHeads*w.config.HeadDim) * (float64(length) + passes/2)
	return measure.Row{Suite: "rollout", Name: "decode", Shape: fmt.Sprintf("%s, %d rows, %d + %d tokens", w.network.name, rows, length, w.newTokens-1),
		DType: w.precision.ours(), Cache: measure.Cold, ReadOnly: true,
		Bytes:   measure.Amount{Formula: fmt.Sprintf("%g·passes·(parameters + rows·cached values)", weight), Value: weight * passes * (read + cached)},
		FLOPs:   decodeFLOPs(w.config, shape{prompts: rows, rollouts: 1, promptTokens: length, newTokens: w.newTokens}),
		Targets: []measure.Target{nearFloor(0.6)}}
}

// setup puts the prompts of a row into the cache, and times this as the row's prefill.
func (w *sweep) setup(ctx context.Context, c *cached, o Options) (measure.Setup, error) {
	w.actor.forget()
	took, err := c.take(ctx, 1)
	tokens := len(c.workload.Prompts) * len(c.workload.Prompts[0])
	settings := map[string]any{"device": w.actor.device.Spec(), "dtype": w.precision.ours(), "slots": slices.Max(w.rows), "weights": "random",
		"prefill_tokens_per_second": float64(tokens) / took.Seconds(), "max_error_against": "the trainer's forward pass"}
	if err == nil {
		_, err = c.take(ctx, c.workload.NewTokens)
	}
	if err == nil {
		err = w.actor.checkGraphs(ctx, w.config, settings, o)
	}
	return measure.Setup{Version: "LibTorch " + torch.Version(), Settings: settings}, err
}

// cached samples after prompts that are in the engine's cache, or measures their reading.
type cached struct {
	actor    *actor
	workload *workload
}

// take samples the given number of tokens after each prompt, and returns the duration.
func (c *cached) take(ctx context.Context, tokens int) (time.Duration, error) {
	w := *c.workload
	w.NewTokens = tokens
	start := time.Now()
	sampled, err := c.actor.sample(ctx, &w)
	c.actor.sampled = sampled
	return time.Since(start), err
}

// Run times the reading of prompts, or all tokens except the first. The first token's pass also computes the ends of the prompts.
func (c *cached) Run(ctx context.Context, repeat int, _ measure.Cache) (s measure.Samples, err error) {
	s.PeakExtraBytes, err = tensorPeak(ctx, c.actor.device, func() error {
		for range repeat {
			took, err := c.once(ctx)
			if err != nil {
				return err
			}
			s.Seconds = append(s.Seconds, took.Seconds())
		}
		return nil
	})
	return s, err
}

func (c *cached) once(ctx context.Context) (time.Duration, error) {
	if c.workload.Reading {
		c.actor.forget()
		return c.take(ctx, 1)
	}
	first, err := c.take(ctx, 1)
	if err != nil {
		return 0, err
	}
	all, err := c.take(ctx, c.workload.NewTokens)
	return max(all-first, time.Microsecond), err
}

func (c *cached) Check(ctx context.Context) (float64, error) {
	if _, err := c.take(ctx, c.workload.NewTokens); err != nil {
		return 0, err
	}
	return c.actor.sampledError(ctx, c.workload)
}

// Close leaves the actor open: the next row of a sweep uses it.
func (c *cached) Close() error { return nil }

// qwen3 returns a shape of Qwen 3 with random weights.
func qwen3(name string, layers, width, heads, ffn int) network {
	return network{name: name + " (random weights)", large: true, config: arch.Config{Family: arch.Qwen3, VocabSize: 151_936, Hidden: width, Layers: layers,
		Heads: heads, KVHeads: 8, HeadDim: 128, FFN: ffn, RMSEps: 1e-6, Rope: arch.Rope{Theta: 1e6}, MaxPosition: 40_960, Tied: true,
		Tokens: arch.SpecialTokens{EOS: []int32{0}}}}
}

var (
	qwen3Small = qwen3("Qwen3-0.6B", 28, 1024, 16, 3072)
	qwen3Large = qwen3("Qwen3-1.7B", 28, 2048, 16, 6144)
)
