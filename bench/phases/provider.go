package phases

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// open makes our provider of a phase.
func open(ctx context.Context, p phase, w *workload, threads int) (measure.Provider, measure.Setup, error) {
	debug.FreeOSMemory() // what measuring ceilings left is not the provider's
	a, err := openActor(ctx, p.options, w, threads)
	if err != nil {
		return nil, measure.Setup{}, err
	}
	closing := context.WithoutCancel(ctx)
	provider := &measure.Native{
		Around: func(_ context.Context, f func() error) error { return f() },
		Reset:  a.forget,
		Work:   func() error { return p.work(ctx, a, w) },
		Error:  func() (float64, error) { return a.logProbError(ctx, w) },
		Done:   func() error { return a.close(closing) },
	}
	return process{provider, a.device}, measure.Setup{Version: "LibTorch " + torch.Version(), Settings: a.settings(w)}, nil
}

func (a *actor) settings(w *workload) map[string]any {
	s := map[string]any{"dtype": w.DType, "threads": a.device.Threads(), "max_error_against": w.against, "peak": "resident memory of the process"}
	if a.engine != nil {
		s["slots"], s["temperature"], s["stop"] = len(w.Completions), 1, "none"
	}
	if a.learner != nil {
		s["micro_batch_tokens"], s["checkpoint_activations"] = microBatchTokens, false
		s["optimizer"] = "AdamW, clip 1, part of what is timed"
	}
	return s
}

// forget drops cached prefixes, which belong to the sample before.
func (a *actor) forget() {
	if a.engine != nil {
		_ = a.engine.Refresh(a.steps) // nothing is in flight
	}
}

// process tells the memory of the whole process, as the peers do: a step's weights and moments are in it.
type process struct {
	*measure.Native
	device *torch.Device
}

func (p process) Run(ctx context.Context, repeat int, cache measure.Cache) (measure.Samples, error) {
	s, err := p.Native.Run(ctx, repeat, cache)
	if err != nil {
		return s, err
	}
	m, err := p.device.Memory(ctx)
	s.PeakExtraBytes = m.PeakRSS
	return s, err
}

// logProbError is the largest error of the first completions' log-probs, relative to the largest log-prob: those
// of the engine where it was what ran, of the trainer's forward pass else.
func (a *actor) logProbError(ctx context.Context, w *workload) (float64, error) {
	got, err := a.newestLogProbs(ctx, w)
	if err != nil {
		return 0, err
	}
	var worst, scale float64
	for i, want := range w.LogProbs {
		for t := range want {
			worst, scale = max(worst, math.Abs(got[i][t]-want[t])), max(scale, math.Abs(want[t]))
		}
	}
	return worst / scale, nil
}

func (a *actor) newestLogProbs(ctx context.Context, w *workload) (out [][]float64, err error) {
	if a.sampled == nil {
		return a.trainingLogProbs(ctx, w)
	}
	for i := range w.Prompts {
		c := a.sampled[i*w.Rollouts]
		if !slices.Equal(c.Tokens, w.Completions[i*w.Rollouts]) {
			return nil, fmt.Errorf("prompt %d was continued otherwise than before with the same weights and seed", i)
		}
		out = append(out, widen(c.LogProbs))
	}
	return out, nil
}
