package phases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/arch"
)

// shape is how many tokens a case has.
type shape struct{ prompts, rollouts, promptTokens, newTokens int }

func (s shape) String() string {
	return fmt.Sprintf("%d prompts × %d × (%d + %d) tokens", s.prompts, s.rollouts, s.promptTokens, s.newTokens)
}

// sequences is how many are sampled.
func (s shape) sequences() int { return s.prompts * s.rollouts }

// network is a model: a file under models/, or a shape filled with random numbers. Of some, adapters are trained alone.
type network struct {
	name   string
	file   string
	config arch.Config
	rank   int // of the adapters of all linear maps; 0: the weights are trained
}

var (
	smolLM2     = network{name: "SmolLM2-135M", file: "SmolLM2-135M-Instruct.Q4_1.gguf"}
	small       = network{name: "4 layers, width 256", config: llama(4, 256, 4, 2, 768, 4096)}
	halfBillion = network{name: "24 layers, width 896, vocabulary 151,936", config: llama(24, 896, 14, 2, 4864, 151_936)}
	tiny        = network{name: "2 layers, width 64", config: llama(2, 64, 4, 2, 160, 257)}
	adapted     = smolLM2.adapted()
	experts     = network{name: "8 layers, width 512, 2 of 16 experts of 512", config: mixture(8, 512, 8, 4, 512, 16, 2, 8192)}
)

// adapted is the network with adapters.
func (n network) adapted() network {
	n.rank = 16
	n.name += fmt.Sprintf(" with LoRA (r %d, all-linear)", n.rank)
	return n
}

func llama(layers, width, heads, kvHeads, ffn, vocab int) arch.Config {
	return arch.Config{
		Family: arch.Llama, VocabSize: vocab, Hidden: width, Layers: layers, Heads: heads, KVHeads: kvHeads,
		HeadDim: width / heads, FFN: ffn, RMSEps: 1e-5, RopeTheta: 1e4, MaxPosition: 512, Tied: true, EOS: []int32{0},
	}
}

func mixture(layers, width, heads, kvHeads, ffn, experts, perToken, vocab int) arch.Config {
	c := llama(layers, width, heads, kvHeads, ffn, vocab)
	c.Family, c.Mixture = arch.Qwen3MoE, &arch.Mixture{Experts: experts, PerToken: perToken, FFN: ffn, Normalise: true, Step: 1}
	return c
}

// phase is the work of a case, ours and the peer's.
type phase struct {
	peer    string // of bench/peers/phases.py
	adapted string // the peer of adapters; "": none
	options actorOptions
	work    func(ctx context.Context, a *actor, w *workload) error
	bytes   func(c arch.Config, s shape, weight float64, adapters int64) measure.Amount // weight: bytes of one that generation reads
	flops   func(c arch.Config, s shape, adapters int64) measure.Amount                 // adapters: parameters of them
}

var phases = map[string]phase{
	"rollout": {"hf-generate", "", actorOptions{engine: true}, rollOut, decodeBytes, rolloutFLOPs},
	"learner": {"hf-forward-backward", "peft", actorOptions{learner: true}, update, noBytes, learnerFLOPs},
	"step":    {"trl", "trl-peft", actorOptions{engine: true, learner: true}, step, stepBytes, stepFLOPs},
}

// bench is one row.
type bench struct {
	name, suite string
	weights     network
	shape       shape
	precision   precision
	targets     []measure.Target
}

// precision is the type of the weights that are sampled from; on a GPU, of all weights.
type precision int

const (
	full  precision = iota // float32
	half                   // bf16, and the peer's are too
	mixed                  // ours in bf16, the peer's in float32
)

func (p precision) ours() string { return p.name(p != full) }
func (p precision) peer() string { return p.name(p == half) }

func (precision) name(half bool) string {
	if half {
		return "bfloat16"
	}
	return "float32"
}

// gpuCases are the cases for a GPU: a model of half a billion parameters in bf16.
func gpuCases(suite string) []bench {
	shared, peer := shape{prompts: 8, rollouts: 8, promptTokens: 90, newTokens: 64}, phases[suite].peer
	switch suite {
	case "rollout":
		few, many := shape{prompts: 8, rollouts: 1, promptTokens: 90, newTokens: 64}, shape{prompts: 64, rollouts: 1, promptTokens: 90, newTokens: 64}
		targets := []measure.Target{faster(peer, 1), nearFloor(0.6)}
		return []bench{{"0.5b-8", suite, halfBillion, few, half, targets}, {"0.5b-64", suite, halfBillion, many, half, targets}}
	case "learner":
		return []bench{{"0.5b", suite, halfBillion, shared, half, []measure.Target{faster(peer, 1)}}}
	}
	return []bench{{"0.5b", suite, halfBillion, shared, half, nil}}
}

func casesOf(suite string, quick bool) []bench {
	shared := shape{prompts: 2, rollouts: 8, promptTokens: 90, newTokens: 64}
	if quick {
		b := bench{name: "tiny", suite: suite, weights: tiny, shape: shape{prompts: 2, rollouts: 3, promptTokens: 12, newTokens: 7}}
		lora := b
		lora.name, lora.weights = "tiny-lora", tiny.adapted()
		if suite == "learner" {
			return []bench{b, lora}
		}
		inHalf := b
		inHalf.name, inHalf.precision = "tiny-bf16", half
		if suite == "step" {
			inHalf.precision = mixed
			return []bench{b, inHalf, lora}
		}
		return []bench{b, inHalf}
	}
	peer := phases[suite].peer
	switch suite {
	case "rollout":
		apart := shape{prompts: 16, rollouts: 1, promptTokens: 90, newTokens: 64}
		return []bench{
			{"smollm2", suite, smolLM2, apart, full, []measure.Target{faster(peer, 4), nearFloor(0.6)}},
			{"smollm2-bf16", suite, smolLM2, apart, half, []measure.Target{faster(peer, 6), nearFloor(0.6)}},
			{"smollm2-shared", suite, smolLM2, shared, full, nil},
			{"mixture", suite, experts, apart, full, []measure.Target{faster(peer, 3)}},
			{"mixture-bf16", suite, experts, apart, half, []measure.Target{faster(peer, 3)}},
		}
	case "learner":
		apart := shape{prompts: 16, rollouts: 1, promptTokens: 64, newTokens: 64}
		return []bench{
			{"smollm2", suite, smolLM2, shared, full, []measure.Target{faster(peer, 2)}},
			{"smollm2-bf16", suite, smolLM2, shared, half, []measure.Target{faster(peer, 2)}},
			{"mixture", suite, experts, apart, full, []measure.Target{faster(peer, 1.5)}},
			{"smollm2-lora", suite, adapted, shared, full, []measure.Target{faster(inFull, 1.25), smaller(inFull, 0.5)}},
		}
	case "step":
		return []bench{
			{"smollm2", suite, smolLM2, shared, full, []measure.Target{faster(peer, 3), nearFloor(0.7), smaller(peer, 0.6)}},
			{"smollm2-bf16", suite, smolLM2, shared, mixed, []measure.Target{faster(peer, 4.5)}},
			{"small", suite, small, shared, full, []measure.Target{faster(peer, 8)}},
			{"smollm2-lora", suite, adapted, shared, full, []measure.Target{faster(phases[suite].adapted, 3), faster(inFull, 1.25), smaller(inFull, 0.5)}},
		}
	}
	return nil
}

func faster(peer string, by float64) measure.Target {
	return measure.Target{Kind: measure.Faster, Peer: peer, Bound: by, Text: fmt.Sprintf("at least %g× as fast as %s", by, peer)}
}

func nearFloor(share float64) measure.Target {
	return measure.Target{Kind: measure.Floor, Bound: 1 / share, Text: fmt.Sprintf("at most %.2f× the floor (%.0f %% of it)", 1/share, 100*share)}
}

func smaller(peer string, share float64) measure.Target {
	return measure.Target{Kind: measure.Memory, Peer: peer, Bound: share, Text: fmt.Sprintf("at most %g× the peak memory of %s", share, peer)}
}

// prepared makes the workload, whose files are there as long as work runs.
func (b bench) prepared(ctx context.Context, o Options, work func(*workload) error) (err error) {
	parent := filepath.Join(o.Root, "build")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	folder, err := os.MkdirTemp(parent, "bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	w, err := prepare(ctx, b, filepath.Join(folder, "model"), o)
	if err == nil {
		err = work(w)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", b.suite, b.name, err)
	}
	return nil
}

func peersOf(o Options) measure.Peers {
	return measure.Peers{Root: o.Root, Device: o.Device, Threads: o.Threads}
}

// measure times the providers on the workload. Every sample begins with cold caches: the weights of a real model come
// from memory.
func (b bench) measure(ctx context.Context, o Options) (row measure.Row, err error) {
	err = b.prepared(ctx, o, func(w *workload) error {
		var peers []measure.Opener
		if o.Peers {
			if err := w.askFloat64(ctx, peersOf(o)); err != nil {
				return fmt.Errorf("log-probs in float64: %w", err)
			}
			peers = append(peers, peersOf(o).Opener(b.peer(), w))
		}
		row, err = b.compare(ctx, w, o, peers...)
		return err
	})
	return row, err
}

// inFull is our own provider that trains the weights in place of adapters.
const inFull = "mgrpo-full"

func (b bench) peer() string {
	if b.weights.rank > 0 {
		return phases[b.suite].adapted
	}
	return phases[b.suite].peer
}

func (b bench) compare(ctx context.Context, w *workload, o Options, peers ...measure.Opener) (measure.Row, error) {
	p := phases[b.suite]
	ours := func(name string, w *workload) measure.Opener {
		return measure.Opener{Name: name, Open: func(ctx context.Context) (measure.Provider, measure.Setup, error) { return open(ctx, p, w, o) }}
	}
	providers := []measure.Opener{ours(measure.Ours, w)}
	if w.Rank > 0 {
		whole := *w
		whole.Rank = 0
		providers = append(providers, ours(inFull, &whole))
	}
	row := b.row()
	weight := 4.0
	if b.precision != full {
		weight = 2
	}
	row.Bytes, row.FLOPs = p.bytes(w.config, b.shape, weight, w.adapters), p.flops(w.config, b.shape, w.adapters)
	return o.Schedule().Measure(ctx, row, append(providers, peers...))
}

// row is the case's without what follows from its weights.
func (b bench) row() measure.Row {
	return measure.Row{Suite: b.suite, Name: b.name, Shape: b.weights.name + ", " + b.shape.String(), DType: b.precision.ours(), PeerDType: b.precision.peer(), Cache: measure.Cold,
		ReadOnly: true, Targets: b.targets}
}
