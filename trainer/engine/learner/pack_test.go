package learner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// groupsOf returns k rollouts for each prompt length. Answers have 3 to 9 sampled tokens, and some begin with the same tokens.
func groupsOf(t *testing.T, l *Learner, k int, prompts ...int) []*Sequence {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	var batch []*Sequence
	for g, length := range prompts {
		var prompt []int32
		for range length {
			prompt = append(prompt, int32(rng.IntN(tinyVocab)))
		}
		for j := range k {
			id := fmt.Sprintf("q%d/%d", g, j)
			q := &Sequence{
				ID: id, TrajectoryID: id, Group: int64(g), Weight: float64(1 + j%2), Advantage: rng.NormFloat64(),
				Tokens: slices.Clone(prompt), Sampled: make([]bool, length),
			}
			for range 3 + rng.IntN(7) {
				q.Tokens = append(q.Tokens, int32(rng.IntN(3))) // three choices, so that answers share beginnings, too
				q.Sampled = append(q.Sampled, true)
			}
			batch = append(batch, q)
		}
	}
	err := l.logProbs(context.Background(), l.model, batch, func(q *Sequence, v []float32) { q.Behaviour = v })
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// TestSharedBeginningsChangeNothing: sharing rows computes less than half of the rows, and
// gradient and statistics are the same as without sharing.
func TestSharedBeginningsChangeNothing(t *testing.T) {
	t.Run("attention", func(t *testing.T) { testSharedBeginnings(t, tinyConfig, 1e-6) })
	t.Run("convolutions", func(t *testing.T) { testSharedBeginnings(t, tinyHybrid(), 1e-6) })
	t.Run("gated delta rules", func(t *testing.T) { testSharedBeginnings(t, tinyRecurrent(), 3e-6) }) // here a piece ends at each branch
}

func testSharedBeginnings(t *testing.T, c arch.Config, tolerance float64) {
	learnerWith := func(set func(*Options)) *Learner {
		return tinyLearnerOf(t, tinyModelOf(t, c, "cpu", 1, model.Options{Compute: torch.Float32}), tinyOptions(set))
	}
	term := func(o *Options) { o.Objective.EntropyCoef = 0.02 }
	alone := learnerWith(func(o *Options) { term(o); o.MicroBatchTokens = 1 })
	batch := groupsOf(t, alone, 6, 24, 1, 17)
	for i, q := range batch {
		for _, t := range q.trained() { // so that ratios are above and below 1
			q.Behaviour[t] = min(q.Behaviour[t]+0.3*float32(i%3-1), 0)
		}
	}
	want, wantReport := gradientOf(t, alone, batch)
	for _, checkpointed := range []bool{false, true} {
		shared := learnerWith(func(o *Options) { term(o); o.CheckpointActivations = checkpointed })
		got, r := gradientOf(t, shared, batch)
		if d := apart(got, want, 1); !(d < tolerance) {
			t.Errorf("checkpointed %v: the gradient is off by %v", checkpointed, d)
		}
		for name, w := range wantReport.Values { // norms and ratios have the same error as the gradient
			closeTo(t, name, r.Values[name], w, tolerance)
		}
	}
	tokens := 0
	for _, q := range batch {
		tokens += len(q.Tokens)
	}
	if tree := (prefixTree{}).with(batch); 2*tree.len() > tokens {
		t.Errorf("%d rows for %d tokens", tree.len(), tokens)
	}
}

// TestTokensBehindTheLastTrainedOneAreNotRead: other tokens after the last trained token do not change the gradient.
func TestTokensBehindTheLastTrainedOneAreNotRead(t *testing.T) {
	l := tinyLearner(t, "cpu", nil)
	batch := groupsOf(t, l, 2, 5)
	want, _ := gradientOf(t, l, batch)
	for _, q := range batch {
		q.Tokens = append(q.Tokens, 1, 2)
		q.Sampled, q.Behaviour = append(q.Sampled, false, false), append(q.Behaviour, 0, 0)
	}
	if got, _ := gradientOf(t, l, batch); !slices.Equal(got, want) {
		t.Errorf("the gradient differs by %v", apart(got, want, 1))
	}
}

func TestMicroBatches(t *testing.T) {
	sequence := func(group int64, tokens ...int32) *Sequence {
		q := &Sequence{Group: group, Tokens: append(tokens, 0), Sampled: make([]bool, len(tokens)+1)}
		q.Sampled[len(tokens)] = true // the last token is predicted, not read
		return q
	}
	a := []*Sequence{sequence(1, 1, 2, 3, 4), sequence(1, 1, 2, 3, 5), sequence(1, 1, 2, 3, 6)} // 6 rows
	b := []*Sequence{sequence(2, 1, 2, 7), sequence(2, 1, 2, 8)}                                // 4 rows, or 2 more in a run with a
	c := []*Sequence{sequence(3, 9, 9, 9, 1, 1), sequence(3, 9, 9, 9, 2, 2), sequence(3, 8, 8)} // 7 and 2 rows
	batch := slices.Concat(a, b, c)
	for limit, want := range map[int][]int{
		100: {8},
		17:  {8},
		16:  {5, 3},
		9:   {5, 3},             // rows that groups share count once
		7:   {3, 2, 2, 1},       // a part of b would fit in the run of a; c is cut
		5:   {2, 1, 2, 1, 1, 1}, // the 4 rows of b are one run, although one of them would have fit in the run before
		1:   {1, 1, 1, 1, 1, 1, 1, 1},
	} {
		var got []int
		var order []*Sequence
		for _, run := range (packer{}).microBatches(batch, limit) {
			got, order = append(got, len(run)), append(order, run...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: runs of %v, want %v", limit, got, want)
		}
		if !slices.Equal(order, batch) {
			t.Errorf("limit %d: the order changed", limit)
		}
	}
	if runs := (packer{}).microBatches(nil, 5); len(runs) != 0 {
		t.Errorf("%d runs of nothing", len(runs))
	}
}

// TestNothingToPredict: a run without trained tokens skips the pass, and its log-probs are 0.
func TestNothingToPredict(t *testing.T) {
	l := tinyLearner(t, "cpu", func(o *Options) { o.Recomputed = true })
	q := &Sequence{ID: "x", Tokens: []int32{1, 2}, Sampled: []bool{false, false}}
	if err := l.Prepare(context.Background(), []*Sequence{q}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(q.old, []float32{0, 0}) {
		t.Errorf("old log-probs: %v", q.old)
	}
}

// TestPackSharesRows: two sequences of one prompt share its rows, also to predict their trained tokens.
func TestPackSharesRows(t *testing.T) {
	l := tinyLearner(t, "cpu", nil)
	run := []*Sequence{
		{Tokens: []int32{5, 6, 7, 8}, Sampled: []bool{false, false, true, true}},
		{Tokens: []int32{5, 6, 9}, Sampled: []bool{false, false, true}},
	}
	err := l.model.Device.Do(context.Background(), func(s *torch.Scope) error {
		b := packer{}.pack(s, run)
		for name, c := range map[string]struct {
			got  *torch.Tensor
			want []int32
		}{
			"ids": {b.in.IDs, []int32{5, 6, 7}}, "positions": {b.in.Pos, []int32{0, 1, 2}}, "offsets": {b.in.Cu, []int32{0, 3}},
			"follows": {b.in.Follows, []int32{-1}}, "source": {b.source, []int32{1, 2, 1}}, "target": {b.target, []int32{7, 8, 9}},
		} {
			got := make([]int32, c.got.Numel())
			c.got.Int32s(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
