package phases

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
)

// open returns our provider of a phase.
func open(ctx context.Context, p phase, w *workload, o Options) (_ *measure.Native, _ measure.Setup, err error) {
	a, err := openActor(ctx, p.options, w, o)
	if err != nil {
		return nil, measure.Setup{}, err
	}
	defer closeOnError(ctx, &err, a.close)
	setup := measure.Setup{Version: "LibTorch " + torch.Version(), Settings: a.settings(w)}
	memory := processMemory(a.device)
	if w.shared {
		if _, memory, err = ownMemory(ctx, a.device, a.before); err != nil {
			return nil, setup, err
		}
	}
	return &measure.Native{
		Reset: a.forget,
		Work:  func() error { return p.work(ctx, a, w) },
		Error: func() (float64, error) {
			if err := a.checkGraphs(ctx, w.config, setup.Settings, o); err != nil {
				return 0, err
			}
			return a.newestError(ctx, w)
		},
		Done:   func() error { return a.close(context.WithoutCancel(ctx)) },
		Memory: memory,
	}, setup, nil
}

// closeOnError closes what a function has opened if the function returns an error.
func closeOnError(ctx context.Context, err *error, close func(context.Context) error) {
	if *err != nil {
		*err = errors.Join(*err, close(context.WithoutCancel(ctx)))
	}
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

// checkGraphs logs which decode passes are CUDA graphs, and adds them to the settings. If a GPU samples without graphs it returns an
// error, because launches would dominate the numbers.
func (a *actor) checkGraphs(ctx context.Context, c arch.Config, settings map[string]any, o Options) error {
	engine, ok := a.engine.(*local.Tenant)
	if !ok || !a.device.IsCUDA() || c.Mixture != nil {
		return nil
	}
	sizes, err := engine.GraphSizes(ctx)
	settings["recorded_rows"] = sizes
	if err == nil && len(sizes) == 0 {
		err = errors.New("no decode pass was captured as a CUDA graph")
	}
	o.Log("decode passes of %v rows are captured as CUDA graphs", sizes)
	return err
}

// forget drops the cached prefixes of the previous sample.
func (a *actor) forget() {
	if a.engine != nil {
		_ = a.engine.UpdateWeights(context.Background(), a.steps) // cannot fail: no sequence is in flight
	}
}

// newestError returns the error of the checked completions' log-probs. The log-probs come from the engine if the engine ran, otherwise
// from the trainer's forward pass.
func (a *actor) newestError(ctx context.Context, w *workload) (float64, error) {
	got, want, err := a.newestLogProbs(ctx, w)
	return largestError(got, want), err
}

// sampledError returns the error of the last sampled log-probs against the trainer's forward pass.
func (a *actor) sampledError(ctx context.Context, w *workload) (float64, error) {
	last := a.sampled[0]
	want, err := a.trainingLogProbs(ctx, w, [][]int32{last.Tokens})
	return largestError([][]float64{widen(last.LogProbs)}, want), err
}

// largestError returns the largest error of log-probs, relative to the largest log-prob.
func largestError(got, want [][]float64) float64 {
	var worst measure.MaxError
	for i, expected := range want {
		for t, p := range expected {
			worst.Add(got[i][t], p)
		}
	}
	return worst.Value()
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
