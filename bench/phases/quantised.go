package phases

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// The suite "quantised" measures decoding from weights that stay quantised, next to decoding from the same file in bf16.

// inBF16 is our own provider with the file widened to bf16.
const inBF16 = "mgrpo-bf16"

var (
	wide       = network{name: "8 layers, width 1,024, vocabulary 32,768", config: llama(8, 1024, 16, 4, 2816, 32_768)}
	wideBlocks = network{name: "2 layers, width 256", config: llama(2, 256, 4, 2, 512, 257)}
)

// decode is one row, with its number of sequences.
type decode struct {
	quantiser
	network
	shape shape
	ratio float64 // the target for bf16's time / ours
	part  float64 // the target for our memory / bf16's
}

// Quantised measures the suite.
func Quantised(ctx context.Context, o Options) (*measure.Results, error) {
	var cases []measure.Case
	for _, d := range decodes(o.Quick) {
		label := fmt.Sprintf("%s-%d", d.quantiser.name, d.shape.prompts)
		cases = append(cases, measure.Case{Label: label, Measure: func(ctx context.Context) (measure.Row, error) { return d.measure(ctx, label, o) }})
	}
	return measure.Run(ctx, "quantised", o, cases)
}

func decodes(quick bool) (all []decode) {
	if quick {
		tiny := shape{prompts: 2, rollouts: 1, promptTokens: 5, newTokens: 4}
		return []decode{{q8_0, wideBlocks, tiny, 1.3, 0.6}, {q4_K, wideBlocks, tiny, 1.6, 0.4}}
	}
	for _, sequences := range []int{1, 4, 16} {
		s := shape{prompts: sequences, rollouts: 1, promptTokens: 16, newTokens: 32}
		all = append(all, decode{q8_0, wide, s, 1.3, 0.6}, decode{q4_K, wide, s, 1.6, 0.4})
	}
	return all
}

func (d decode) measure(ctx context.Context, label string, o Options) (row measure.Row, err error) {
	parent := filepath.Join(o.Root, "build")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return row, err
	}
	folder, err := os.MkdirTemp(parent, "bench-")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	file := filepath.Join(folder, "model.gguf")
	if err := d.write(ctx, file, o); err != nil {
		return row, err
	}
	w := &workload{Rollouts: 1, NewTokens: d.shape.newTokens, Checked: 1, config: d.config}
	for i := range d.shape.prompts {
		prompt := make([]int32, d.shape.promptTokens)
		measure.Index(prompt, uint32(i), uint32(d.config.VocabSize))
		w.Prompts = append(w.Prompts, prompt)
	}
	weight := float64(len(d.encode(nil, make([]float32, d.length)))) / float64(d.length) // bytes
	row = measure.Row{Suite: "quantised", Name: label, Shape: d.network.name + ", " + d.shape.String(), DType: d.quantiser.name, PeerDType: "bfloat16",
		Cache: measure.Cold, ReadOnly: true, Bytes: decodeBytes(d.config, d.shape, weight, 0), FLOPs: rolloutFLOPs(d.config, d.shape, 0),
		Targets: []measure.Target{faster(inBF16, d.ratio), smaller(inBF16, d.part)}}
	return o.Schedule().Measure(ctx, row, []measure.Opener{d.opener(measure.Ours, file, true, w, o), d.opener(inBF16, file, false, w, o)})
}

// write quantises random weights.
func (d decode) write(ctx context.Context, file string, o Options) (err error) {
	a := &actor{}
	defer func() { err = errors.Join(err, a.close(context.WithoutCancel(ctx))) }()
	if a.device, err = torch.Open(o.Device, o.Threads); err != nil {
		return err
	}
	if a.model, err = model.Random(ctx, a.device, d.config, 1, model.Options{Compute: torch.Float32}); err != nil {
		return err
	}
	params := model.All(a.model)
	read := func(from int64, dst []float32) error { return params.Master().Read(ctx, from, dst) }
	return writeGGUF(file, d.config, d.quantiser, params.Reader(ctx, read))
}

// opener returns a provider that decodes from the file, quantised or widened to bf16.
func (d decode) opener(name, file string, quantised bool, w *workload, o Options) measure.Opener {
	return measure.Opener{Name: name, Open: func(ctx context.Context) (_ measure.Provider, _ measure.Setup, err error) {
		a := &actor{}
		defer func() {
			if err != nil {
				err = errors.Join(err, a.close(context.WithoutCancel(ctx)))
			}
		}()
		if a.device, err = torch.Open(o.Device, o.Threads); err != nil {
			return nil, measure.Setup{}, err
		}
		src, err := weights.Open(file)
		if err != nil {
			return nil, measure.Setup{}, err
		}
		defer src.Close()
		opt := a.modelOptions(half, w.context())
		held := 2 * d.config.Parameters() // without the fp32 weights, the source of the copy
		if quantised {
			opt = model.Options{Compute: opt.Compute, Quantised: true, MaxPosition: w.context()}
			held = model.QuantisedBytes(src, opt.Compute)
		}
		if a.model, err = model.Load(ctx, a.device, src, opt); err != nil {
			return nil, measure.Setup{}, err
		}
		if err := a.equip(ctx, actorOptions{engine: true}, w); err != nil {
			return nil, measure.Setup{}, err
		}
		closing := context.WithoutCancel(ctx)
		native := &measure.Native{
			Around: func(_ context.Context, f func() error) error { return f() },
			Reset:  a.forget,
			Work:   func() error { return rollOut(ctx, a, w) },
			Error:  func() (float64, error) { return a.sampledError(ctx, w) },
			Done:   func() error { return a.close(closing) },
		}
		settings := map[string]any{"device": o.Device, "threads": o.Threads, "memory": "bytes of the weights that generation reads", "max_error_against": "the trainer's forward pass"}
		return weighed{native, held}, measure.Setup{Version: "LibTorch " + torch.Version(), Settings: settings}, nil
	}}
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

// weighed reports the size of the weights as the memory.
type weighed struct {
	*measure.Native
	bytes int64
}

func (p weighed) Run(ctx context.Context, repeat int, cache measure.Cache) (measure.Samples, error) {
	s, err := p.Native.Run(ctx, repeat, cache)
	s.PeakExtraBytes = p.bytes
	return s, err
}
