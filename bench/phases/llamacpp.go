package phases

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// The suite "decode" measures passes over GGUF files of each type, next to llama.cpp on the same file: sampling after cached prompts, and
// the reading of prompts.

const llamaCpp = "llama.cpp"

// ggufType is the type of a file's matrices.
type ggufType struct {
	dtype weights.DType // "": the network's file as it is published
	name  string
	bytes float64 // of a weight
}

var (
	ggufF32  = ggufType{weights.F32, "F32", 4}
	ggufBF16 = ggufType{weights.BF16, "BF16", 2}
	ggufQ8_0 = ggufType{weights.Q8_0, "Q8_0", 34. / 32}
	ggufQ4_1 = ggufType{"", "Q4_1", 20. / 32}
)

// decode is one row.
type decode struct {
	of string // the network's name in labels; "": SmolLM2
	ggufType
	network
	shape  shape
	half   bool    // keys and values are bf16; llama.cpp's are float16 in every row
	prompt bool    // measures the reading of prompts, and not sampling
	ratio  float64 // the target for llama.cpp's time / ours
}

// Decode measures the suite.
func Decode(ctx context.Context, o Options) (*measure.Results, error) {
	var cases []measure.Case
	for _, d := range decodes(o.Quick) {
		cases = append(cases, measure.Case{Label: d.label(), Measure: func(ctx context.Context) (measure.Row, error) { return d.measure(ctx, o) }})
	}
	return measure.Run(ctx, "decode", o, cases)
}

func decodes(quick bool) (all []decode) {
	if quick {
		s := shape{prompts: 2, rollouts: 1, promptTokens: 5, newTokens: 4}
		tinyF32 := decode{ggufType: ggufF32, network: tiny, shape: s, ratio: 1}
		halved, reading, hybrids, recurrents := tinyF32, tinyF32, tinyF32, tinyF32
		halved.ggufType, halved.half = ggufQ8_0, true
		reading.prompt = true
		hybrids.of, hybrids.network = "hybrid", tinyHybrid
		recurrents.of, recurrents.network = "recurrent", tinyRecurrent
		return []decode{tinyF32, halved, reading, hybrids, recurrents}
	}
	types := []ggufType{ggufF32, ggufBF16, ggufQ8_0, ggufQ4_1}
	for _, length := range []int{128, 1024} {
		for _, sequences := range []int{1, 4, 16} {
			s := shape{prompts: sequences, rollouts: 1, promptTokens: length, newTokens: 33}
			for _, t := range types {
				d := decode{ggufType: t, network: smolLM2, shape: s, half: t != ggufF32, ratio: 1}
				if sequences == 16 && t.dtype != weights.Q8_0 && t.dtype != "" {
					d.ratio = 1.5
				}
				all = append(all, d)
				if length == 1024 && !d.half {
					d.half = true
					all = append(all, d)
				}
			}
		}
	}
	for _, t := range types {
		s := shape{prompts: 8, rollouts: 1, promptTokens: 512, newTokens: 1}
		all = append(all, decode{ggufType: t, network: smolLM2, shape: s, half: t != ggufF32, prompt: true, ratio: 1})
	}
	for _, n := range []struct {
		name    string
		network network
	}{{"hybrid", hybrid}, {"recurrent", recurrent}} {
		for _, sequences := range []int{1, 16} {
			for _, t := range types[:2] {
				s := shape{prompts: sequences, rollouts: 1, promptTokens: 128, newTokens: 33}
				all = append(all, decode{of: n.name, ggufType: t, network: n.network, shape: s, half: t != ggufF32, ratio: 1})
			}
		}
	}
	return all
}

func (d decode) label() string {
	name := d.ggufType.name
	if d.half && d.dtype == weights.F32 {
		name += "-bf16-cache"
	}
	if d.prompt {
		name += "-prompts"
	}
	name += fmt.Sprintf("-%dx%d", d.shape.prompts, d.shape.promptTokens)
	if d.of != "" {
		return d.of + "-" + name
	}
	return name
}

func (d decode) measure(ctx context.Context, o Options) (row measure.Row, err error) {
	folder, remove, err := temporary(o)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	w := &workload{Suite: "decode", Reading: d.prompt, Rollouts: 1, NewTokens: d.shape.newTokens, Checked: 1}
	if w.File, w.config, err = d.file(ctx, folder, o); err != nil {
		return row, err
	}
	w.Prompts = d.shape.makePrompts(0, w.config.VocabSize)
	row = measure.Row{Suite: "decode", Name: d.label(), Shape: d.network.name + ", " + d.shape.String(), DType: d.ggufType.name, Cache: measure.Cold,
		ReadOnly: true,
		Bytes:    decodeBytes(w.config, d.shape, d.bytes, 0), FLOPs: rolloutFLOPs(w.config, d.shape, 0), Targets: []measure.Target{faster(llamaCpp, d.ratio)}}
	if !d.prompt {
		passes := shape{prompts: d.shape.prompts, rollouts: 1, newTokens: d.shape.newTokens - 1}
		row.Bytes = decodeBytes(w.config, passes, d.bytes, 0)
		row.FLOPs = decodeFLOPs(w.config, d.shape)
	}
	openers := []measure.Opener{{Name: measure.Ours, Open: func(ctx context.Context) (measure.Provider, measure.Setup, error) { return d.open(ctx, w, o) }}}
	if o.Peers {
		openers = append(openers, o.Peer(llamaCpp, w))
	}
	return o.Schedule().Measure(ctx, row, openers)
}

// file returns the network's published file, or one of the type's own in the folder, and its configuration.
func (d decode) file(ctx context.Context, folder string, o Options) (path string, config arch.Config, err error) {
	if d.dtype == "" {
		path = filepath.Join(o.Root, "models", d.network.file)
		src, err := weights.Open(path)
		if err != nil {
			return "", config, fmt.Errorf("%w (make gsm8k fetches it)", err)
		}
		return path, src.Config(), src.Close()
	}
	a := &actor{}
	defer func() { err = errors.Join(err, a.close(context.WithoutCancel(ctx))) }()
	if a.device, err = torch.Open(o.Device, o.Threads); err != nil {
		return "", config, err
	}
	if err := a.makeWeights(ctx, bench{weights: d.network, shape: d.shape}, o.Root); err != nil {
		return "", config, err
	}
	params := model.All(a.model)
	read := func(from int64, dst []float32) error { return params.Master().Read(ctx, from, dst) }
	path, config = filepath.Join(folder, "model.gguf"), a.model.Config
	vocabulary := map[string]any{"tokenizer.ggml.model": "no_vocab", arch.GGUFName(config.Family) + ".vocab_size": int64(config.VocabSize)}
	return path, config, weights.WriteGGUF(path, config, vocabulary, params.Reader(ctx, read), d.dtype)
}

// open loads the file as an agent with its type does. It samples a completion of the first prompt, and computes the log-probs with which
// llama.cpp is compared.
func (d decode) open(ctx context.Context, w *workload, o Options) (_ measure.Provider, _ measure.Setup, err error) {
	a := &actor{}
	defer closeOnError(ctx, &err, a.close)
	if a.device, err = torch.Open(o.Device, o.Threads); err != nil {
		return nil, measure.Setup{}, err
	}
	opt := model.Options{Compute: torch.Float32, MaxPosition: w.context()}
	switch d.dtype {
	case weights.BF16:
		opt.HalfCopy = true
		torch.SetRoundFactorsIfFaster(true)
	case weights.Q8_0, "":
		opt.Quantised = true
	}
	if err = a.load(ctx, w.File, opt); err != nil {
		return nil, measure.Setup{}, err
	}
	// room for each prompt, for each sequence in flight, and for each of the last ones, also for their recurrent states
	n := d.shape.prompts
	engine := local.Options{Slots: n, Conversations: 2 * n, CacheTokens: arch.WholeCache(3*n, w.context()+1), HalfCache: d.half}
	if a.engine, err = local.OpenTenant(ctx, a.model, engine, local.TenantOptions{}); err != nil {
		return nil, measure.Setup{}, err
	}
	p := &cached{a, w}
	if _, err := p.take(ctx, max(w.NewTokens, 2)); err != nil {
		return nil, measure.Setup{}, err
	}
	w.Completions = [][]int32{a.sampled[0].Tokens}
	if w.LogProbs, err = a.trainingLogProbs(ctx, w, w.Completions); err != nil {
		return nil, measure.Setup{}, err
	}
	settings := map[string]any{"device": o.Device, "threads": o.Threads, "memory": "tensors", "cache": "fp32",
		"max_error_against": "the trainer's forward pass"}
	if d.half {
		settings["cache"] = "bf16"
	}
	return closingProvider{p}, measure.Setup{Version: "LibTorch " + torch.Version(), Settings: settings}, nil
}

// closingProvider is a provider that closes its actor.
type closingProvider struct{ *cached }

func (p closingProvider) Close() error { return p.actor.close(context.Background()) }
