package phases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/bench/measure"
)

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

// weight returns the bytes of a weight that our generation reads.
func (p precision) weight() float64 {
	if p != full {
		return 2
	}
	return 4
}

// inFull is our own provider that trains the weights instead of adapters.
const inFull = "mgrpo-full"

// liger is transformers with the kernels of Liger: the peer of updates on a GPU.
const liger = "hf-liger"

// vllm samples on the CPU (bench/peers/vllm_peer.py).
const vllm = "vllm"

// peerNames returns the peers of the case. On a GPU only one of the two sizes of an update has peers.
func (b bench) peerNames() []string {
	switch {
	case b.weights.large && b.suite == "learner" && b.shape.microBatch == 0:
		return nil
	case b.weights.large && b.suite == "learner":
		return []string{liger}
	case b.weights.rank > 0:
		return []string{phases[b.suite].adapted}
	case b.weights.name == smolLM2.name && b.suite == "rollout":
		return []string{phases[b.suite].peer, vllm}
	}
	return []string{phases[b.suite].peer}
}

// measure times the providers on the workload. Every sample begins with cold caches, because a real model's weights are read from
// memory.
func (b bench) measure(ctx context.Context, o Options) (row measure.Row, err error) {
	err = b.prepared(ctx, o, func(w *workload) error {
		var peers []measure.Opener
		if o.Peers && len(b.peerNames()) > 0 {
			if err := w.askFloat64(ctx, o); err != nil {
				return err
			}
			for _, name := range b.peerNames() {
				from := o
				if name == liger { // it changes transformers in its whole process
					from.Host = nil
				}
				peers = append(peers, from.Peer(name, w))
			}
		}
		row, err = b.compare(ctx, w, o, peers...)
		return err
	})
	return row, err
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

// temporary makes a folder for the files of a case, and returns the function that removes it.
func temporary(o Options) (folder string, remove func() error, err error) {
	parent := filepath.Join(o.Root, "build")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", nil, err
	}
	folder, err = os.MkdirTemp(parent, "bench-")
	return folder, func() error { return os.RemoveAll(folder) }, err
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
	row.Bytes, row.FLOPs = p.bytes(w.config, b.shape, b.precision.weight(), w.adapters), p.flops(w.config, b.shape, w.adapters)
	schedule := o.Schedule()
	schedule.Alone = b.weights.large
	row, err := schedule.Measure(ctx, row, append(providers, peers...))
	if err == nil {
		b.logRow(row, o)
	}
	return row, err
}

// row returns the case's row without the figures that depend on its weights.
func (b bench) row() measure.Row {
	return measure.Row{Suite: b.suite, Name: b.name, Shape: b.weights.name + ", " + b.shape.String(), DType: b.precision.ours(),
		PeerDType: b.precision.peer(), Cache: measure.Cold, ReadOnly: true, Targets: b.targets}
}

// rowOfTwo returns the row of two agents, each as the case describes.
func (b bench) rowOfTwo() measure.Row {
	row := b.row()
	row.Shape = b.weights.name + ", 2 agents × " + b.shape.String()
	return row
}
