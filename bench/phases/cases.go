package phases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// shape holds the numbers of prompts, rollouts and tokens of a case.
type shape struct {
	prompts, rollouts, promptTokens, newTokens int
	microBatch                                 int // tokens of an update's micro-batch; 0: the default of a run's configuration
}

func (s shape) String() string {
	text := fmt.Sprintf("%d prompts × %d × (%d + %d) tokens", s.prompts, s.rollouts, s.promptTokens, s.newTokens)
	if s.microBatch > 0 {
		text += fmt.Sprintf(", micro-batches of %d", s.microBatch)
	}
	return text
}

// microTokens returns the number of tokens of an update's micro-batch.
func (s shape) microTokens() int { return cmp.Or(s.microBatch, microBatchTokens) }

// sequences returns the number of sampled sequences.
func (s shape) sequences() int { return s.prompts * s.rollouts }

// network is a model: a file under models/, or a shape with random weights. In some, only adapters are trained.
type network struct {
	name   string
	file   string
	config arch.Config
	rank   int  // of adapters on all linear maps; 0: the weights are trained
	large  bool // the device makes the weights, because Go would take minutes
}

// folder returns the folder of weights that the device makes. The peers of all cases read it.
func (n network) folder(root string) string {
	return filepath.Join(root, "build", "bench-models", strings.Fields(n.name)[0])
}

var (
	smolLM2       = network{name: "SmolLM2-135M", file: "SmolLM2-135M-Instruct.Q4_1.gguf"}
	small         = network{name: "4 layers, width 256", config: llama(4, 256, 4, 2, 768, 4096)}
	tiny          = network{name: "2 layers, width 64", config: llama(2, 64, 4, 2, 160, 257)}
	tinyHybrid    = network{name: "3 layers with short convolutions, width 64", config: lfm2(3, 64, 4, 2, 160, 257)}
	tinyRecurrent = network{name: "4 layers with delta rules, width 64", config: qwen35(4, 64, 4, 2, 160, 257)}
	adapted       = smolLM2.adapted()
	experts       = network{name: "8 layers, width 512, 2 of 16 experts of 512", config: mixture(8, 512, 8, 4, 512, 16, 2, 8192)}
	hybrid        = network{name: "6 layers of LFM2-350M, 2 of which attend", config: lfm2(6, 1024, 16, 8, 4608, 65536)}
	recurrent     = network{name: "4 layers of Qwen3.5-0.8B, 1 of which attends, and 32,768 tokens", config: qwen35(4, 1024, 8, 2, 3584, 32768)}
)

// adapted returns the network with adapters.
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

// lfm2 returns a hybrid. Two of three layers have a short convolution, and every third layer attends.
func lfm2(layers, width, heads, kvHeads, ffn, vocab int) arch.Config {
	c := llama(layers, width, heads, kvHeads, ffn, vocab)
	c.Family, c.RopeTheta = arch.LFM2, 1e6
	return c.WithDefaults()
}

// qwen35 returns a hybrid with the heads of Qwen3.5-0.8B. Three of four layers have a gated delta rule, and every fourth layer attends.
func qwen35(layers, width, heads, kvHeads, ffn, vocab int) arch.Config {
	c := llama(layers, width, heads, kvHeads, ffn, vocab)
	c.Family, c.HeadDim, c.RMSEps, c.RopeTheta, c.GatedDelta = arch.Qwen35, 256, 1e-6, 1e7, &arch.GatedDelta{KeyHeads: 16, ValueHeads: 16, KeyDim: 128, ValueDim: 128, Width: 4}
	for i := range layers {
		c.GatedDelta.Layers = append(c.GatedDelta.Layers, i%4 != 3)
	}
	return c.WithDefaults()
}

// phase is the work of a case, ours and the peer's.
type phase struct {
	peer    string // of bench/peers/phases.py
	adapted string // the peer that trains adapters; "": none
	options actorOptions
	work    func(ctx context.Context, a *actor, w *workload) error
	bytes   func(c arch.Config, s shape, weight float64, adapters int64) measure.Amount // weight: bytes of a weight that generation reads
	flops   func(c arch.Config, s shape, adapters int64) measure.Amount                 // adapters: number of their parameters
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

// precision is the type of the sampler's weights; on a GPU, of all weights.
type precision int

const (
	full  precision = iota // float32
	half                   // bf16, also the peer's
	mixed                  // ours bf16, the peer's float32
)

func (p precision) ours() string { return p.name(p != full) }
func (p precision) peer() string { return p.name(p == half) }

func (precision) name(half bool) string {
	if half {
		return "bfloat16"
	}
	return "float32"
}

// gpuCases returns the cases for a GPU, the most important first: shapes of Qwen 3 in bf16.
func gpuCases(suite string) (all []bench) {
	networks := []struct {
		name string
		network
	}{{"qwen3-1.7b", qwen3Large}, {"qwen3-0.6b", qwen3Small}}
	for _, n := range networks {
		b := bench{name: n.name, suite: suite, weights: n.network, precision: half}
		switch suite {
		case "rollout":
			b.shape = shape{prompts: 64, rollouts: 1, promptTokens: 192, newTokens: 64}
			b.targets = []measure.Target{faster(phases[suite].peer, 3)}
			all = append(all, b)
		case "learner":
			b.shape = shape{prompts: 16, rollouts: 1, promptTokens: 512, newTokens: 512}
			small := b
			small.name += "-small"
			b.targets = []measure.Target{faster(liger, 1)}
			b.shape.microBatch = b.shape.sequences() * (b.shape.promptTokens + b.shape.newTokens)
			all = append(all, b, small)
		case "step":
			b.shape = shape{prompts: 8, rollouts: 8, promptTokens: 256, newTokens: 256}
			all = append(all, b)
		}
	}
	return all
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
			{"hybrid", suite, hybrid, apart, full, []measure.Target{faster(peer, 3)}},
			{"hybrid-bf16", suite, hybrid, apart, half, []measure.Target{faster(peer, 3)}},
			{"recurrent", suite, recurrent, apart, full, []measure.Target{faster(peer, 3)}},
			{"recurrent-bf16", suite, recurrent, apart, half, []measure.Target{faster(peer, 3)}},
		}
	case "learner":
		dense := shape{prompts: 16, rollouts: 1, promptTokens: 90, newTokens: 64} // no prompt is shared: the same work for both
		apart := shape{prompts: 16, rollouts: 1, promptTokens: 64, newTokens: 64}
		return []bench{
			{"smollm2", suite, smolLM2, shared, full, []measure.Target{faster(peer, 2)}},
			{"smollm2-dense", suite, smolLM2, dense, full, []measure.Target{faster(peer, 1.2)}},
			{"smollm2-bf16", suite, smolLM2, shared, half, []measure.Target{faster(peer, 2)}},
			{"mixture", suite, experts, apart, full, []measure.Target{faster(peer, 1.5)}},
			{"hybrid", suite, hybrid, apart, full, []measure.Target{faster(peer, 2)}},
			{"recurrent", suite, recurrent, apart, full, []measure.Target{faster(peer, 2)}},
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

// temporary makes a folder for the files of a case, and returns the function that removes it.
func temporary(o Options) (folder string, remove func() error, err error) {
	parent := filepath.Join(o.Root, "build")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", nil, err
	}
	folder, err = os.MkdirTemp(parent, "bench-")
	return folder, func() error { return os.RemoveAll(folder) }, err
}

// prepared makes the workload and calls work. The workload's files exist until work returns.
func (b bench) prepared(ctx context.Context, o Options, work func(*workload) error) (err error) {
	folder, remove, err := temporary(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	weights := filepath.Join(folder, "model")
	if b.weights.large {
		weights = b.weights.folder(o.Root)
	}
	w, err := prepare(ctx, b, weights, o)
	if err == nil {
		err = work(w)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", b.suite, b.name, err)
	}
	return nil
}

// measure times the providers on the workload. Every sample begins with cold caches, because a real model's weights are read from
// memory.
func (b bench) measure(ctx context.Context, o Options) (row measure.Row, err error) {
	err = b.prepared(ctx, o, func(w *workload) error {
		var peers []measure.Opener
		if o.Peers && len(b.peerNames()) > 0 {
			if err := w.askFloat64(ctx, measure.PeersOf(o)); err != nil {
				return fmt.Errorf("log-probs in float64: %w", err)
			}
			for _, name := range b.peerNames() {
				from := measure.PeersOf(o)
				if name == liger { // it changes transformers in its whole process
					from.Host = nil
				}
				peers = append(peers, from.Opener(name, w))
			}
		}
		row, err = b.compare(ctx, w, o, peers...)
		return err
	})
	return row, err
}

// inFull is our own provider that trains the weights instead of adapters.
const inFull = "mgrpo-full"

// liger is transformers with the kernels of Liger: the peer of updates on a GPU.
const liger = "hf-liger"

// peerNames returns the peers of the case. On a GPU only one of the two sizes of an update has peers.
func (b bench) peerNames() []string {
	switch {
	case b.weights.large && b.suite == "learner" && b.shape.microBatch == 0:
		return nil
	case b.weights.large && b.suite == "learner":
		return []string{liger}
	case b.weights.rank > 0:
		return []string{phases[b.suite].adapted}
	}
	return []string{phases[b.suite].peer}
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
	schedule := o.Schedule()
	schedule.Alone = b.weights.large
	row, err := schedule.Measure(ctx, row, append(providers, peers...))
	if err == nil {
		b.tell(row, o)
	}
	return row, err
}

// row returns the case's row without the figures that depend on its weights.
func (b bench) row() measure.Row {
	return measure.Row{Suite: b.suite, Name: b.name, Shape: b.weights.name + ", " + b.shape.String(), DType: b.precision.ours(), PeerDType: b.precision.peer(), Cache: measure.Cold,
		ReadOnly: true, Targets: b.targets}
}
