package kernels

import (
	"math"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// layer is an operation of bindings/torch. leaves are the inputs that get a gradient where dout is given, others are
// what the operation is closed over.
type layer struct {
	leaves []*torch.Tensor
	dout   *torch.Tensor // nil: forward only
	f      func(leaves []*torch.Tensor) *torch.Tensor
}

func (l layer) native(d *desk) *measure.Native {
	for _, x := range l.leaves {
		x.RequireGrad(l.dout != nil)
	}
	return &measure.Native{
		Reset: func() {
			for _, x := range l.leaves {
				x.SetGrad(nil)
			}
		},
		Work:  func() error { d.s.Scoped(func() { l.run(d.s, l.leaves, l.dout) }); return nil },
		Error: func() (worst float64, err error) { return l.error(d.s), nil },
	}
}

func (l layer) run(s *torch.Scope, leaves []*torch.Tensor, dout *torch.Tensor) (out *torch.Tensor) {
	if dout == nil {
		return l.f(leaves)
	}
	s.Grad(true, func() { out = l.f(leaves) })
	torch.Backward([]*torch.Tensor{out}, []*torch.Tensor{dout})
	return out
}

// error runs the layer once more, on its inputs and on the same in float64.
func (l layer) error(s *torch.Scope) (worst float64) {
	wide := make([]*torch.Tensor, len(l.leaves))
	for i, x := range l.leaves {
		x.SetGrad(nil)
		wide[i] = x.Detach().To(torch.Float64)
		wide[i].RequireGrad(l.dout != nil)
	}
	var wideOut *torch.Tensor
	if l.dout != nil {
		wideOut = l.dout.To(torch.Float64)
	}
	out, want := l.run(s, l.leaves, l.dout), l.run(s, wide, wideOut)
	worst = between(out.Detach(), want.Detach())
	if l.dout != nil {
		for i, x := range l.leaves {
			worst = max(worst, between(x.Grad(), wide[i].Grad()))
		}
	}
	return worst
}

// gradient is the output's gradient where the case has a backward pass.
func (d *desk) gradient(n dims, stream uint32, shape ...int64) *torch.Tensor {
	if n["backward"] == 0 {
		return nil
	}
	return d.uniform(stream, 1, shape...)
}

func rmsNorm(d *desk, n dims) *measure.Native {
	rows, width := n["rows"], n["width"]
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, width), d.uniform(2, 1, width)}, dout: d.gradient(n, 3, rows, width),
		f: func(x []*torch.Tensor) *torch.Tensor { return torch.RMSNorm(x[0], x[1], 1e-5) },
	}.native(d)
}

func swiglu(d *desk, n dims) *measure.Native {
	rows, width := n["rows"], n["width"]
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, 2*width)}, dout: d.gradient(n, 3, rows, width),
		f: func(x []*torch.Tensor) *torch.Tensor { return torch.SwiGLU(x[0]) },
	}.native(d)
}

func rope(d *desk, n dims) *measure.Native {
	rows, heads, hd := n["rows"], n["heads"], n["head_dim"]
	cos, sin, pos := d.empty(rows, hd/2), d.empty(rows, hd/2), d.keep(d.s.Empty(torch.Int32, rows))
	for p := range rows {
		ints(pos)[p] = int32(p)
		for i := range hd / 2 {
			s, c := math.Sincos(float64(p) * math.Pow(10000, -2*float64(i)/float64(hd)))
			floats(cos)[p*hd/2+i], floats(sin)[p*hd/2+i] = float32(c), float32(s)
		}
	}
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, heads, hd)}, dout: d.gradient(n, 3, rows, heads, hd),
		f: func(x []*torch.Tensor) *torch.Tensor { return torch.Rope(x[0], cos, sin, pos) },
	}.native(d)
}

// lengths of the sequences of a packed batch.
func lengths(n dims) []int64 {
	v := make([]int32, n["sequences"])
	measure.Index(v, 5, uint32(n["longest"]-n["shortest"]+1))
	out := make([]int64, len(v))
	for i, x := range v {
		out[i] = int64(x) + n["shortest"]
	}
	return out
}

func attention(d *desk, n dims) *measure.Native {
	offsets := []int32{0}
	for _, l := range lengths(n) {
		offsets = append(offsets, offsets[len(offsets)-1]+int32(l))
	}
	cu := d.keep(d.s.FromInt32(offsets, int64(len(offsets))))
	rows, heads, kv, hd := int64(offsets[len(offsets)-1]), n["heads"], n["kv_heads"], n["head_dim"]
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, heads, hd), d.uniform(2, 1, rows, kv, hd), d.uniform(3, 1, rows, kv, hd)},
		dout:   d.gradient(n, 4, rows, heads, hd),
		f: func(x []*torch.Tensor) *torch.Tensor {
			return torch.AttentionPacked(x[0], x[1], x[2], cu, nil, 1/math.Sqrt(float64(hd)))
		},
	}.native(d)
}

func decodeAttention(d *desk, n dims) *measure.Native {
	rows, heads, kv, hd, context := n["sequences"], n["heads"], n["kv_heads"], n["head_dim"], n["context"]
	slot, length := d.keep(d.s.Empty(torch.Int32, rows)), d.keep(d.s.Full(torch.Int32, float64(context), rows))
	for i := range rows {
		ints(slot)[i] = int32(i)
	}
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, rows, heads, hd), d.uniform(2, 1, rows, kv, context, hd), d.uniform(3, 1, rows, kv, context, hd)},
		f: func(x []*torch.Tensor) *torch.Tensor {
			return torch.AttentionCached(x[0], x[1], x[2], slot, length, 1/math.Sqrt(float64(hd)))
		},
	}.native(d)
}

func linear(d *desk, n dims) *measure.Native {
	w := d.uniform(2, 1, n["out"], n["in"])
	if n["half"] == 1 {
		w = d.keep(w.To(torch.BFloat16))
	}
	return layer{
		leaves: []*torch.Tensor{d.uniform(1, 1, n["rows"], n["in"]), w},
		f:      func(x []*torch.Tensor) *torch.Tensor { return torch.Linear(x[0], x[1], nil) },
	}.native(d)
}
