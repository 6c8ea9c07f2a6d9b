package learner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/mgrpo/oracle"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// objectives to compare with the oracle; each exercises another term or branch.
var objectives = []struct {
	name       string
	set        func(*mgrpo.Objective)
	recomputed bool
	reference  bool
}{
	{name: "token", set: func(*mgrpo.Objective) {}},
	{name: "token_mean, dual clip", set: func(c *mgrpo.Objective) { c.Aggregation, c.DualClip = "token_mean", new(1.5) }},
	{name: "constant, sequence_product", set: func(c *mgrpo.Objective) {
		c.Aggregation, c.MaxLength, c.Ratio = "constant", 64, "sequence_product"
	}},
	{name: "sequence_geometric", set: func(c *mgrpo.Objective) { c.Ratio = "sequence_geometric" }},
	{name: "cispo", set: func(c *mgrpo.Objective) { c.Ratio, c.CISPOLow, c.CISPOHigh = "cispo", new(0.1), 0.2 }},
	{name: "kl and entropy", set: func(c *mgrpo.Objective) { c.KL, c.KLCoef, c.EntropyCoef = "k3", 0.3, 0.05 }, reference: true},
	{name: "entropy alone", set: func(c *mgrpo.Objective) { c.EntropyCoef = 0.05 }},
	{name: "recomputed with importance weights", set: func(c *mgrpo.Objective) { c.TISCap = new(1.1) }, recomputed: true},
}

// TestUpdateAgainstOracle compares loss, statistics and the gradient of every parameter with the float64
// objective: its derivatives by log-prob and entropy are sent backward through the same network.
func TestUpdateAgainstOracle(t *testing.T) { cudatest.Each(t, testUpdateAgainstOracle) }

func testUpdateAgainstOracle(t *testing.T, device string) {
	for _, c := range objectives {
		t.Run(c.name, func(t *testing.T) {
			l := tinyLearner(t, device, func(o *Options) {
				c.set(&o.Objective)
				o.Recomputed = c.recomputed
			})
			if c.reference { // models of one learner live on one device in a run; any will do here
				ref := tinyModel(t, device, 2)
				t.Cleanup(func() { ref.Close(context.Background()) })
				if err := l.SetReference(t.Context(), ref); err != nil {
					t.Fatal(err)
				}
			}
			batch := tinyBatch(t, l, 0.6)
			grad, r := gradientOf(t, l, batch)
			want, wantGrad := ofOracle(t, l, byID(batch))
			for name, w := range want.Stats.Values() {
				got, ok := r.Values[name]
				if !ok {
					t.Errorf("%s is not reported", name)
				}
				closeTo(t, name, got, w, 2e-6)
			}
			if d := apart(grad, wantGrad, 1); !(d < 1e-5) {
				t.Errorf("the gradient is off by %v", d)
			}
			if c.name == "token" && (want.Stats.ClipFracLow == 0 || want.Stats.ClipFracHigh == 0) {
				t.Error("the case clips nothing")
			}
		})
	}
}

func closeTo(t *testing.T, name string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance*max(1, math.Abs(want))) {
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

// packWhole packs sequences without sharing rows: each has all of its tokens.
func packWhole(s *torch.Scope, run []*Sequence) packed {
	var ids, pos, source, target []int32
	cu := []int32{0}
	for _, q := range run {
		first := int32(len(ids))
		for t, id := range q.Tokens {
			ids, pos = append(ids, id), append(pos, int32(t))
		}
		for _, t := range q.trained() {
			source, target = append(source, first+int32(t)-1), append(target, q.Tokens[t])
		}
		cu = append(cu, int32(len(ids)))
	}
	vector := func(v []int32) *torch.Tensor { return s.FromInt32(v, int64(len(v))) }
	return packed{
		in:     model.Packed{IDs: vector(ids), Pos: vector(pos), Cu: vector(cu)},
		source: vector(source), target: vector(target), n: len(target),
	}
}

// ofOracle evaluates the float64 loss on the model's own log-probs of whole sequences and sends its derivatives
// backward.
func ofOracle(t *testing.T, l *Learner, batch []*Sequence) (oracle.LossResult, []float32) {
	t.Helper()
	ctx := context.Background()
	var out oracle.LossResult
	if err := l.zeroGrad(ctx); err != nil {
		t.Fatal(err)
	}
	err := l.model.Device.Do(ctx, func(s *torch.Scope) error {
		b := packWhole(s, batch)
		var err error
		l.model.ForwardBackward(s, b.in, func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor) {
			logp, entropy := l.head(l.model, hidden.IndexSelect(0, b.source), b)
			n := int64(b.n)
			current, spread := make([]float32, n), make([]float32, n)
			logp.Detach().Float32s(current)
			entropy.Detach().Float32s(spread)
			out, err = oracle.Loss(l.opt.Objective, oracleBatch(l, batch, current, spread))
			if err != nil {
				out.DLogProb, out.DEntropy = make([]float64, n), make([]float64, n)
			}
			vector := func(v []float64) *torch.Tensor {
				w := make([]float32, n)
				for i := range w {
					w[i] = float32(v[i])
				}
				return s.FromFloat32(w, n)
			}
			return []*torch.Tensor{logp, entropy}, []*torch.Tensor{vector(out.DLogProb), vector(out.DEntropy)}
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out, readFlat(t, l, l.grad.sum)
}

// oracleBatch returns the batch with trained tokens only, as the head gets it.
func oracleBatch(l *Learner, batch []*Sequence, current, entropy []float32) oracle.Batch {
	wide := func(v []float32) (out []float64) {
		for _, x := range v {
			out = append(out, float64(x))
		}
		return out
	}
	b := oracle.Batch{CuSeqlens: []int{0}, New: wide(current), Entropy: wide(entropy),
		Old: wide(gather(batch, func(q *Sequence) []float32 { return q.old }))}
	if l.opt.Recomputed {
		b.Behaviour = wide(gather(batch, func(q *Sequence) []float32 { return q.Behaviour }))
	}
	if l.ref != nil {
		b.Ref = wide(gather(batch, func(q *Sequence) []float32 { return q.ref }))
	}
	for _, q := range batch {
		n := b.CuSeqlens[len(b.CuSeqlens)-1] + len(q.trained())
		b.CuSeqlens = append(b.CuSeqlens, n)
		b.Group, b.Weight, b.Advantage = append(b.Group, q.Group), append(b.Weight, q.Weight), append(b.Advantage, q.Advantage)
	}
	b.Mask = slices.Repeat([]bool{true}, len(b.New))
	return b
}

// TestMicroBatchesAddUp: coefficients refer to the whole batch, so the size of micro-batches does not change the gradient.
func TestMicroBatchesAddUp(t *testing.T) { cudatest.Each(t, testMicroBatchesAddUp) }

func testMicroBatchesAddUp(t *testing.T, device string) {
	kl := func(o *Options) { o.Objective.EntropyCoef = 0.02 }
	whole := tinyLearner(t, device, kl)
	batch := tinyBatch(t, whole, 0.6)
	want, wantReport := gradientOf(t, whole, batch)
	for _, tokens := range []int{1, 12, 40} {
		l := tinyLearner(t, device, func(o *Options) { kl(o); o.MicroBatchTokens = tokens })
		got, r := gradientOf(t, l, batch)
		if d := apart(got, want, 1); !(d < cutTolerance(device)) {
			t.Errorf("%d tokens per micro-batch: the gradient is off by %v", tokens, d)
		}
		for name, w := range wantReport.Values {
			closeTo(t, name, r.Values[name], w, cutTolerance(device))
		}
	}
}

// TestWatch: every micro-batch of a step is counted, including those without a gradient. Passes for old log-probs are counted separately.
func TestWatch(t *testing.T) {
	l := tinyLearner(t, "cpu", func(o *Options) { o.Recomputed, o.MicroBatchTokens = true, 1 })
	batch := tinyBatch(t, l, 0.6) // the third has advantage 0
	var got [][2]int
	l.Watch(func(done, total int) { got = append(got, [2]int{done, total}) })
	if _, err := update(t, l, batch); err != nil {
		t.Fatal(err)
	}
	l.Watch(nil)
	if _, err := update(t, l, batch); err != nil {
		t.Fatal(err)
	}
	read := 0 // by the update
	for _, q := range batch {
		if q.Weight > 0 && len(q.trained()) > 0 {
			read++
		}
	}
	var want [][2]int
	for _, of := range []int{len(batch), read} {
		for i := range of {
			want = append(want, [2]int{i + 1, of})
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("told of %v, want %v", got, want)
	}
}

// TestMultiplicityEqualsCopies: a trajectory of weight 3 has the effect of three trajectories with the same tokens.
func TestMultiplicityEqualsCopies(t *testing.T) { cudatest.Each(t, testMultiplicityEqualsCopies) }

func testMultiplicityEqualsCopies(t *testing.T, device string) {
	l := tinyLearner(t, device, nil)
	batch := tinyBatch(t, l, 0.6)
	want, wantReport := gradientOf(t, l, batch)
	var copies []*Sequence
	for _, q := range batch {
		for i := range int(q.Weight) {
			c := *q
			c.ID, c.Weight = fmt.Sprintf("%s/copy%d", q.ID, i), 1
			c.TrajectoryID = c.ID
			copies = append(copies, &c)
		}
	}
	got, r := gradientOf(t, l, copies)
	if d := apart(got, want, 1); !(d < cutTolerance(device)) {
		t.Errorf("the gradient is off by %v", d)
	}
	for _, name := range []string{"loss", "loss_weighted_tokens", "loss_groups", "ratio_mean", "clip_frac_low", "clip_frac_high", "approx_kl_k3", "entropy_mean"} {
		closeTo(t, name, r.Values[name], wantReport.Values[name], cutTolerance(device))
	}
	if r.Values["loss_trajectories"] == wantReport.Values["loss_trajectories"] {
		t.Error("nothing was copied")
	}
}

// TestZeroAdvantageStaysInTheNormaliser: a trajectory without advantage adds no gradient, but
// it counts in its group's weight and in the statistics.
func TestZeroAdvantageStaysInTheNormaliser(t *testing.T) {
	cudatest.Each(t, testZeroAdvantageStaysInTheNormaliser)
}

func testZeroAdvantageStaysInTheNormaliser(t *testing.T, device string) {
	l := tinyLearner(t, device, nil)
	batch := tinyBatch(t, l, 0.6)[:5]
	for _, q := range batch {
		q.Group, q.Weight = 0, 1
	}
	with, r := gradientOf(t, l, batch) // the third has advantage 0
	without, bare := gradientOf(t, l, slices.Concat(batch[:2], batch[3:]))
	if d := apart(with, without, 4.0/5); !(d < 1e-6) {
		t.Errorf("the gradient differs by %v from 4/5 of the gradient without the trajectory", d)
	}
	if more := r.Values["loss_tokens"] - bare.Values["loss_tokens"]; more != float64(len(batch[2].trained())) {
		t.Errorf("the statistics count %v more tokens, want %d", more, len(batch[2].trained()))
	}
	if r.Values["batch_tokens"] != bare.Values["batch_tokens"] {
		t.Error("its tokens went through a backward pass")
	}
}

// TestRecomputedOld: recomputed old log-probs come from the trainer itself. So the first
// update's ratio is 1, and the gap to the sampler is only a statistic.
func TestRecomputedOld(t *testing.T) { cudatest.Each(t, testRecomputedOld) }

func testRecomputedOld(t *testing.T, device string) {
	l := tinyLearner(t, device, func(o *Options) { o.Recomputed = true })
	batch := tinyBatch(t, l, 0.6)
	_, r := gradientOf(t, l, batch)
	// A pass that records gradients multiplies matrices in another order, see docs/decisions/001-row-independent-cpu.md.
	const rounding = 1e-5
	closeTo(t, "ratio_min", r.Values["ratio_min"], 1, rounding)
	closeTo(t, "ratio_max", r.Values["ratio_max"], 1, rounding)
	if r.Values["behaviour_gap_mean"] < 0.1 {
		t.Errorf("behaviour_gap_mean %v", r.Values["behaviour_gap_mean"])
	}
}

// TestRecomputedOldRounds: with run.matmul bf16, the pass that recomputes old log-probs rounds
// the factors of products in layers and head, as the update does.
func TestRecomputedOldRounds(t *testing.T) {
	if !torch.SetRoundFactors(true) {
		t.Skip("neither AMX nor avx512_bf16 is in use")
	}
	defer torch.SetRoundFactors(false)
	const rounding = 2e-3 // a sum whose last bit differs may be rounded to the next bfloat16; without the head it is 0.016
	l := tinyLearner(t, "cpu", func(o *Options) { o.Recomputed = true })
	_, r := gradientOf(t, l, tinyBatch(t, l, 0.6))
	closeTo(t, "ratio_min", r.Values["ratio_min"], 1, rounding)
	closeTo(t, "ratio_max", r.Values["ratio_max"], 1, rounding)
}

// TestGapOfOneVersion: gap_mean counts only log-probs that were sampled with the current weights.
func TestGapOfOneVersion(t *testing.T) { cudatest.Each(t, testGapOfOneVersion) }

func testGapOfOneVersion(t *testing.T, device string) {
	l := tinyLearner(t, device, nil)
	batch := tinyBatch(t, l, 0)
	_, r := gradientOf(t, l, batch)
	const rounding = 1e-5
	closeTo(t, "gap_mean of the same weights", r.Values["gap_mean"], 0, rounding)
	batch[0].Stale = true
	for i := range batch[0].Behaviour {
		batch[0].Behaviour[i]--
	}
	_, r = gradientOf(t, l, batch)
	closeTo(t, "gap_mean of a batch with a stale sequence", r.Values["gap_mean"], 0, rounding)
	for _, q := range batch {
		q.Stale = true
	}
	_, r = gradientOf(t, l, batch)
	if gap, known := r.Values["gap_mean"]; known {
		t.Errorf("gap_mean is %v although every sequence is stale", gap)
	}
}

// TestCheckpointedActivations: recomputing them changes nothing.
func TestCheckpointedActivations(t *testing.T) { cudatest.Each(t, testCheckpointedActivations) }

func testCheckpointedActivations(t *testing.T, device string) {
	plain := tinyLearner(t, device, nil)
	batch := tinyBatch(t, plain, 0.6)
	want, _ := gradientOf(t, plain, batch)
	got, _ := gradientOf(t, tinyLearner(t, device, func(o *Options) { o.CheckpointActivations = true }), batch)
	if d := apart(got, want, 1); !(d < 1e-6) {
		t.Errorf("the gradient is off by %v", d)
	}
}

// TestOrderOfArrivalDoesNotMatter: packing sorts by id, so on the CPU the gradient is bit for bit the same in every order of arrival.
func TestOrderOfArrivalDoesNotMatter(t *testing.T) {
	l := tinyLearner(t, "cpu", func(o *Options) { o.MicroBatchTokens = 24 })
	batch := tinyBatch(t, l, 0.6)
	want, wantReport := gradientOf(t, l, batch)
	for seed := range uint64(3) {
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
		got, r := gradientOf(t, l, batch)
		if !slices.Equal(got, want) {
			t.Errorf("order %d: the gradient differs by %v", seed, apart(got, want, 1))
		}
		if !maps.Equal(r.Values, wantReport.Values) {
			t.Errorf("order %d: %v, want %v", seed, r.Values, wantReport.Values)
		}
	}
}

// TestMaskedPositionsAreNotRead: masked tokens and dropped trajectories may have any values.
func TestMaskedPositionsAreNotRead(t *testing.T) {
	l := tinyLearner(t, "cpu", nil)
	batch := tinyBatch(t, l, 0.6)
	want, _ := gradientOf(t, l, batch)
	dirty := clone(batch)
	bad := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}
	for _, q := range dirty {
		for i := range q.Tokens {
			if !q.Sampled[i] || q.Weight == 0 {
				q.Behaviour[i] = bad[i%3]
			}
		}
		if q.Weight == 0 {
			q.Advantage = math.NaN()
		}
	}
	if got, _ := gradientOf(t, l, dirty); !slices.Equal(got, want) {
		t.Errorf("the gradient differs by %v", apart(got, want, 1))
	}
}

// TestRefusedUpdateChangesNothing: bad inputs and gradients that float32 cannot hold leave weights, moments
// and the count of updates as they were, and the next good batch is learned from.
func TestRefusedUpdateChangesNothing(t *testing.T) { cudatest.Each(t, testRefusedUpdateChangesNothing) }

func testRefusedUpdateChangesNothing(t *testing.T, device string) {
	ctx := context.Background()
	for _, c := range []struct {
		name  string
		want  string
		spoil func(l *Learner, batch []*Sequence)
	}{
		{"sampler's log-prob", "non_finite_input: logp_old", func(_ *Learner, b []*Sequence) { b[1].Behaviour[b[1].trained()[2]] = float32(math.NaN()) }},
		{"advantage", "non_finite_input: advantage", func(_ *Learner, b []*Sequence) { b[3].Advantage = math.Inf(-1) }},
		{"weight", "bad_weight", func(_ *Learner, b []*Sequence) { b[0].Weight = -1 }},
		{"probability above 1", "positive_logprob", func(_ *Learner, b []*Sequence) { b[0].Behaviour[b[0].trained()[0]] = 0.1 }},
		{"derivative beyond float32", "non_finite_value", func(l *Learner, _ []*Sequence) { l.opt.Objective.EntropyCoef = 1e42 }},
		{"gradient beyond float32", "the gradient's norm is", func(l *Learner, _ []*Sequence) { l.opt.Objective.EntropyCoef = 3e39 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := tinyLearner(t, device, func(o *Options) { o.MicroBatchTokens = 24 })
			good := tinyBatch(t, l, 0.3)
			learn := func(batch []*Sequence) Report {
				if err := l.Prepare(ctx, batch); err != nil {
					t.Fatal(err)
				}
				r, err := l.Update(ctx, batch, 1e-3)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			if r := learn(good); r.Refused != nil {
				t.Fatal(r.Refused)
			}
			before := [][]float32{readFlat(t, l, l.model.Master.Tensor), readFlat(t, l, l.State.m.Tensor), readFlat(t, l, l.State.v.Tensor)}
			bad, objective := clone(good), l.opt.Objective
			c.spoil(l, bad)
			r := learn(bad)
			if r.Refused == nil || r.Skipped {
				t.Fatalf("learned from it: %v", r)
			}
			if !strings.Contains(r.Refused.Error(), c.want) {
				t.Errorf("refused because of: %v; want %s", r.Refused, c.want)
			}
			l.opt.Objective = objective
			for i, flat := range []*torch.Tensor{l.model.Master.Tensor, l.State.m.Tensor, l.State.v.Tensor} {
				if !slices.Equal(readFlat(t, l, flat), before[i]) {
					t.Errorf("%s changed", []string{"weights", "first moment", "second moment"}[i])
				}
			}
			if l.State.Steps() != 1 {
				t.Errorf("%d updates are counted, want 1", l.State.Steps())
			}
			if r := learn(good); r.Refused != nil || slices.Equal(readFlat(t, l, l.model.Master.Tensor), before[0]) {
				t.Errorf("the next batch was not learned from: %v", r.Refused)
			}
		})
	}
}

// TestBFloat16 computes in bf16 with float32 master weights: the gradient is close to the
// float32 learner's, also right after a refused update.
func TestBFloat16(t *testing.T) { cudatest.Each(t, testBFloat16) }

func testBFloat16(t *testing.T, device string) {
	ctx := context.Background()
	single := tinyLearner(t, device, nil)
	batch := tinyBatch(t, single, 0.3)
	want, _ := gradientOf(t, single, batch)
	half := single.opt
	half.MicroBatchTokens = 24
	l := tinyLearnerOf(t, tinyModelIn(t, device, 1, model.Options{Compute: torch.BFloat16}), half)
	bad := clone(batch)
	bad[1].Behaviour[bad[1].trained()[2]] = float32(math.NaN())
	if err := l.Prepare(ctx, bad); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Update(ctx, bad, 0); err != nil || r.Refused == nil {
		t.Fatalf("learned from it: %v, %v", r, err)
	}
	got, _ := gradientOf(t, l, batch)
	if d := apart(got, want, 1); !(d < 0.1) {
		t.Errorf("the gradient is off by %v", d)
	}
}

// TestHalfCopyFollowsTheMaster: an update renews the bf16 copy that generation reads. The copy does not change what is learned.
func TestHalfCopyFollowsTheMaster(t *testing.T) {
	ctx := context.Background()
	plain := tinyLearner(t, "cpu", nil)
	l := tinyLearnerOf(t, tinyModelIn(t, "cpu", 1, model.Options{Compute: torch.Float32, HalfCopy: true}), plain.opt)
	for _, l := range []*Learner{plain, l} {
		batch := tinyBatch(t, l, 0.3)
		if err := l.Prepare(ctx, batch); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Update(ctx, batch, 0.01); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(masterOf(t, l.model), masterOf(t, plain.model)) {
		t.Error("training with a bf16 copy ended with other weights")
	}
	wantRounded(t, l.model)
}

// TestNothingToLearnIsSkipped: a batch that is empty or has only advantages of 0 makes no update, not even weight decay.
func TestNothingToLearnIsSkipped(t *testing.T) { cudatest.Each(t, testNothingToLearnIsSkipped) }

func testNothingToLearnIsSkipped(t *testing.T, device string) {
	l := tinyLearner(t, device, nil)
	batch := tinyBatch(t, l, 0.3)
	for _, q := range batch {
		q.Advantage = 0
	}
	before := readFlat(t, l, l.model.Master.Tensor)
	for _, b := range [][]*Sequence{batch, nil, batch[5:]} {
		if err := l.Prepare(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		r, err := l.Update(context.Background(), b, 1)
		if err != nil || !r.Skipped || r.Refused != nil {
			t.Errorf("%d sequences: %+v, %v", len(b), r, err)
		}
	}
	if !slices.Equal(readFlat(t, l, l.model.Master.Tensor), before) || l.State.Steps() != 0 {
		t.Error("the weights changed")
	}
}

// TestSuperviseIsTheMeanOverTokens: the loss is the mean over all tokens, for any number of micro-batches.
func TestSuperviseIsTheMeanOverTokens(t *testing.T) {
	cudatest.Each(t, testSuperviseIsTheMeanOverTokens)
}

func testSuperviseIsTheMeanOverTokens(t *testing.T, device string) {
	ctx := context.Background()
	l := tinyLearner(t, device, nil)
	batch := tinyBatch(t, l, 0)
	sum, n := 0.0, 0
	for _, v := range gather(batch, func(q *Sequence) []float32 { return q.Behaviour }) {
		sum -= float64(v)
		n++
	}
	r, err := l.ColdStartUpdate(ctx, batch, 0)
	if err != nil {
		t.Fatal(err)
	}
	closeTo(t, "loss", r.Values["loss"], sum/float64(n), 1e-6)
	want := readFlat(t, l, l.grad.sum)
	cut := tinyLearner(t, device, func(o *Options) { o.MicroBatchTokens, o.CheckpointActivations = 10, true })
	if _, err := cut.ColdStartUpdate(ctx, batch, 0); err != nil {
		t.Fatal(err)
	}
	if d := apart(readFlat(t, cut, cut.grad.sum), want, 1); !(d < 1e-6) {
		t.Errorf("the gradient is off by %v", d)
	}
	if _, err := l.ColdStartUpdate(ctx, batch[6:], 0); err == nil {
		t.Error("a batch without trained tokens was accepted")
	}
}

// TestSequencesAreChecked: bad sequences are refused before anything is copied to the device.
func TestSequencesAreChecked(t *testing.T) {
	l := tinyLearner(t, "cpu", nil)
	for name, q := range map[string]*Sequence{
		"first token sampled": {ID: "x", Tokens: []int32{1, 2}, Sampled: []bool{true, true}},
		"outside vocabulary":  {ID: "x", Tokens: []int32{1, tinyVocab}, Sampled: []bool{false, true}},
		"negative id":         {ID: "x", Tokens: []int32{-1, 2}, Sampled: []bool{false, true}},
		"ragged mask":         {ID: "x", Tokens: []int32{1, 2}, Sampled: []bool{false}},
		"ragged log-probs":    {ID: "x", Tokens: []int32{1, 2}, Sampled: []bool{false, true}, Behaviour: []float32{0}},
	} {
		if err := l.Prepare(context.Background(), []*Sequence{q}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := l.Update(context.Background(), nil, 1); errors.Is(err, errNothingToRead) {
		t.Error("an empty batch was refused")
	}
}

// TestNonFiniteLogitsAreRefused: if weights are not finite, the update is refused, although the
// error comes from the head's kernel inside an operation of LibTorch.
func TestNonFiniteLogitsAreRefused(t *testing.T) { cudatest.Each(t, testNonFiniteLogitsAreRefused) }

func testNonFiniteLogitsAreRefused(t *testing.T, device string) {
	ctx := context.Background()
	l := tinyLearner(t, device, func(o *Options) { o.Objective.Ratio = mgrpo.RatioSequenceGeometric })
	batch := tinyBatch(t, l, 0.3)
	if err := l.Prepare(ctx, batch); err != nil {
		t.Fatal(err)
	}
	if err := l.model.Device.Do(ctx, func(*torch.Scope) error { l.model.Master.Tensor.Fill_(math.NaN()); return nil }); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Update(ctx, batch, 1e-3); err != nil || r.Refused == nil {
		t.Errorf("got refusal %v and error %v, want a refusal only", r.Refused, err)
	}
}
