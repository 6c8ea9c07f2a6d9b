package kernels

import (
	"math"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// layer is an operation of bindings/torch. leaves are the inputs whose gradients are computed if douts are given. others are its
// further inputs.
type layer struct {
	leaves []*torch.Tensor
	douts  []*torch.Tensor // nil: forward only
	f      func(leaves []*torch.Tensor) []*torch.Tensor
}

func single(t *torch.Tensor) []*torch.Tensor { return []*torch.Tensor{t} }

func (l layer) native(d *deviceTensors) *measure.Native {
	for _, x := range l.leaves {
		x.RequireGrad(l.douts != nil)
	}
	return &measure.Native{
		Reset: func() {
			for _, x := range l.leaves {
				x.SetGrad(nil)
			}
		},
		Work:  func() error { d.s.Scoped(func() { l.run(d.s, l.leaves, l.douts) }); return nil },
		Error: func() (worst float64, err error) { return l.error(d.s), nil },
	}
}

func (l layer) run(s *torch.Scope, leaves, douts []*torch.Tensor) (outs []*torch.Tensor) {
	if douts == nil {
		return l.f(leaves)
	}
	s.Grad(true, func() { outs = l.f(leaves) })
	torch.Backward(outs, douts)
	return outs
}

// error runs the layer again, once on its inputs and once on the same inputs in float64, and returns the largest error.
func (l layer) error(s *torch.Scope) (worst float64) {
	wide := make([]*torch.Tensor, len(l.leaves))
	for i, x := range l.leaves {
		x.SetGrad(nil)
		wide[i] = x.Detach().To(torch.Float64)
		wide[i].RequireGrad(l.douts != nil)
	}
	var wideDouts []*torch.Tensor
	for _, g := range l.douts {
		wideDouts = append(wideDouts, g.To(torch.Float64))
	}
	outs, want := l.run(s, l.leaves, l.douts), l.run(s, wide, wideDouts)
	for i := range outs {
		worst = max(worst, maxError(s, outs[i].Detach(), want[i].Detach()))
	}
	if l.douts != nil {
		for i, x := range l.leaves {
			worst = max(worst, maxError(s, x.Grad(), wide[i].Grad()))
		}
	}
	return worst
}

// gradients returns the gradients of `outputs` outputs of one shape, or nil if the case has no backward pass.
func (d *deviceTensors) gradients(n dims, outputs int, stream uint32, shape ...int64) (all []*torch.Tensor) {
	if n["backward"] == 0 {
		return nil
	}
	for i := range outputs {
		all = append(all, d.uniform(stream+uint32(i), 1, shape...))
	}
	return all
}

func rmsNorm(d *deviceTensors, n dims) *measure.Native {
	rows, width := n["rows"], n["width"]
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, width), d.uniform(2, 1, width)}, douts: d.gradients(n, 1, 3, rows, width),
		f: func(x []*torch.Tensor) []*torch.Tensor { return single(torch.RMSNorm(x[0], x[1], 0, 1e-5)) },
	}.native(d)
}

func addRMSNorm(d *deviceTensors, n dims) *measure.Native {
	rows, width := n["rows"], n["width"]
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, width), d.uniform(2, 1, rows, width), d.uniform(3, 1, width)},
		douts:  d.gradients(n, 2, 4, rows, width),
		f: func(x []*torch.Tensor) []*torch.Tensor {
			sum, y := torch.AddRMSNorm(x[0], x[1], x[2], 0, 1e-5)
			return []*torch.Tensor{sum, y}
		},
	}.native(d)
}

func swiglu(d *deviceTensors, n dims) *measure.Native {
	rows, width := n["rows"], n["width"]
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, 2*width)}, douts: d.gradients(n, 1, 3, rows, width),
		f: func(x []*torch.Tensor) []*torch.Tensor { return single(torch.SwiGLU(x[0])) },
	}.native(d)
}

func heads(d *deviceTensors, n dims) *measure.Native {
	rows, heads, kv, hd := n["rows"], n["heads"], n["kv_heads"], n["head_dim"]
	position := make([]int32, rows)
	var cosines, sines []float32
	for p := range rows {
		position[p] = int32(p)
		for i := range hd / 2 {
			s, c := math.Sincos(float64(p) * math.Pow(10000, -2*float64(i)/float64(hd)))
			cosines, sines = append(cosines, float32(c)), append(sines, float32(s))
		}
	}
	how := torch.Heads{Heads: int(heads), KVHeads: int(kv), Eps: 1e-5, Cos: d.floats(cosines, rows, hd/2), Sin: d.floats(sines, rows, hd/2),
		Pos: d.ints(position)}
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, (heads+2*kv)*hd), d.uniform(2, 1, hd), d.uniform(3, 1, hd)},
		douts:  append(d.gradients(n, 1, 4, rows, heads, hd), d.gradients(n, 2, 5, rows, kv, hd)...),
		f: func(x []*torch.Tensor) []*torch.Tensor {
			how := how
			how.QNorm, how.KNorm = x[1], x[2]
			q, k, v := how.Split(x[0])
			return []*torch.Tensor{q, k, v}
		},
	}.native(d)
}

// lengths returns the lengths of the sequences of a packed batch.
func lengths(n dims) []int64 {
	v := make([]int32, n["sequences"])
	measure.Index(v, 5, uint32(n["longest"]-n["shortest"]+1))
	out := make([]int64, len(v))
	for i, x := range v {
		out[i] = int64(x) + n["shortest"]
	}
	return out
}

func attention(d *deviceTensors, n dims) *measure.Native {
	offsets := []int32{0}
	for _, l := range lengths(n) {
		offsets = append(offsets, offsets[len(offsets)-1]+int32(l))
	}
	cu := d.ints(offsets)
	rows, heads, kv, hd := int64(offsets[len(offsets)-1]), n["heads"], n["kv_heads"], n["head_dim"]
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, heads, hd), d.uniform(2, 1, rows, kv, hd), d.uniform(3, 1, rows, kv, hd)},
		douts:  d.gradients(n, 1, 4, rows, heads, hd),
		f: func(x []*torch.Tensor) []*torch.Tensor {
			return single(torch.AttentionPacked(x[0], x[1], x[2], cu, nil, 1/math.Sqrt(float64(hd)), 0, nil))
		},
	}.native(d)
}

func decodeAttention(d *deviceTensors, n dims) *measure.Native {
	rows, heads, kv, hd, context := n["sequences"], n["heads"], n["kv_heads"], n["head_dim"], n["context"]
	const block = arch.CacheBlock
	width := int64(arch.CacheBlocks(int(context)))
	sequences, lengths, blocks := make([]int32, rows), make([]int32, rows), make([]int32, rows*width)
	for i := range rows {
		sequences[i], lengths[i] = int32(i), int32(context)
	}
	for i := range blocks { // as in a used cache: a sequence's blocks are not adjacent
		blocks[i] = int32(int64(i)%width*rows + int64(i)/width)
	}
	sequence, length, table := d.ints(sequences), d.ints(lengths), d.keep(d.s.FromInt32(blocks, rows, width))
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, heads, hd), d.uniform(2, 1, rows*width, kv, block, hd), d.uniform(3, 1, rows*width, kv, block, hd)},
		f: func(x []*torch.Tensor) []*torch.Tensor {
			return single(torch.AttentionCached(x[0], x[1], x[2], table, sequence, length, 1/math.Sqrt(float64(hd)), 0, nil))
		},
	}.native(d)
}

// deltaRule makes the provider of a gated delta rule over packed sequences. Error checks two short sequences instead of all, because the
// float64 reference keeps the states of every row.
func deltaRule(d *deviceTensors, n dims) *measure.Native {
	p := d.deltaRule(n, n["sequences"], n["length"]).native(d)
	p.Error = d.deltaRule(n, min(n["sequences"], 2), min(n["length"], 128)).native(d).Error
	return p
}

func (d *deviceTensors) deltaRule(n dims, sequences, length int64) layer {
	rows, cu := sequences*length, make([]int32, sequences+1)
	for i := range cu {
		cu[i] = int32(int64(i) * length)
	}
	ends := d.ints(cu)
	return layer{
		leaves: d.ruleInputs(n, rows), douts: d.gradients(n, 1, 5, rows, n["value_heads"]*n["head_dim"]),
		f: func(x []*torch.Tensor) []*torch.Tensor {
			return single(ruleOf(n, x).Packed(x[0], x[1], torch.PiecesOf(ends, nil)))
		},
	}
}

// deltaStep makes the provider of a gated delta rule's step with a state for each row. Error
// compares the first rows of sequences, which come one at a time, with packed rows in float64.
func deltaStep(d *deviceTensors, n dims) *measure.Native {
	const length = 3
	sequences, heads, hd := n["sequences"], n["value_heads"], n["head_dim"]
	x := d.ruleInputs(n, sequences*length)
	states := d.uniform(6, 1, sequences, heads, hd, hd)
	slot, pos, cu := make([]int32, sequences), make([]int32, sequences), make([]int32, sequences+1)
	for i := range slot {
		slot[i], pos[i], cu[i+1] = int32(sequences)-1-int32(i), 1, int32((i+1)*length)
	}
	slots, later, ends := d.ints(slot), d.ints(pos), d.ints(cu)
	row := func(i int64) (x0, ba *torch.Tensor) {
		at := func(t *torch.Tensor) *torch.Tensor {
			return t.View(sequences, length, -1).Narrow(1, i, 1).Contiguous().View(sequences, -1)
		}
		return at(x[0]), at(x[1])
	}
	var qkv, ba *torch.Tensor
	d.s.Scoped(func() { a, b := row(0); qkv, ba = d.keep(a), d.keep(b) })
	return &measure.Native{
		Work: func() error { d.s.Scoped(func() { ruleOf(n, x).Advance(qkv, ba, states, slots, later) }); return nil },
		Error: func() (worst float64, err error) {
			d.s.Scoped(func() {
				var wide []*torch.Tensor
				for _, t := range x {
					wide = append(wide, t.To(torch.Float64))
				}
				want := ruleOf(n, wide).Packed(wide[0], wide[1], torch.PiecesOf(ends, nil)).View(sequences, length, -1)
				fresh := d.s.Zeros(torch.Float32, sequences, heads, hd, hd)
				for i := range int64(length) {
					at := make([]int32, sequences)
					for j := range at {
						at[j] = int32(i)
					}
					a, b := row(i)
					got := ruleOf(n, x).Advance(a, b, fresh, slots, d.s.FromInt32(at, sequences))
					worst = max(worst, maxError(d.s, got, want.Narrow(1, i, 1).Contiguous().View(sequences, -1)))
				}
			})
			return worst, nil
		},
	}
}

// ruleInputs returns a gated delta rule's rows of queries, keys and values, and of steps and decays; then A_log and dt_bias.
func (d *deviceTensors) ruleInputs(n dims, rows int64) []*torch.Tensor {
	return []*torch.Tensor{d.uniform(1, 1, rows, (2*n["key_heads"]+n["value_heads"])*n["head_dim"]), d.uniform(2, 1, rows, 2*n["value_heads"]),
		d.floats(uniform(3, n["value_heads"]), n["value_heads"]), d.floats(uniform(4, n["value_heads"]), n["value_heads"])}
}

func ruleOf(n dims, inputs []*torch.Tensor) torch.DeltaRule {
	hd := int(n["head_dim"])
	return torch.DeltaRule{KeyHeads: int(n["key_heads"]), ValueHeads: int(n["value_heads"]), KeyDim: hd, ValueDim: hd, ALog: inputs[2], DtBias: inputs[3]}
}

// linear makes a linear layer's provider. Its input is float32 for weights of any type.
func linear(d *deviceTensors, n dims) *measure.Native {
	return layer{
		leaves: []*torch.Tensor{d.floats(uniform(1, n["rows"]*n["in"]), n["rows"], n["in"]), d.uniform(2, 1, n["out"], n["in"])},
		f:      func(x []*torch.Tensor) []*torch.Tensor { return single(torch.Linear(x[0], x[1], nil)) },
	}.native(d)
}

// roundFactors makes products round their factors, as run.matmul: bf16 does. The setting affects the whole process, and other cases must
// not round, so clear turns it off.
func (d *deviceTensors) roundFactors() {
	torch.SetRoundFactors(true)
	d.undo = func() { torch.SetRoundFactors(false) }
}

func roundedLinear(d *deviceTensors, n dims) *measure.Native {
	p := linear(d, n)
	d.roundFactors()
	return p
}

// trainedLinear makes the provider of a linear layer in training with run.matmul: bf16.
func trainedLinear(d *deviceTensors, n dims) *measure.Native {
	rows, in, out := n["rows"], n["in"], n["out"]
	p := layer{
		leaves: []*torch.Tensor{d.floats(uniform(1, rows*in), rows, in), d.floats(uniform(2, out*in), out, in)},
		douts:  single(d.floats(uniform(3, rows*out), rows, out)),
		f:      func(x []*torch.Tensor) []*torch.Tensor { return single(torch.Linear(x[0], x[1], nil)) },
	}.native(d)
	d.roundFactors()
	work, worst := p.Work, p.Error
	p.Work = func() (err error) { d.s.Training(func() { err = work() }); return err }
	p.Error = func() (e float64, err error) { d.s.Training(func() { e, err = worst() }); return e, err }
	return p
}
