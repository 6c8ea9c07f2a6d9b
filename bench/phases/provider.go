package phases

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
)

// open returns our provider of a phase.
func open(ctx context.Context, p phase, w *workload, o Options) (measure.Provider, measure.Setup, error) {
	a, err := openActor(ctx, p.options, w, o)
	if err != nil {
		return nil, measure.Setup{}, err
	}
	closing := context.WithoutCancel(ctx)
	setup := measure.Setup{Version: "LibTorch " + torch.Version(), Settings: a.settings(w)}
	provider := &measure.Native{
		Around: func(_ context.Context, f func() error) error { return f() },
		Reset:  a.forget,
		Work:   func() error { return p.work(ctx, a, w) },
		Error: func() (float64, error) {
			if err := a.checkRecorded(ctx, w.config, setup.Settings, o); err != nil {
				return 0, err
			}
			return a.logProbError(ctx, w)
		},
		Done: func() error { return a.close(closing) },
	}
	if !w.shared {
		return process{provider, a.device}, setup, nil
	}
	m, err := a.device.Memory(ctx)
	if err != nil {
		return nil, setup, errors.Join(err, a.close(closing))
	}
	return tensors{provider, a.device, m.Allocated - a.before}, setup, nil
}

func (a *actor) settings(w *workload) map[string]any {
	s := map[string]any{"device": a.device.Spec(), "dtype": w.precision.ours(), "threads": a.device.Threads(), "max_error_against": w.against,
		"peak": "memory of the process, on a GPU that of tensors"}
	if w.shared {
		s["peak"] = "memory of its tensors"
	}
	if w.precision != full && !a.device.IsCUDA() {
		s["rounded_factors"] = a.rounds
	}
	if w.Rank > 0 {
		s["lora"] = map[string]any{"r": w.Rank, "alpha": loraAlpha, "targets": lora.AllLinear}
	}
	if a.engine != nil {
		s["slots"], s["temperature"], s["stop"] = len(w.Completions), 1, "none"
	}
	if a.engine != nil && a.learner != nil && !a.engine.Deterministic() {
		s["max_error_against"] = "the other forward pass, one update later"
	}
	if a.learner != nil {
		s["micro_batch_tokens"], s["checkpoint_activations"] = w.MicroBatch, false
		s["optimizer"] = "AdamW, clip 1, part of what is timed"
	}
	return s
}

// checkRecorded logs which decode passes are CUDA graphs, and adds them to the settings. If a GPU samples without graphs it returns an
// error, because launches would dominate the numbers.
func (a *actor) checkRecorded(ctx context.Context, c arch.Config, settings map[string]any, o Options) error {
	engine, ok := a.engine.(*local.Tenant)
	if !ok || !a.device.IsCUDA() || c.Mixture != nil {
		return nil
	}
	sizes, err := engine.GraphSizes(ctx)
	settings["recorded_rows"] = sizes
	if err == nil && len(sizes) == 0 {
		err = errors.New("no decode pass was recorded as a CUDA graph")
	}
	o.Log("decode passes of %v rows are recorded as CUDA graphs", sizes)
	return err
}

// forget drops the cached prefixes of the previous sample.
func (a *actor) forget() {
	if a.engine != nil {
		_ = a.engine.UpdateWeights(context.Background(), a.steps) // cannot fail: no sequence is in flight
	}
}

// process measures the memory of the whole process, including weights and moments, as the peers do.
type process struct {
	*measure.Native
	device *torch.Device
}

func (p process) Run(ctx context.Context, repeat int, cache measure.Cache) (measure.Samples, error) {
	if p.device.IsCUDA() {
		if err := p.device.Do(ctx, func(s *torch.Scope) error { s.ResetPeak(); return nil }); err != nil {
			return measure.Samples{}, err
		}
	}
	s, err := p.Native.Run(ctx, repeat, cache)
	if err != nil {
		return s, err
	}
	m, err := p.device.Memory(ctx)
	s.PeakExtraBytes = m.PeakRSS
	if p.device.IsCUDA() {
		s.PeakExtraBytes = m.Peak
	}
	return s, err
}

// tensors measures the memory of the provider's own tensors, because the process has another provider.
type tensors struct {
	*measure.Native
	device *torch.Device
	held   int64 // bytes between runs
}

func (p tensors) Run(ctx context.Context, repeat int, cache measure.Cache) (s measure.Samples, err error) {
	var before, after torch.Memory
	err = p.device.Do(ctx, func(s *torch.Scope) error {
		s.ResetPeak()
		before = s.Memory()
		return nil
	})
	if err == nil {
		s, err = p.Native.Run(ctx, repeat, cache)
	}
	if err == nil {
		after, err = p.device.Memory(ctx)
	}
	s.PeakExtraBytes = p.held + after.Peak - before.Allocated
	return s, err
}

// logProbError returns the largest error of the checked completions' log-probs, relative to the largest log-prob. The log-probs come from
// the engine if the engine ran, otherwise from the trainer's forward pass.
func (a *actor) logProbError(ctx context.Context, w *workload) (float64, error) {
	got, expected, err := a.newestLogProbs(ctx, w)
	if err != nil {
		return 0, err
	}
	var worst, scale float64
	for i, want := range expected {
		for t := range want {
			worst, scale = max(worst, math.Abs(got[i][t]-want[t])), max(scale, math.Abs(want[t]))
		}
	}
	return worst / scale, nil
}

// sampledError returns the largest error of the last sampled log-probs, relative to the largest log-prob.
func (a *actor) sampledError(ctx context.Context, w *workload) (float64, error) {
	want, err := a.trainingLogProbs(ctx, w, [][]int32{a.sampled[0].Tokens})
	if err != nil {
		return 0, err
	}
	var worst, scale float64
	for t, p := range want[0] {
		worst, scale = max(worst, math.Abs(float64(a.sampled[0].LogProbs[t])-p)), max(scale, math.Abs(p))
	}
	return worst / scale, nil
}

// newestLogProbs returns the log-probs of the phase that ran last, and their reference.
func (a *actor) newestLogProbs(ctx context.Context, w *workload) (got, want [][]float64, err error) {
	if a.sampled == nil {
		got, err = a.trainingLogProbs(ctx, w, w.checked())
		return got, w.LogProbs, err
	}
	var tokens [][]int32
	for i, before := range w.checked() {
		c := a.sampled[i*w.Rollouts]
		if a.engine.Deterministic() && !slices.Equal(c.Tokens, before) {
			return nil, nil, fmt.Errorf("prompt %d: the same weights and seed sampled other tokens than before", i)
		}
		got, tokens = append(got, widen(c.LogProbs)), append(tokens, c.Tokens)
	}
	if !a.engine.Deterministic() { // products of another batch round differently, and another token may be sampled
		want, err = a.trainingLogProbs(ctx, w, tokens)
		return got, want, err
	}
	return got, w.LogProbs, nil
}
