package roofline

import (
	"fmt"
	"math"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Time holds the seconds of a part of a step, by the limit of its operations: bytes, arithmetic, or launches.
type Time struct{ Bytes, FLOPs, Launches float64 }

// Seconds returns the sum.
func (t Time) Seconds() float64 { return t.Bytes + t.FLOPs + t.Launches }

func (t *Time) add(by Time, times float64) {
	t.Bytes += times * by.Bytes
	t.FLOPs += times * by.FLOPs
	t.Launches += times * by.Launches
}

// work adds an operation: the seconds of its launches, and the larger of bytes/bandwidth and flops/rate.
func (t *Time) work(launches, bytes, bandwidth, flops, rate float64) {
	t.Launches += launches
	if b, f := bytes/bandwidth, flops/rate; b >= f {
		t.Bytes += b
	} else {
		t.FLOPs += f
	}
}

// pass is a forward pass of an agent on a device. It is one of several that compute some rows, and has the average number of rows.
type pass struct {
	d      Device
	a      Agent
	rows   rows    // of all passes
	passes float64 // number of passes
	rate   float64 // FLOP/s of products
	weight float64 // bytes of a matrix value
	cached float64 // bytes/s of keys and values
	eager  float64 // seconds of a launch by the host; 0: in a graph
	trains bool
}

// n returns the number of its rows.
func (p pass) n() float64 { return p.rows.n / p.passes }

// launch returns the seconds that some kernels take in addition to their work.
func (p pass) launch(kernels float64) float64 { return kernels * math.Max(p.d.Launch, p.eager) }

// forward is the time of all layers: the products with their weights, and the rest.
type forward struct{ products, rest Time }

func (f forward) all() (t Time) {
	t.add(f.products, 1)
	t.add(f.rest, 1)
	return t
}

// layers returns the time of all layers.
func (p pass) layers() (f forward) {
	for layer, leaves := range p.a.layers {
		switch g := p.a.Arch.GatedDelta; {
		case p.a.Arch.Layer(layer).Convolves():
			p.elementwise(&f.rest, 1, 5*p.a.Arch.Hidden) // reads a product of three values, writes the cache and the result
		case p.a.Arch.Layer(layer).Recurs(): // the convolution, the norm, and the gate; the recurrence
			p.elementwise(&f.rest, 5, 3*g.Channels()+10*g.Values())
			p.recurrence(&f.rest, g)
		default:
			p.attention(&f.rest, layer)
		}
		for _, l := range leaves {
			p.leaf(&f, l)
		}
	}
	if p.a.Adapts {
		f.rest.work(0, p.a.value()*float64(p.a.Trained), p.d.Read, 2*p.n()*float64(p.a.Trained), p.rate)
	}
	return f
}

// leavesOf returns each layer's tensors, with their names within the layer.
func leavesOf(c arch.Config) [][]arch.Leaf {
	all := make([][]arch.Leaf, c.Layers)
	for _, l := range c.Layout().Leaves {
		var layer int
		if n, _ := fmt.Sscanf(l.Name, "layers.%d.", &layer); n == 1 {
			l.Name = l.Name[strings.LastIndex(l.Name, ".")+1:]
			all[layer] = append(all[layer], l)
		}
	}
	return all
}

// leaf adds a layer's work with one of its tensors, and the element-wise work around it.
func (p pass) leaf(f *forward, l arch.Leaf) {
	c, t := p.a.Arch, &f.rest
	switch l.Name {
	case "input_norm", "post_norm":
		p.elementwise(t, 1, 4*c.Hidden) // reads two, writes their sum and its norm
	case "attended_norm", "mlp_norm", "own_norm", "factor", "dense_norm", "experts_norm", "routed_norm", "router_norm":
		p.elementwise(t, 1, 2*c.Hidden)
	case "qkv", "o", "gate_up", "down", "input_gate", "input_up", "conv_in", "conv_out", "delta_in", "delta_out":
		p.product(&f.products, p.n(), l, 1, 1)
		if l.Name == "gate_up" {
			p.elementwise(t, 1, int(3*l.Shape[0]/2))
		}
		if p.a.Adapts { // two thin products; the second is added to the output
			p.elementwise(t, 2, int(l.Shape[1]+2*l.Shape[0]))
		}
	case "router", "experts_gate_up", "experts_down":
		p.mixture(f, l, c.Mixture)
	}
}

// mixture adds the work of a router, or of the experts' gate and up projections, or of their down projections. Each row goes
// through some of the experts.
func (p pass) mixture(f *forward, l arch.Leaf, m *arch.Mixture) {
	k, width := float64(m.PerToken), p.a.Arch.Hidden
	read := 1 - math.Pow(1-k/float64(m.Experts), p.n()) // the share of the experts that some row chooses, if all are equally likely
	switch l.Name {
	case "router":
		const choose = 5 // to fp32, product, choice, sorting the rows by expert
		values := float64(l.Numel())
		f.products.work(p.launch(choose), 4*values, p.d.Read, 2*p.n()*values, p.d.FP32)
		p.elementwise(&f.rest, 2, (2*m.PerToken+m.PerToken+1)*width) // rows to the experts, their weighted sum
	case "experts_gate_up":
		p.product(&f.products, p.n()*k, l, read, float64(m.Experts))
		p.elementwise(&f.rest, 1, 3*m.PerToken*m.FFN)
	case "experts_down":
		p.product(&f.products, p.n()*k, l, read, float64(m.Experts))
	}
}

// product adds the product of n rows with a matrix. The leaf may hold several matrices (stacked). share is the share of its values
// that is read.
func (p pass) product(t *Time, n float64, l arch.Leaf, share, stacked float64) {
	in, out, v := float64(l.Shape[1]), float64(l.Shape[0])/stacked, p.a.value()
	values := share * float64(l.Numel())
	t.work(p.launch(1), p.weight*values+v*n*(in+out), p.d.Read, 2*n*in*out, p.rate)
	if p.trains && p.a.Rounded { // both factors are read in fp32 and written in bf16
		t.work(0, 6*(values+n*in), p.d.Copy, 0, 1)
	}
}

// elementwise adds kernels that read and write this number of values for each row.
func (p pass) elementwise(t *Time, kernels float64, values int) {
	t.work(p.launch(kernels), p.a.value()*float64(values)*p.n(), p.d.Copy, 0, 1)
}

// attention adds the step that splits the product of queries, keys and values into heads, normalises and rotates them and writes the
// cache, and attention itself.
func (p pass) attention(t *Time, layer int) {
	l := p.a.Arch.Layer(layer)
	q, kv, window := p.a.Arch.Heads*l.HeadDim(), l.KVWidth(), l.Window()
	p.elementwise(t, 1, 2*(q+2*kv))
	bytes := p.a.value() * 2 * (float64(kv)*p.rows.keys(window)/p.passes + float64(q)*p.n())
	t.work(p.launch(1), bytes, p.cached, 4*float64(q)*p.rows.pairs(window)/p.passes, p.d.Attention)
}

// recurrence adds a gated delta rule. It reads and writes each sequence's states, in fp32. Each row takes seven
// operations a value: the state decays, is multiplied by the key, takes the update, and is multiplied by the query.
func (p pass) recurrence(t *Time, g *arch.GatedDelta) {
	values, rate := float64(g.ValueHeads*g.KeyDim*g.ValueDim), p.d.Recurrence
	if p.trains {
		rate = p.d.TrainedRecurrence
	}
	t.work(p.launch(1), 8*values*p.rows.pieces()/p.passes, p.d.States, 7*values*p.n(), rate)
}

// head adds the product of n rows with the output projection, and the write of their logits.
func (p pass) head(t *Time, n float64) {
	values := float64(p.a.Arch.Hidden * p.a.Arch.VocabSize)
	t.work(p.launch(1), p.weight*values+4*n*float64(p.a.Arch.VocabSize), p.d.Read, 2*n*values, p.rate)
}
