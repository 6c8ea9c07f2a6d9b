package learner

import (
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// cut makes two rows of each sequence with two or more trained tokens. The first ends in the middle, and the second
// has the tokens of the first as its prompt. The first sequence gets an additional row without trained tokens.
func cut(batch []*Sequence) (rows []*Sequence) {
	for _, q := range batch {
		at := q.trained()
		if len(at) < 2 {
			rows = append(rows, q)
			continue
		}
		end := at[len(at)/2]
		first, second := *q, *q
		second.ID += "+1"
		first.Tokens, first.Sampled, first.Behaviour = q.Tokens[:end], q.Sampled[:end], q.Behaviour[:end]
		second.Sampled = slices.Concat(make([]bool, end), q.Sampled[end:])
		rows = append(rows, &second, &first)
	}
	untrained := *rows[0]
	untrained.ID += "+2"
	untrained.Sampled = make([]bool, len(untrained.Tokens))
	return append(rows, &untrained)
}

// TestRowsWeighAsOne: a trajectory that was cut into rows has the same loss and gradient as the
// whole trajectory has in the float64 objective.
func TestRowsWeighAsOne(t *testing.T) {
	for _, aggregation := range []mgrpo.Aggregation{mgrpo.TrajectoryMean, mgrpo.TokenMean, mgrpo.ConstantLength} {
		t.Run(string(aggregation), func(t *testing.T) {
			l := tinyLearner(t, "cpu", func(o *Options) {
				o.Objective.Aggregation, o.Objective.MaxLength, o.MicroBatchTokens = aggregation, 64, 1 // each row runs alone
			})
			batch := tinyBatch(t, l, 0.6)
			for _, q := range batch {
				q.old = q.Behaviour
			}
			rows := cut(batch)
			if len(rows) < len(batch)+5 {
				t.Fatalf("%d rows of %d trajectories", len(rows), len(batch))
			}
			grad, r := gradientOf(t, l, rows)
			want, wantGrad := ofOracle(t, l, byID(batch))
			closeTo(t, "loss", r.Values["loss"], want.Stats.Values()["loss"], 2e-6)
			if far := apart(grad, wantGrad, 1); far > 2e-5 {
				t.Errorf("gradient %v apart", far)
			}
		})
	}
}
