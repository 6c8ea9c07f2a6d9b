package learner

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// Tolerances between ranks that divide the experts and ranks that each have every expert, relative
// to the largest value. If ranks divide the experts, the products of an expert include the rows of
// all ranks, so sums are in another order. In bf16, gradients of micro-batches are rounded.
const (
	tolCarried32 = 1e-5
	tolCarried16 = 5e-3
)

// carrying returns a learner of a mixture with a KL term. The ranks divide the experts if
// divided is set, else each rank has the whole model.
func carrying(t *testing.T, device string, g ranks.Group, shape arch.Config, divided bool, opt model.Options) *Learner {
	t.Helper()
	o := mixtureOptions(func(o *Options) {
		o.Group, o.MicroBatchTokens, o.Recomputed, o.CheckpointActivations, o.HostState = g, 1, true, true, opt.HostMaster
		o.Objective.KL, o.Objective.KLCoef, o.RouterAuxCoef = mgrpo.KL3, 0.1, 0.05
	})
	opt = withRank(g, opt)
	opt.Gathered = divided
	l := tinyLearnerOf(t, tinyModelOf(t, shape, device, 1, opt), o)
	opt.Frozen, opt.HostMaster = true, false
	ref := tinyModelOf(t, shape, device, 2, opt)
	t.Cleanup(func() { ref.Close(context.Background()) })
	if err := l.SetReference(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	return l
}

// ranksDispatch: ranks that divide the experts of a mixture learn the same as ranks that have all experts,
// within the tolerance, and the same bits every time. The batch has recorded experts, recomputed
// log-probs, a reference, and a loss that balances experts. Each rank holds only its share of the experts.
func ranksDispatch(t *testing.T, device string, g ranks.Group) {
	for _, c := range []struct {
		name    string
		options model.Options
		shape   arch.Config
	}{
		{"float32", model.Options{Compute: torch.Float32}, mixtureShape(5)},
		{"biases and sinks", model.Options{Compute: torch.Float32}, biasedShape(5)},
		{"fewer experts than ranks", model.Options{Compute: torch.Float32}, mixtureShape(3)},
		{"bf16", model.Options{Compute: torch.BFloat16}, mixtureShape(5)},
		{"bf16, state in the host's memory", model.Options{Compute: torch.BFloat16, HostMaster: true}, mixtureShape(6)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.options.Compute == torch.Float32 {
				cudatest.SkipSlow(t, device)
			}
			tolerance := tolCarried32
			if c.options.Compute != torch.Float32 {
				tolerance = tolCarried16
			}
			whole, l := carrying(t, device, g, c.shape, false, c.options), carrying(t, device, g, c.shape, true, c.options)
			batch := tinyBatch(t, whole, 0.3)
			record(t, whole, batch)
			batch[1].Advantage = 0
			batch[2].Routes = nil // the forward pass chooses this sequence's experts
			learn := trained
			if c.options.Compute != torch.Float32 { // after one update, rounding may lead to other experts
				learn = once
			}
			want, got := learn(t, whole, batch), learn(t, l, batch)
			wantSame(t, g, "report", got.Values)
			for name, w := range want.Values {
				closeTo(t, name, got.Values[name], w, tolerance)
			}
			wantWeights, wantM, wantV := stateOf(t, whole)
			weights, m, v := stateOf(t, l)
			for what, pair := range map[string][2][]float32{"weights": {weights, wantWeights}, "first moments": {m, wantM}, "second moments": {v, wantV}} {
				if g.Rank() > 0 {
					continue
				}
				if d := apart(pair[0], pair[1], 1); !(d < tolerance) {
					t.Errorf("%s differ by %v, want less than %v", what, d, tolerance)
				}
			}
			again := carrying(t, device, g, c.shape, true, c.options)
			learn(t, again, batch)
			if same, _, _ := stateOf(t, again); !slices.Equal(same, weights) {
				t.Error("a second learner got other weights from the same batch")
			}
			wantOwnExperts(t, l)
			wantRead(t, l, weights)
		})
	}
}

// once makes one update with a batch and returns its report.
func once(t *testing.T, l *Learner, batch []*Sequence) Report {
	t.Helper()
	minibatch := clone(batch)
	if err := l.Prepare(t.Context(), minibatch); err != nil {
		t.Fatal(err)
	}
	r, err := l.Update(t.Context(), minibatch, 0.01)
	if err != nil || r.Refused != nil {
		t.Fatal(err, r.Refused)
	}
	return timeless(r)
}

// wantOwnExperts checks the sizes of the rank's buffers. The gradient of a micro-batch has the leaves outside layers, and one
// layer with only the rank's experts. The rank's share of the weights has all of its own experts, and a part of the other leaves.
func wantOwnExperts(t *testing.T, l *Learner) {
	t.Helper()
	experts, layers := l.model.Config.Mixture.Experts, int64(l.model.Config.RoutedLayers())
	from, to := ranks.Experts(experts, l.group.Rank(), l.group.Size())
	each := int64(3 * 16 * 12) // gate, up and down
	if c := l.model.Config; c.Family == arch.GPTOSS {
		each = int64(3*16*c.FFN + 2*c.FFN + 16) // with their biases
	}
	var rest, layer [4]int64 // elements of leaves outside layers (0) and of the three layers; rest is without experts
	for _, leaf := range l.model.Layout.Leaves {
		if leaf.Experts == 0 {
			rest[leaf.Layer] += leaf.Numel()
			layer[leaf.Layer] += leaf.Numel()
		} else if strings.HasSuffix(leaf.Name, "_down") {
			layer[leaf.Layer] += int64(to-from) * each
		}
	}
	want := layer[0] + max(layer[1], layer[2], layer[3])
	if over := l.grad.part.flat.Numel() - want; over < 0 || over >= 5*64 { // padding between blocks
		t.Errorf("gradients of a micro-batch have %d elements, want %d without padding", l.grad.part.flat.Numel(), want)
	}
	own := int64(0)
	for _, b := range l.State.blocks {
		if b.Expert > 0 {
			own += l.State.share.Within(b.Span).Numel()
		}
	}
	if want := layers * int64(to-from) * each; own != want || l.State.share.Numel()-own > (rest[0]+rest[1]+rest[2]+rest[3])/int64(l.group.Size())+64*4 {
		t.Errorf("the rank has %d elements of experts, want %d; it has %d elements in all", own, want, l.State.share.Numel())
	}
}

// ranksDispatchFails: if one rank's pass or experts refuse a batch or fail, all ranks return an error, and no weights change.
func ranksDispatchFails(t *testing.T, g ranks.Group) {
	l := carrying(t, "cpu", g, mixtureShape(5), true, model.Options{Compute: torch.Float32})
	whole := carrying(t, "cpu", g, mixtureShape(5), false, model.Options{Compute: torch.Float32})
	good := tinyBatch(t, whole, 0.3)
	wantRefusals(t, l, good)
	before, _, _ := stateOf(t, l)

	if g.Rank() == 1 { // drops a matrix of rank 1's experts, so that products with it fail
		inDevice(t, l.model, func(*torch.Scope) {
			for i, leaf := range l.model.Layout.Leaves {
				if leaf.Name == "layers.2.experts_down" {
					model.All(l.model).Leaves()[i].Leaf.Drop()
				}
			}
		})
	}
	_, err := update(t, l, good)
	var lost *torch.GroupError
	if err == nil || errors.As(err, &lost) {
		t.Errorf("got error %v, want the reason why rank 1 could not compute", err)
	}
	if g.Rank() != 1 && !strings.HasPrefix(err.Error(), "learner: rank 1: torch: experts: ") {
		t.Errorf("got error %v, want the reason why rank 1 could not compute", err)
	}
	if after, _, _ := stateOf(t, l); !slices.Equal(after, before) {
		t.Error("the weights changed although the update failed")
	}
}

// scriptedGroup simulates a group of two ranks in which the other rank sends the bytes `theirs`.
type scriptedGroup struct {
	ranks.Group
	theirs  []byte
	aborted error
}

func (g *scriptedGroup) Rank() int { return 0 }
func (g *scriptedGroup) Size() int { return 2 }
func (g *scriptedGroup) Exchange(_ context.Context, mine []byte, _ int) ([][]byte, error) {
	return [][]byte{mine, g.theirs}, nil
}
func (g *scriptedGroup) Abort(why error) { g.aborted = why }

// TestImpossibleRowsOfExperts: if a rank sends an impossible number of rows, the group ends before memory is allocated for them.
func TestImpossibleRowsOfExperts(t *testing.T) {
	l := mixtureLearner(t, "cpu", mixtureOptions(func(o *Options) { o.MicroBatchTokens = 1 }))
	shape := l.model.Config
	counts := make([]int, shape.Mixture.Experts)
	most := shape.MaxPosition * shape.Mixture.PerToken
	says := func(at int, n uint32) []byte {
		said := make([]byte, 4*len(counts))
		binary.LittleEndian.PutUint32(said[4*at:], n)
		return said
	}
	for _, c := range []struct {
		theirs []byte
		want   string
	}{
		{says(0, uint32(most)), ""},
		{says(0, uint32(most+1)), "learner: rank 1 has more than"},
		{says(len(counts)-1, math.MaxUint32), "learner: rank 1 has more than"},
		{says(0, 1)[4:], "learner: rank 1 counts rows in"},
		{nil, "learner: rank 1 counts rows in"},
	} {
		g := &scriptedGroup{theirs: c.theirs}
		l.passes.group = group{g}
		_, err := l.passes.exchangeCounts(t.Context(), counts)
		if (err != nil) != (c.want != "") || err != nil && !strings.HasPrefix(err.Error(), c.want) || g.aborted != err {
			t.Errorf("got error %v, and the group gave up because of %v; want %q", err, g.aborted, c.want)
		}
	}
	l.passes.group = group{ranks.Solo{}}
}
