package selftest

import (
	"math"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// layer returns a kernel that tries an operation of a decoder: f with inputs of the given shapes. The operation is tried as
// in generation and with its backward pass, and compared with itself in float64, which LibTorch computes.
func layer(name string, shapes func(rows int64) [][]int64, f func(t *trial, in []*torch.Tensor) []*torch.Tensor) kernel {
	return kernel{name, floatBound, func(t *trial) error {
		var in, same []*torch.Tensor
		for i, shape := range shapes(t.rows) {
			x := t.tensor(uint32(i), shape...)
			in, same = append(in, x), append(same, x.To(torch.Float64))
		}
		var got []*torch.Tensor
		if err := t.work(0, func() error { got = f(t, in); return nil }); err != nil {
			return err
		}
		want := f(t, same)
		for i := range got {
			t.values += got[i].Numel()
			t.compareTensors(got[i], want[i])
		}
		t.backward(f, in, want)
		t.backward(f, same, want)
		for i := range in {
			t.compareTensors(in[i].Grad(), same[i].Grad())
		}
		return nil
	}}
}

// backward fills in the gradients of the tensors in `in`, for output gradients of the shapes of outs.
func (t *trial) backward(f func(t *trial, in []*torch.Tensor) []*torch.Tensor, in, outs []*torch.Tensor) {
	for _, x := range in {
		x.RequireGrad(true)
	}
	t.s.Grad(true, func() {
		got := f(t, in)
		var grads []*torch.Tensor
		for i, out := range outs {
			grads = append(grads, t.tensor(uint32(100+i), out.Shape()...).To(got[i].DType()))
		}
		torch.Backward(got, grads)
	})
}

// tensor returns numbers in [-1, 1) in the trial's type.
func (t *trial) tensor(stream uint32, shape ...int64) *torch.Tensor {
	n := int64(1)
	for _, size := range shape {
		n *= size
	}
	x := t.s.FromFloat32(uniform(stream, n), shape...)
	if t.real != torch.Float32 {
		x = x.To(t.real)
	}
	return x
}

func (t *trial) ints(v ...int32) *torch.Tensor { return t.s.FromInt32(v, int64(len(v))) }

func (t *trial) compareTensors(got, want *torch.Tensor) {
	compare(t, values(got), toFloat64(values(want)))
}

// values returns a tensor in float32. The rounding does not matter: errors of a wrong kernel are larger.
func values(x *torch.Tensor) []float32 {
	out := make([]float32, x.Numel())
	x.Detach().To(torch.Float32).Contiguous().Float32s(out)
	return out
}

func one(x *torch.Tensor) []*torch.Tensor { return []*torch.Tensor{x} }

const normEps = 1e-5

// layerKernels returns the operations of a decoder.
func layerKernels() []kernel {
	return append([]kernel{
		layer("linear", shaped([]int64{0, 67}, []int64{45, 67}, []int64{45}), func(_ *trial, in []*torch.Tensor) []*torch.Tensor {
			return one(torch.Linear(in[0], in[1], in[2]))
		}),
		layer("rms_norm", shaped([]int64{0, 577}, []int64{577}), func(_ *trial, in []*torch.Tensor) []*torch.Tensor {
			return one(torch.RMSNorm(in[0], in[1], 1, normEps))
		}),
		layer("add_rms_norm", shaped([]int64{0, 77}, []int64{0, 77}, []int64{77}), func(_ *trial, in []*torch.Tensor) []*torch.Tensor {
			sum, y := torch.AddRMSNorm(in[0], in[1], in[2], 0, normEps)
			return []*torch.Tensor{sum, y}
		}),
		layer("swiglu", shaped([]int64{0, 2 * 83}), func(_ *trial, in []*torch.Tensor) []*torch.Tensor { return one(torch.SwiGLU(in[0])) }),
		layer("geglu", shaped([]int64{0, 2 * 83}), func(_ *trial, in []*torch.Tensor) []*torch.Tensor { return one(torch.GeGLU(in[0])) }),
		layer("clamped_glu", shaped([]int64{0, 2 * 83}), func(_ *trial, in []*torch.Tensor) []*torch.Tensor { return one(torch.ClampedGLU(in[0])) }),
		layer("sigmoid_glu", shaped([]int64{0, 2 * 83}), func(_ *trial, in []*torch.Tensor) []*torch.Tensor { return one(torch.SigmoidGLU(in[0])) }),
		layer("heads", shaped([]int64{0, 8 * 27}, []int64{27}, []int64{27}), split),
		layer("heads normalised together", shaped([]int64{0, 8 * 27}, []int64{4 * 27}, []int64{2 * 27}), split),
		layer("attention_packed", shaped([]int64{41, 4, 40}, []int64{41, 2, 40}, []int64{41, 2, 40}), func(t *trial, in []*torch.Tensor) []*torch.Tensor {
			return one(torch.AttentionPacked(in[0], in[1], in[2], t.ints(0, 19, 23, 41), t.ints(-1, 7, 20), 0.3, 0, nil))
		}),
		layer("attention_packed in a window", shaped([]int64{41, 4, 40}, []int64{41, 2, 40}, []int64{41, 2, 40}),
			func(t *trial, in []*torch.Tensor) []*torch.Tensor {
				return one(torch.AttentionPacked(in[0], in[1], in[2], t.ints(0, 19, 23, 41), t.ints(-1, 7, 20), 0.3, 6, nil))
			}),
		layer("attention_packed with sinks", shaped([]int64{41, 4, 40}, []int64{41, 2, 40}, []int64{41, 2, 40}, []int64{4}),
			func(t *trial, in []*torch.Tensor) []*torch.Tensor {
				return one(torch.AttentionPacked(in[0], in[1], in[2], t.ints(0, 19, 23, 41), t.ints(-1, 7, 20), 0.3, 6, in[3]))
			}),
		layer("short_conv", shaped([]int64{41, 3 * 37}, []int64{37, 3}, []int64{37}), func(t *trial, in []*torch.Tensor) []*torch.Tensor {
			return one(torch.ShortConv{Weight: in[1], Bias: in[2]}.Packed(in[0], t.ints(0, 19, 23, 41), t.ints(-1, 7, 20)))
		}),
		layer("short_conv with silu", shaped([]int64{41, 37}, []int64{37, 3}), func(t *trial, in []*torch.Tensor) []*torch.Tensor {
			return one(torch.ShortConv{Weight: in[1], SiLU: true}.Packed(in[0], t.ints(0, 19, 23, 41), t.ints(-1, 7, 20)))
		}),
		layer("delta_rule", shaped([]int64{41, 2*9 + 2*21}, []int64{41, 4}, []int64{2}, []int64{2}), func(t *trial, in []*torch.Tensor) []*torch.Tensor {
			return one(ruleOf(in[2], in[3]).Packed(in[0], in[1], torch.PiecesOf(t.ints(0, 19, 23, 41), t.ints(-1, 7, 20))))
		}),
		layer("moe", shaped([]int64{0, 37}, []int64{0, 4}, []int64{4 * 2 * 11, 37}, []int64{4 * 37, 11}), mixture),
		layer("head_log_prob", shaped([]int64{0, 37}, []int64{301, 37}), func(t *trial, in []*torch.Tensor) []*torch.Tensor {
			logp, entropy := torch.HeadLogProb(in[0], in[1], t.ints(index(9, t.rows, 301)...), 0.7, 3)
			return []*torch.Tensor{logp, entropy}
		}),
		{"heads to the cache and its attention", floatBound, cachedAttention},
		{"heads to a cache in bf16 and its attention", floatBound, cachedAttentionBF16},
		{"short_conv with its cache", floatBound, cachedConvolution},
		{"short_conv and delta_rule with states", floatBound, recurrence},
		{"lora", floatBound, loraAdd},
		{"linear_bf16", amxBound, linearBF16},
		{"linear_bf16 with run.matmul bf16", floatBound, linearBF16Rounded},
		{"linear with run.matmul bf16", floatBound, linearRounded},
		{"moe_bf16", amxBound, expertsBF16},
	}, quantisedProducts()...)
}

// shaped returns the shapes of a layer's inputs, given the number of rows. It takes the place of 0 in shapes.
func shaped(shapes ...[]int64) func(rows int64) [][]int64 {
	return func(rows int64) [][]int64 {
		out := make([][]int64, len(shapes))
		for i, shape := range shapes {
			if out[i] = slices.Clone(shape); shape[0] == 0 {
				out[i][0] = rows
			}
		}
		return out
	}
}

// quantisedProducts returns the products with quantised matrices.
func quantisedProducts() (ks []kernel) {
	for _, q := range []struct {
		name weights.DType
		kind torch.QuantType
	}{{weights.Q4_0, torch.Q4_0}, {weights.Q4_1, torch.Q4_1}, {weights.Q5_0, torch.Q5_0}, {weights.Q5_1, torch.Q5_1}, {weights.Q8_0, torch.Q8_0},
		{weights.Q4_K, torch.Q4_K}, {weights.Q5_K, torch.Q5_K}, {weights.Q6_K, torch.Q6_K}} {
		ks = append(ks, kernel{"quantised " + string(q.name), floatBound, func(t *trial) error { return t.quantisedProduct(q.name, q.kind) }})
	}
	return ks
}

// split makes four heads of queries, and two of keys and of values, from a product. 22 of their 27 dimensions are rotated.
func split(t *trial, in []*torch.Tensor) []*torch.Tensor {
	q, k, v := t.heads(in[1], in[2], index(8, in[0].Size(0), positions)).Split(in[0])
	return []*torch.Tensor{q, k, v}
}

const positions = 41 // number of positions that heads can have

func (t *trial) heads(q, k *torch.Tensor, pos []int32) torch.Heads {
	const half = 11
	var cos, sin []float32
	for p := range positions {
		for i := range half {
			s, c := math.Sincos(float64(p) * math.Pow(100, -float64(i)/half))
			cos, sin = append(cos, float32(c)), append(sin, float32(s))
		}
	}
	return torch.Heads{Heads: 4, KVHeads: 2, QNorm: q, KNorm: k, Offset: 1, Eps: normEps,
		Cos: t.s.FromFloat32(cos, positions, half), Sin: t.s.FromFloat32(sin, positions, half), Pos: t.ints(pos...)}
}

// mixture computes a mixture of 4 experts, 2 per token. The chosen experts are given, because a router in float64 could choose
// other experts of nearly equal weight.
func mixture(t *trial, in []*torch.Tensor) []*torch.Tensor {
	var given []int32
	for _, e := range index(7, in[0].Size(0), 4) {
		given = append(given, e, (e+1)%4)
	}
	chosen, weight := torch.Route(in[1].To(torch.Float32), torch.Routing{PerToken: 2, Normalise: true, Given: t.s.FromInt32(given, in[0].Size(0), 2)})
	return one(torch.Experts(in[0], chosen, weight, torch.MLPs{GateUp: in[2], Down: in[3]}))
}

// cachedAttention attends to the keys and values of a product, in scattered blocks of a cache.
func cachedAttention(t *trial) error {
	how := newCachedTrial(t)
	var got *torch.Tensor
	err := t.work(how.values(), func() error { got, _ = how.attend(t.real, t.real); return nil })
	want, _ := how.attend(torch.Float64, torch.Float64)
	t.compareTensors(got, want)
	return err
}

// cachedAttentionBF16 does the same on a CPU with a cache in bfloat16, as sampling does with engine.cache_dtype: bf16.
func cachedAttentionBF16(t *trial) error {
	if t.s.Device().IsCUDA() {
		return cachedAttention(t)
	}
	how := newCachedTrial(t)
	var got *torch.Tensor
	var caches [2]*torch.Tensor
	err := t.work(how.values(), func() error { got, caches = how.attend(t.real, torch.BFloat16); return nil })
	_, whole := how.attend(t.real, t.real)
	for i, c := range caches {
		t.compareTensors(c.To(torch.Float64), whole[i].To(torch.BFloat16).To(torch.Float64))
	}
	t.compareTensors(got, how.read(how.queries(torch.Float64), [2]*torch.Tensor{caches[0].To(torch.Float64), caches[1].To(torch.Float64)}))
	return err
}

// cachedTrial has the rows of two sequences and their places in a cache.
type cachedTrial struct {
	*trial
	sequence, pos, length []int32
	table                 *torch.Tensor
}

const cachedTokens, cachedHD, cachedBlock = 41, 27, 8

func newCachedTrial(t *trial) cachedTrial {
	c := cachedTrial{trial: t, table: t.s.FromInt32([]int32{5, 0, 3, 1, 2, 4}, 2, 3)}
	for i := range int32(cachedTokens) {
		c.sequence, c.pos, c.length = append(c.sequence, i%2), append(c.pos, i/2), append(c.length, i/2+1)
	}
	return c
}

func (c cachedTrial) values() int64 { return cachedTokens * 4 * cachedHD }

func (c cachedTrial) empty(keys torch.DType) [2]*torch.Tensor {
	return [2]*torch.Tensor{c.s.Zeros(keys, 6, 2, cachedBlock, cachedHD), c.s.Zeros(keys, 6, 2, cachedBlock, cachedHD)}
}

// write writes the product's keys and values to the caches and returns its queries.
func (c cachedTrial) write(real torch.DType, caches [2]*torch.Tensor) *torch.Tensor {
	how := c.heads(c.tensor(1, cachedHD).To(real), c.tensor(2, cachedHD).To(real), c.pos)
	return how.Cache(c.tensor(0, cachedTokens, 8*cachedHD).To(real), caches[0], caches[1], c.table, c.ints(c.sequence...))
}

func (c cachedTrial) queries(real torch.DType) *torch.Tensor { return c.write(real, c.empty(real)) }

func (c cachedTrial) read(q *torch.Tensor, caches [2]*torch.Tensor) *torch.Tensor {
	return torch.AttentionCached(q, caches[0], caches[1], c.table, c.ints(c.sequence...), c.ints(c.length...), 0.3, 11, nil)
}

// attend writes the product to caches of the type keys, and attends to it.
func (c cachedTrial) attend(real, keys torch.DType) (out *torch.Tensor, caches [2]*torch.Tensor) {
	caches = c.empty(keys)
	return c.read(c.write(real, caches), caches), caches
}

// cachedConvolution applies a short convolution to two sequences in scattered blocks of a cache, in two passes.
func cachedConvolution(t *trial) error {
	const tokens, d, block = 41, 37, 8
	var sequence, pos []int32
	for i := range int32(tokens) {
		sequence, pos = append(sequence, i%2), append(pos, i/2)
	}
	table := t.s.FromInt32([]int32{5, 0, 3, 1, 2, 4}, 2, 3)
	convolve := func(real torch.DType) *torch.Tensor {
		conv := torch.ShortConv{Weight: t.tensor(1, d, 3).To(real)}
		product, cache, all := t.tensor(0, tokens, 3*d).To(real), t.s.Zeros(real, 6, 1, block, d), t.s.Empty(real, tokens, d)
		for from, to := int64(0), int64(15); from < tokens; from, to = to, tokens {
			all.Narrow(0, from, to-from).CopyFrom(conv.Cached(product.Narrow(0, from, to-from), cache, table, t.ints(sequence[from:to]...),
				t.ints(pos[from:to]...)))
		}
		return all
	}
	var got *torch.Tensor
	err := t.work(tokens*d, func() error { got = convolve(t.real); return nil })
	t.compareTensors(got, convolve(torch.Float64))
	return err
}

// ruleOf has one head of keys of size 9, and two of values of size 21.
func ruleOf(aLog, dtBias *torch.Tensor) torch.DeltaRule {
	wide := accumulateType(aLog.DType())
	return torch.DeltaRule{KeyHeads: 1, ValueHeads: 2, KeyDim: 9, ValueDim: 21, ALog: aLog.To(wide), DtBias: dtBias.To(wide)}
}

func accumulateType(real torch.DType) torch.DType {
	if real == torch.Float64 {
		return real
	}
	return torch.Float32
}

// recurrence advances the states of a convolution and of the gated delta rule after it. There are two sequences and two passes.
func recurrence(t *trial) error {
	const tokens, channels = 41, 2*9 + 2*21
	var slot, pos []int32
	seen := map[bool]int32{} // rows of each sequence
	for i := range int32(tokens) {
		second := i >= 9 && i < 15 || i >= 24
		slot = append(slot, map[bool]int32{false: 2, true: 0}[second])
		pos = append(pos, seen[second])
		seen[second]++
	}
	recur := func(real torch.DType) []*torch.Tensor {
		conv, rule := torch.ShortConv{Weight: t.tensor(1, channels, 3).To(real), SiLU: true}, ruleOf(t.tensor(3, 2).To(real), t.tensor(4, 2).To(real))
		u, ba := t.tensor(0, tokens, channels).To(real), t.tensor(2, tokens, 4).To(real)
		inputs, states := t.s.Zeros(real, 3, 2, channels), t.s.Zeros(accumulateType(real), 3, 2, 9, 21)
		x, y := t.s.Empty(real, tokens, channels), t.s.Empty(real, tokens, 2*21)
		for from, to := int64(0), int64(15); from < tokens; from, to = to, tokens {
			rows := func(of *torch.Tensor) *torch.Tensor { return of.Narrow(0, from, to-from) }
			rows(x).CopyFrom(conv.Advance(rows(u), inputs, t.ints(slot[from:to]...), t.ints(pos[from:to]...)))
			rows(y).CopyFrom(rule.Advance(rows(x), rows(ba), states, t.ints(slot[from:to]...), t.ints(pos[from:to]...)))
		}
		return []*torch.Tensor{x, y}
	}
	var got []*torch.Tensor
	err := t.work(tokens*(channels+2*21), func() error { got = recur(t.real); return nil })
	for i, want := range recur(torch.Float64) {
		t.compareTensors(got[i], want)
	}
	return err
}

// loraAdd adds one of two adapters to some rows.
func loraAdd(t *trial) error {
	const k, n, r = 37, 29, 3
	x, y := t.tensor(0, t.rows, k), t.tensor(1, t.rows, n)
	part := []torch.LoRAPart{{From: 0, N: n, R: r, Scale: 0.5}}
	var adapters []torch.LoRA
	for i := range uint32(2) {
		adapters = append(adapters, torch.LoRA{Values: t.s.FromFloat32(uniform(2+i, r*(k+n)), r*(k+n)), Parts: part})
	}
	which := index(5, t.rows, 3) // 2 stands for no adapter
	want := toFloat64(values(y))
	for row, a := range which {
		if a == 2 {
			which[row] = -1
			continue
		}
		v := values(adapters[a].Values)
		for at := range r {
			down := 0.0
			for i, xi := range values(x.Select(0, int64(row))) {
				down += float64(v[at*k+i]) * float64(xi)
			}
			for j := range n {
				want[row*n+j] += 0.5 * float64(v[r*k+j*r+at]) * down
			}
		}
	}
	err := t.work(t.rows*n, func() error { torch.LoRAAdd_(y, x, adapters, t.ints(which...)); return nil })
	compare(t, values(y), want)
	return err
}

// linearBF16 multiplies by weights in bfloat16, as sampling on the CPU does with engine.dtype: bf16.
func linearBF16(t *trial) error { return t.linearBF16(t.tensor(0, t.rows, 67)) }

// linearBF16Rounded does the same with run.matmul bf16, if that can be enabled. x is bfloat16 already, so the rounding does not
// change it.
func linearBF16Rounded(t *trial) error {
	defer t.roundFactors()()
	return t.linearBF16(t.tensor(0, t.rows, 67).To(torch.BFloat16).To(t.real))
}

func (t *trial) linearBF16(x *torch.Tensor) error {
	w := t.tensor(1, 45, 67).To(torch.BFloat16)
	var y *torch.Tensor
	err := t.work(t.rows*45, func() error { y = torch.Linear(x, w.To(weightType(t)), nil); return nil })
	t.compareTensors(y, torch.Linear(x.To(torch.Float64), w.To(torch.Float64), nil))
	return err
}

// roundFactors rounds factors on the CPU until the function that it returns is called.
func (t *trial) roundFactors() (undo func()) {
	if t.s.Device().IsCUDA() {
		return func() {}
	}
	torch.SetRoundFactors(true)
	return func() { torch.SetRoundFactors(false) }
}

// linearRounded tries a linear layer in training, forward and backward, whose factors are rounded to bfloat16 if that is enabled
// on the device. The factors are bfloat16 already, so the rounding does not change them.
func linearRounded(t *trial) error {
	defer t.roundFactors()()
	in := []*torch.Tensor{t.tensor(0, t.rows, 67), t.tensor(1, 45, 67), t.tensor(2, t.rows, 45)}
	pass := func(dtype torch.DType) (results []*torch.Tensor) {
		var x []*torch.Tensor
		for _, of := range in {
			x = append(x, of.To(torch.BFloat16).To(dtype))
		}
		x[0].RequireGrad(true)
		x[1].RequireGrad(true)
		t.s.Training(func() {
			t.s.Grad(true, func() {
				y := torch.Linear(x[0], x[1], nil)
				torch.Backward(one(y), one(x[2]))
				results = []*torch.Tensor{y, x[0].Grad(), x[1].Grad()}
			})
		})
		return results
	}
	var got []*torch.Tensor
	err := t.work(t.rows*45, func() error { got = pass(t.real); return nil })
	for i, want := range pass(torch.Float64) {
		t.compareTensors(got[i], want)
	}
	return err
}

// expertsBF16 tries experts with weights in bfloat16.
func expertsBF16(t *trial) error {
	in := []*torch.Tensor{t.tensor(0, t.rows, 37), t.tensor(1, t.rows, 4), t.tensor(2, 4*2*11, 37).To(torch.BFloat16), t.tensor(3, 4*37, 11).To(torch.BFloat16)}
	same := make([]*torch.Tensor, len(in))
	for i, x := range in {
		same[i] = x.To(torch.Float64)
	}
	in[2], in[3] = in[2].To(weightType(t)), in[3].To(weightType(t))
	var y *torch.Tensor
	err := t.work(t.rows*37, func() error { y = mixture(t, in)[0]; return nil })
	t.compareTensors(y, mixture(t, same)[0])
	return err
}

// weightType returns bfloat16 if it can be multiplied by the trial's type; otherwise it returns the trial's type.
func weightType(t *trial) torch.DType {
	if t.s.Device().IsCUDA() {
		return t.real
	}
	return torch.BFloat16
}

// quantisedProduct widens a matrix, multiplies by it, and computes the backward pass.
func (t *trial) quantisedProduct(name weights.DType, kind torch.QuantType) error {
	const n, k = 13, 512
	size := name.RowBytes(k)
	data := make([]byte, n*size)
	for i, v := range index(uint32(kind), n*size, 256) {
		data[i] = byte(v) & 0x3b // the mask keeps the scales of blocks finite
	}
	exact := make([]float32, n*k)
	name.Decode(exact, data)
	part := torch.QuantPart{Type: kind, Blocks: t.s.FromBytes(data, torch.Uint8, n, size)}
	w, want := torch.NewQuantised(k, t.real, part), t.s.FromFloat32(exact, n, k).To(torch.Float64)
	compare(t, values(torch.Embedding(w, t.ints(index(3, n, n)...))), toFloat64(values(torch.Embedding(want, t.ints(index(3, n, n)...)))))
	x := t.tensor(0, t.rows, k)
	same := x.To(torch.Float64)
	var y *torch.Tensor
	if err := t.work(t.rows*n, func() error { y = torch.Linear(x, w, nil); return nil }); err != nil {
		return err
	}
	t.compareTensors(y, torch.Linear(same, want, nil))
	grad := func(x *torch.Tensor, w torch.Matrix) *torch.Tensor {
		t.backward(func(_ *trial, in []*torch.Tensor) []*torch.Tensor { return one(torch.Linear(in[0], w, nil)) }, one(x), one(y))
		return x.Grad()
	}
	t.compareTensors(grad(x, w), grad(same, want))
	return nil
}
