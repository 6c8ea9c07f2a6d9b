package learner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/ranks/rankstest"
)

// TestRank runs in the processes that the tests of this file start. The part selects what it runs.
func TestRank(t *testing.T) {
	rank := rankstest.Join(t)
	g := rank.Group
	switch rank.Part {
	case "learn":
		t.Run("oracle", func(t *testing.T) { ranksAgainstOracle(t, g) })
		t.Run("one rank", func(t *testing.T) { ranksAgainstOne(t, "cpu", g) })
		t.Run("no whole model", func(t *testing.T) { ranksGather(t, "cpu", g) })
		t.Run("experts", func(t *testing.T) { ranksDispatch(t, "cpu", g) })
		t.Run("experts that fail", func(t *testing.T) { ranksDispatchFails(t, g) })
		t.Run("goldens", func(t *testing.T) { ranksAgainstGoldens(t, "cpu", g) })
		t.Run("adapters", func(t *testing.T) { ranksAgainstAdapterGoldens(t, g) })
		t.Run("refusals", func(t *testing.T) { ranksRefuseAlike(t, g) })
		t.Run("a gradient that is not finite", func(t *testing.T) { ranksRefuseGradient(t, g) })
		t.Run("nothing to learn", func(t *testing.T) { ranksSkip(t, g) })
		t.Run("nothing to read", func(t *testing.T) { ranksRestoreNothing(t, g) })
		t.Run("another update", func(t *testing.T) { ranksDiffer(t, g) })
	case "learn on GPUs":
		t.Run("one rank", func(t *testing.T) { ranksAgainstOne(t, "cuda:0", g) })
		t.Run("no whole model", func(t *testing.T) { ranksGather(t, "cuda:0", g) })
		t.Run("experts", func(t *testing.T) { ranksDispatch(t, "cuda:0", g) })
		t.Run("goldens", func(t *testing.T) {
			ranksAgainstGoldens(t, "cuda:0", g)
		})
	case "lose":
		ranksLoseOne(t, g)
	case "save":
		ranksSave(t, g, rank.Dir, keeping)
	case "continue":
		ranksContinue(t, g, rank.Dir, keeping)
	case "save experts":
		ranksSave(t, g, rank.Dir, keepingExperts)
	case "continue with experts":
		ranksContinue(t, g, rank.Dir, keepingExperts)
	default:
		how, what, _ := strings.Cut(rank.Part, " ")
		ranksEnd(t, g, rank.Dir, how, what)
	}
}

// TestRanksLearn: the ranks of a group learn the same as one rank. With four ranks, some have no group of sequences.
func TestRanksLearn(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { rankstest.Pass(t, n, "learn", "") })
	}
}

// TestRanksLearnOnGPUs: two ranks that share one GPU learn the same as one rank.
func TestRanksLearnOnGPUs(t *testing.T) {
	if len(cudatest.Devices(t)) == 1 {
		t.Skip("no GPU")
	}
	rankstest.Pass(t, 2, "learn on GPUs", "")
}

// TestRanksLoseOne: if a rank is killed, all others return an error.
func TestRanksLoseOne(t *testing.T) {
	for rank, err := range rankstest.Run(t, 4, "lose", "") {
		if killed := rank == 2; killed != (err != nil) || killed && !strings.Contains(err.Error(), "signal: killed") {
			t.Errorf("rank %d: its process ended with error %v; want rank 2 killed and the others without an error", rank, err)
		}
	}
}

// TestRanksCancelOne: if the context of one rank is cancelled, at any of its exchanges, the others fail at once. They wait neither for the
// time-out nor for the end of its process.
func TestRanksCancelOne(t *testing.T) {
	endOne(t, "cancel", map[string]int{"update": 4, "demonstrations": 4, "copy": 3, "weights": 2, "layers": 5, "experts": 9})
}

// TestRanksLoseADevice: if one rank loses its device, at any of its exchanges, the others fail at once.
func TestRanksLoseADevice(t *testing.T) {
	endOne(t, "device", map[string]int{"update": 4, "copy": 3, "weights": 2})
}

func endOne(t *testing.T, how string, exchangesOf map[string]int) {
	t.Helper()
	for what, exchanges := range exchangesOf {
		for n := range exchanges {
			dir := filepath.Join(t.TempDir(), fmt.Sprint(n)) // the folder's name is the number of exchanges, which ranksEnd reads
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Run(fmt.Sprint(what, " after ", n), func(t *testing.T) { rankstest.Pass(t, 2, how+" "+what, dir) })
		}
	}
}

// TestRanksContinueWithOthers: four ranks continue from the state that two ranks saved. If ranks divide experts, three continue from two.
func TestRanksContinueWithOthers(t *testing.T) {
	dir := t.TempDir()
	rankstest.Pass(t, 2, "save", dir)
	rankstest.Pass(t, 4, "continue", dir)
	rankstest.Pass(t, 2, "save experts", dir)
	rankstest.Pass(t, 3, "continue with experts", dir)
}

// withRank returns the options of a model that the ranks of a group train together.
func withRank(g ranks.Group, opt model.Options) model.Options {
	opt.Rank, opt.Size = g.Rank(), g.Size()
	return opt
}

// wantSame checks that all ranks have the same value.
func wantSame(t *testing.T, g ranks.Group, what string, mine any) {
	t.Helper()
	all, err := g.Exchange(context.Background(), fmt.Appendf(nil, "%v", mine), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for r, theirs := range all {
		if string(theirs) != string(all[0]) {
			t.Errorf("%s: rank %d has %.200s, rank 0 has %.200s", what, r, theirs, all[0])
		}
	}
}

func wantSameWeights(t *testing.T, l *Learner) {
	t.Helper()
	sum, err := l.State.Digest(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, l.group, "weights", sum)
}

func ranksAgainstOracle(t *testing.T, g ranks.Group) {
	for _, c := range objectives {
		set := func(g ranks.Group) func(o *Options) {
			return func(o *Options) {
				c.set(&o.Objective)
				o.Recomputed, o.Group = c.recomputed, g
			}
		}
		one, l := tinyLearner(t, "cpu", set(ranks.Solo{})), tinyLearner(t, "cpu", set(g))
		if c.reference {
			for _, l := range []*Learner{one, l} {
				ref := tinyModel(t, "cpu", 2)
				t.Cleanup(func() { ref.Close(context.Background()) })
				if err := l.SetReference(t.Context(), ref); err != nil {
					t.Fatal(err)
				}
			}
		}
		batch := tinyBatch(t, one, 0.6)
		if err := one.Prepare(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		want, wantGrad := ofOracle(t, one, byID(batch))
		grad, r := gradientOf(t, l, clone(batch))
		for name, w := range want.Stats.Values() {
			closeTo(t, c.name+": "+name, r.Values[name], w, 2e-6)
		}
		for _, p := range l.State.share {
			if d := apart(grad[p.From:p.To], wantGrad[p.From:p.To], 1); !(d < 1e-5) {
				t.Errorf("%s: the gradient of elements %d to %d differs by %v, want less than 1e-5", c.name, p.From, p.To, d)
			}
		}
		wantSame(t, g, c.name, r.Values)
	}
}

// timeless removes the time of an update on the GPU, which differs between ranks and runs.
func timeless(r Report) Report {
	delete(r.Values, "update_gpu_seconds")
	return r
}

// trained makes some updates and a supervised one, and returns the last report.
func trained(t *testing.T, l *Learner, batch []*Sequence) (r Report) {
	t.Helper()
	for i := range 3 {
		minibatch := clone(batch[:len(batch)-i])
		if err := l.Prepare(t.Context(), minibatch); err != nil {
			t.Fatal(err)
		}
		var err error
		if r, err = l.Update(t.Context(), minibatch, 0.01); err != nil || r.Refused != nil {
			t.Fatal(err, r.Refused)
		}
	}
	supervised, err := l.ColdStartUpdate(t.Context(), batch, 0.01)
	if err != nil {
		t.Fatal(err)
	}
	r.Values["supervised loss"] = supervised.Values["loss"]
	return timeless(r)
}

// stateOf returns the weights and moments of all ranks on rank 0, and nil on the others.
func stateOf(t *testing.T, l *Learner) (weights, m, v []float32) {
	t.Helper()
	if n := l.State.params.Numel(); l.group.Rank() == 0 {
		weights, m, v = make([]float32, n), make([]float32, n), make([]float32, n)
	}
	if err := l.State.Copy(t.Context(), weights, m, v); err != nil {
		t.Fatal(err)
	}
	return weights, m, v
}

// ranksAgainstOne: ranks learn the same as one rank, except for rounding in sums of another order, and the same bits every
// time. Each sequence is a micro-batch of its own, because the sums of a micro-batch are rounded if the compute type is bf16.
func ranksAgainstOne(t *testing.T, device string, g ranks.Group) {
	for _, c := range []struct {
		name      string
		model     model.Options
		tolerance float64 // of weights, moments and gradient norm, relative
		mixture   bool
		host      bool // the ranks keep moments and fp32 weights in the host's memory
		layers    bool // backward passes run layer by layer
	}{
		{name: "float32", model: model.Options{Compute: torch.Float32}, tolerance: 1e-5},
		{name: "with a bf16 copy", model: model.Options{Compute: torch.Float32, HalfCopy: true}, tolerance: 1e-5},
		{name: "bf16", model: model.Options{Compute: torch.BFloat16}, tolerance: 1e-2},
		{name: "mixture", mixture: true, tolerance: 1e-5},
		{name: "bf16, state in the host's memory", host: true, model: model.Options{Compute: torch.BFloat16}, tolerance: 1e-2},
		{name: "bf16, layer by layer", layers: true, model: model.Options{Compute: torch.BFloat16}, tolerance: 1e-2},
	} {
		learner := func(t *testing.T, g ranks.Group) *Learner {
			o := mixtureOptions(func(o *Options) { o.Group, o.MicroBatchTokens, o.Objective.EntropyCoef = g, 1, 0.02 })
			opt := withRank(g, c.model)
			o.HostState = c.host && g != ranks.Group(ranks.Solo{})
			opt.HostMaster, o.CheckpointActivations = o.HostState, c.layers
			if c.mixture {
				o.RouterAuxCoef = 0.05
				return mixtureLearner(t, device, o)
			}
			return tinyLearnerOf(t, tinyModelIn(t, device, 1, opt), o)
		}
		t.Run(c.name, func(t *testing.T) {
			if !c.mixture && !c.host {
				cudatest.SkipSlow(t, device)
			}
			one := learner(t, ranks.Solo{})
			batch := tinyBatch(t, one, 0.3)
			if c.mixture {
				record(t, one, batch)
			}
			want := trained(t, one, batch)
			wantWeights, wantM, wantV := stateOf(t, one)
			var first []float32
			for range 2 {
				l := learner(t, g)
				r := trained(t, l, batch)
				got, m, v := stateOf(t, l)
				wantSame(t, g, "report", r.Values)
				wantSameWeights(t, l)
				for name, w := range want.Values {
					closeTo(t, name, r.Values[name], w, c.tolerance)
				}
				if len(r.Values) != len(want.Values) {
					t.Errorf("the report has %d values, want %d", len(r.Values), len(want.Values))
				}
				for what, pair := range map[string][2][]float32{
					"weights": {got, wantWeights}, "first moments": {m, wantM}, "second moments": {v, wantV},
				} {
					if pair[0] == nil { // this is not rank 0
						continue
					}
					// In bf16 the rounding of each update affects the next ones. On an emulated GPU, after four
					// updates, moments of three models differed by 0.7 to 2.2 %, and weights by at most 0.07 %.
					most := 3 * c.tolerance
					if what == "weights" {
						most = c.tolerance / 3
					}
					if d := apart(pair[0], pair[1], 1); !(d < most) {
						t.Errorf("%s differ by %v, want less than %v", what, d, most)
					}
				}
				if first != nil && !slices.Equal(got, first) {
					t.Error("a second learner got other weights from the same batch")
				}
				first = got
				wantHalf(t, l, got)
				wantShares(t, l)
				wantRead(t, l, got)
			}
		})
	}
}

// ranksGather: ranks that hold only a share of the model learn the same as ranks that hold the whole model, bit
// for bit in bf16. They also hold only a share of the reference. The batch has recomputed log-probs and a sequence
// without advantage. After a refused batch, and after weights were restored, the ranks continue together.
func ranksGather(t *testing.T, device string, g ranks.Group) {
	for _, c := range []struct {
		name    string
		shape   arch.Config
		compute torch.DType
		host    bool
	}{
		{"bf16", tinyConfig, torch.BFloat16, false},
		{"bf16, state in the host's memory", tinyConfig, torch.BFloat16, true},
		{"float32", tinyConfig, torch.Float32, false},
		{"hybrid", tinyHybrid(), torch.Float32, false},
		{"hybrid, bf16", tinyHybrid(), torch.BFloat16, false},
		{"gated delta rules", tinyRecurrent(), torch.Float32, false},
		{"gated delta rules, bf16", tinyRecurrent(), torch.BFloat16, false},
	} {
		learner := func(t *testing.T, g ranks.Group, gathered bool) *Learner {
			o := mixtureOptions(func(o *Options) {
				o.Group, o.MicroBatchTokens, o.Recomputed, o.CheckpointActivations, o.HostState = g, 1, true, true, c.host
				o.Objective.KL, o.Objective.KLCoef = mgrpo.KL3, 0.1
			})
			opt := withRank(g, model.Options{Compute: c.compute, HostMaster: c.host, Gathered: gathered})
			l := tinyLearnerOf(t, tinyModelOf(t, c.shape, device, 1, opt), o)
			opt.Frozen, opt.HostMaster = true, false
			ref := tinyModelOf(t, c.shape, device, 2, opt)
			t.Cleanup(func() { ref.Close(context.Background()) })
			if err := l.SetReference(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			return l
		}
		t.Run(c.name, func(t *testing.T) {
			if !c.host {
				cudatest.SkipSlow(t, device)
			}
			whole, l := learner(t, g, false), learner(t, g, true)
			batch := tinyBatch(t, whole, 0.3)
			batch[1].Advantage = 0
			want, got := trained(t, whole, batch), trained(t, l, batch)
			wantWeights, wantM, wantV := stateOf(t, whole)
			weights, m, v := stateOf(t, l)
			tolerance := 0.0
			if c.compute == torch.Float32 { // ranks with whole models add in another order
				tolerance = 5e-5
			}
			for name, w := range want.Values {
				closeTo(t, name, got.Values[name], w, tolerance)
			}
			for what, pair := range map[string][2][]float32{"weights": {weights, wantWeights}, "first moments": {m, wantM}, "second moments": {v, wantV}} {
				if g.Rank() == 0 && !(apart(pair[0], pair[1], 1) <= tolerance) {
					t.Errorf("%s differ by %v, want at most %v", what, apart(pair[0], pair[1], 1), tolerance)
				}
			}
			wantRead(t, l, weights)
			wantGathered(t, l)

			bad := clone(batch)
			bad[3].Behaviour[bad[3].trained()[2]] = float32(math.NaN())
			if err := l.Prepare(t.Context(), bad); err != nil {
				t.Fatal(err)
			}
			if r, err := l.Update(t.Context(), bad, 1e-3); err != nil || r.Refused == nil {
				t.Errorf("a batch with a NaN: got refusal %v and error %v, want a refusal", r.Refused, err)
			}
			again := learner(t, g, true)
			restore := func(l *Learner, steps int64) {
				var read, first, second func(int64, []float32) error
				if g.Rank() == 0 {
					of := func(values []float32) func(int64, []float32) error {
						return func(from int64, dst []float32) error { copy(dst, values[from:]); return nil }
					}
					read, first, second = of(weights), of(m), of(v)
				}
				if err := errors.Join(l.State.RestoreWeights(t.Context(), read), l.State.RestoreMoments(t.Context(), first, second)); err != nil {
					t.Fatal(err)
				}
				l.State.SetSteps(steps)
			}
			restore(again, l.State.Steps())
			trained(t, l, batch)
			trained(t, again, batch)
			on, _, _ := stateOf(t, l)
			restored, _, _ := stateOf(t, again)
			if !slices.Equal(on, restored) || g.Rank() == 0 && slices.Equal(on, weights) {
				t.Error("a learner with restored weights and moments learned other weights than the one that they came from")
			}
		})
	}
}

// wantGathered checks that the rank holds only its share of weights, gradient and moments. The
// gradient of a micro-batch has only one layer and the leaves outside layers.
func wantGathered(t *testing.T, l *Learner) {
	t.Helper()
	share, of, leaves := l.State.share.Numel(), map[int]int64{}, map[int]int64{}
	for _, leaf := range l.model.Layout.Leaves {
		of[leaf.Layer] += leaf.Numel()
		leaves[leaf.Layer]++
	}
	const between = 16 // largest padding after a leaf
	layer := of[0] + max(of[1], of[2], of[3])
	got := []int64{l.State.params.Master().Numel(), l.model.Compute.Numel(), l.grad.sum.Numel(), l.State.m.Numel(), l.State.v.Numel()}
	if want := []int64{share, share, share, share, share}; !slices.Equal(got, want) {
		t.Errorf("fp32 weights, compute weights, gradient and moments have %d elements, want %d", got, want)
	}
	if over := l.grad.part.flat.Numel() - layer; over < 0 || over > between*(leaves[0]+max(leaves[1], leaves[2], leaves[3])) {
		t.Errorf("a micro-batch's gradient has %d elements, want %d without padding", l.grad.part.flat.Numel(), layer)
	}
}

// wantHalf checks that rank 0's bf16 copy equals the rounded weights of all ranks.
func wantHalf(t *testing.T, l *Learner, weights []float32) {
	t.Helper()
	if l.model.Half == nil || l.group.Rank() > 0 || l.model.Gathered() {
		return
	}
	half, rounded := make([]float32, len(weights)), make([]float32, len(weights))
	inDevice(t, l.model, func(s *torch.Scope) {
		l.model.Half.Float32s(half)
		s.FromFloat32(weights, int64(len(weights))).To(torch.BFloat16).Float32s(rounded)
	})
	if !slices.Equal(half, rounded) {
		t.Error("the bf16 copy does not equal the rounded weights")
	}
}

// wantRead checks that all ranks together can read any range of the weights on rank 0. One rank
// alone can read the last weight only if it holds the whole model.
func wantRead(t *testing.T, l *Learner, weights []float32) {
	t.Helper()
	n := l.State.params.Numel()
	border := l.State.shareOf(0)[0].To
	for _, span := range [][2]int64{{0, n}, {0, 1}, {border - 1, border}, {border - 1, border + 1}, {border, border + 1}, {n - 1, n}} {
		var got []float32
		if l.group.Rank() == 0 {
			got = make([]float32, span[1]-span[0])
		}
		if err := l.State.Read(t.Context(), span[0], span[1]-span[0], got); err != nil {
			t.Fatal(err)
		}
		if l.group.Rank() == 0 && !slices.Equal(got, weights[span[0]:span[1]]) {
			t.Errorf("weights %d to %d were read with other values", span[0], span[1])
		}
	}
	one := make([]float32, 1)
	if err := l.State.params.Read(t.Context(), n-1, one); (err == nil) != (l.State.params.Master().Numel() == n) {
		t.Errorf("one rank, which has %d of %d weights, reads the last one: got error %v", l.State.params.Master().Numel(), n, err)
	}
}

// wantShares checks that the rank holds only its share of the moments. If passes do not use the
// fp32 weights themselves, it also holds only its share of the weights and of the gradient.
func wantShares(t *testing.T, l *Learner) {
	t.Helper()
	n, share := l.State.params.Numel(), l.State.share.Numel()
	state := []int64{l.State.params.Master().Numel(), l.grad.sum.Numel(), l.State.m.Numel(), l.State.v.Numel()}
	want := []int64{n, n, share, share}
	if l.grad.part != nil {
		want = []int64{share, share, share, share}
	}
	if !slices.Equal(state, want) {
		t.Errorf("weights, gradient and moments of a model with %d elements have %d, want %d", n, state, want)
	}
}

func ranksAgainstGoldens(t *testing.T, device string, g ranks.Group) {
	for _, dir := range golden.Trained(t, golden.InSafetensors(golden.Models(t, arch.Families()))) {
		t.Run(filepath.Base(dir), func(t *testing.T) { fiveSteps(t, dir, device, g) })
	}
}

func ranksAgainstAdapterGoldens(t *testing.T, g ranks.Group) {
	for _, dir := range golden.Adapters(t) {
		adapterSteps(t, dir, "cpu", g)
	}
}

// ranksRefuseAlike: if one rank's kernels refuse a batch or fail, all ranks return an error, and no weights change.
func ranksRefuseAlike(t *testing.T, g ranks.Group) {
	for _, c := range []struct {
		compute torch.DType
		layers  bool // backward passes run layer by layer
	}{{torch.Float32, false}, {torch.BFloat16, false}, {torch.BFloat16, true}} {
		o := mixtureOptions(func(o *Options) { o.Group, o.MicroBatchTokens, o.CheckpointActivations = g, 1, c.layers })
		l := tinyLearnerOf(t, tinyModelIn(t, "cpu", 1, withRank(g, model.Options{Compute: c.compute})), o)
		wantRefusals(t, l, tinyBatch(t, l, 0.3))
	}
}

// wantRefusals checks that a learner refuses a batch with a bad sequence and names the sequence.
// It returns an error for a batch that its passes fail at, and then learns from the good batch.
func wantRefusals(t *testing.T, l *Learner, good []*Sequence) {
	t.Helper()
	before, _, _ := stateOf(t, l)
	bad := clone(good)
	bad[3].Behaviour[bad[3].trained()[2]] = float32(math.NaN())
	r, err := update(t, l, bad)
	if err != nil || r.Refused == nil || !strings.HasPrefix(r.Refused.Error(), "learner: "+bad[3].ID) {
		t.Errorf("a bad sequence: got refusal %v and error %v, want a refusal that names %s", r.Refused, err, bad[3].ID)
	}
	wantSame(t, l.group, "refusal", r.Refused)

	long := clone(good)
	for len(long[1].Tokens) < 70 { // the model has fewer positions
		long[1].Tokens, long[1].Sampled, long[1].Behaviour = append(long[1].Tokens, 1), append(long[1].Sampled, true), append(long[1].Behaviour, -1)
	}
	if r, err = update(t, l, long); err == nil {
		t.Errorf("a sequence that is too long: got %+v, want an error", r)
	}
	if after, _, _ := stateOf(t, l); !slices.Equal(after, before) || l.State.Steps() != 0 {
		t.Error("the weights or the number of steps changed although no batch was accepted")
	}
	r, err = update(t, l, good)
	if after, _, _ := stateOf(t, l); err != nil || r.Refused != nil || l.group.Rank() == 0 && slices.Equal(after, before) {
		t.Errorf("the good batch: got refusal %v and error %v, want changed weights", r.Refused, err)
	}
	wantSameWeights(t, l)
}

// update makes one update with a batch.
func update(t *testing.T, l *Learner, batch []*Sequence) (Report, error) {
	t.Helper()
	if err := l.Prepare(t.Context(), batch); err != nil {
		return Report{}, err
	}
	return l.Update(t.Context(), batch, 1e-3)
}

// ranksRefuseGradient: if one rank's share of the gradient is not finite, all ranks refuse the
// update, and neither weights nor moments change.
func ranksRefuseGradient(t *testing.T, g ranks.Group) {
	for _, compute := range []torch.DType{torch.Float32, torch.BFloat16} {
		l := tinyLearnerOf(t, tinyModelIn(t, "cpu", 1, withRank(g, model.Options{Compute: compute})), mixtureOptions(func(o *Options) { o.Group = g }))
		before, _, _ := stateOf(t, l)
		if g.Rank() == 1 {
			inDevice(t, l.model, func(*torch.Scope) { l.State.in(l.grad.sum, l.State.share[0]).Fill_(math.NaN()) })
		}
		_, err := l.State.apply(t.Context(), l.grad, 1e-3)
		if !isRefusal(err) || !strings.Contains(err.Error(), "the gradient's norm is NaN") {
			t.Errorf("%v: got error %v, want a refusal because of the norm", compute, err)
		}
		wantSame(t, g, "refusal", err)
		if after, m, v := stateOf(t, l); !slices.Equal(after, before) || slices.ContainsFunc(slices.Concat(m, v), func(x float32) bool { return x != 0 }) || l.State.Steps() != 0 {
			t.Errorf("%v: weights, moments or the number of steps changed", compute)
		}
	}
}

// ranksSkip: if all advantages are 0, all ranks skip the update and report the same.
func ranksSkip(t *testing.T, g ranks.Group) {
	l := tinyLearner(t, "cpu", func(o *Options) { o.Group = g })
	batch := tinyBatch(t, l, 0.3)
	for _, q := range batch {
		q.Advantage = 0
	}
	before, _, _ := stateOf(t, l)
	if err := l.Prepare(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	r, err := l.Update(t.Context(), batch, 1e-3)
	if err != nil || r.Refused != nil || !r.Skipped {
		t.Errorf("got report %+v and error %v, want a skipped update", r, err)
	}
	wantSame(t, g, "report", r.Values)
	if after, _, _ := stateOf(t, l); !slices.Equal(after, before) || l.State.Steps() != 0 {
		t.Error("the weights or the number of steps changed although the update was skipped")
	}
	trained(t, l, tinyBatch(t, l, 0.3))
	wantSameWeights(t, l)
}

// ranksRestoreNothing: if rank 0 cannot read the saved weights or moments, all ranks return its
// error. They can restore and train afterwards.
func ranksRestoreNothing(t *testing.T, g ranks.Group) {
	l := keeping(t, g, 1)
	weights, m, v := stateOf(t, l)
	reads := func(values []float32, until int64) func(int64, []float32) error {
		if g.Rank() > 0 {
			return nil
		}
		return func(from int64, dst []float32) error {
			if from >= until {
				return errors.New("the disk is gone")
			}
			copy(dst, values[from:])
			return nil
		}
	}
	n := l.State.params.Numel()
	for what, err := range map[string]error{
		"weights": l.State.RestoreWeights(t.Context(), reads(weights, 0)),
		// Reading rank 0's share succeeds, and reading the next share fails.
		"first moments":  l.State.RestoreMoments(t.Context(), reads(m, 1), reads(v, n)),
		"second moments": l.State.RestoreMoments(t.Context(), reads(m, n), reads(v, 0)),
	} {
		if err == nil || !strings.HasSuffix(err.Error(), "the disk is gone") {
			t.Errorf("%s: got error %v, want the error of reading them", what, err)
		}
	}
	if err := errors.Join(l.State.RestoreWeights(t.Context(), reads(weights, n)), l.State.RestoreMoments(t.Context(), reads(m, n), reads(v, n))); err != nil {
		t.Fatal(err)
	}
	trained(t, l, tinyBatch(t, l, 0.3))
	wantSameWeights(t, l)
}

// ranksDiffer: ranks that get different updates or different batches return an error.
func ranksDiffer(t *testing.T, g ranks.Group) {
	l := tinyLearner(t, "cpu", func(o *Options) { o.Group = g })
	batch := tinyBatch(t, l, 0.3)
	if err := l.Prepare(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if g.Rank() == 1 {
		batch[0].Advantage = 0.5
	}
	_, err := l.Update(t.Context(), batch, 1e-3)
	if err == nil || !strings.Contains(err.Error(), "rank 1 received a different update") {
		t.Errorf("got error %v, want one that rank 1 received a different update", err)
	}
	l.opt.Recomputed = true
	batch = tinyBatch(t, l, 0.3)
	if g.Rank() == 1 {
		batch[0].Tokens[1]++
	}
	if err = l.Prepare(t.Context(), batch); err == nil || !strings.Contains(err.Error(), "rank 1 received a different batch") {
		t.Errorf("got error %v, want one that rank 1 received a different batch", err)
	}
}
