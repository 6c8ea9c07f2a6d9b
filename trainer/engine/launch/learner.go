package launch

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// RankedLearner is the learner of all ranks of an agent: each call is an order to the followers, if there are any, and rank
// 0's own part of the work. The field Rank0 is for reading and for work that concerns rank 0 alone. In a follower's process,
// Rank0 is the follower's own learner, and ExecuteOrder is the only method to call.
type RankedLearner struct {
	Rank0    *learner.Learner
	group    *RankGroup
	adam     learner.Adam
	prepared []*learner.Sequence
	at       map[string]int // index of each prepared sequence, by ID
}

// NewLearner returns the learner of all ranks. g may be nil if there are no followers. adam must equal
// own's constants.
func (g *RankGroup) NewLearner(own *learner.Learner, adam learner.Adam) *RankedLearner {
	return &RankedLearner{Rank0: own, group: g, adam: adam}
}

// Prepare calls learner.Prepare on all ranks.
func (l *RankedLearner) Prepare(ctx context.Context, batch []*learner.Sequence) error {
	l.prepared, l.at = batch, make(map[string]int, len(batch))
	for i, q := range batch {
		l.at[q.ID] = i
	}
	_, err := l.group.Do(ctx, Order{Kind: Prepare}, batch, func(ctx context.Context) error { return l.Rank0.Prepare(ctx, batch) })
	return err
}

// Update calls learner.Update on all ranks.
func (l *RankedLearner) Update(ctx context.Context, minibatch []*learner.Sequence, lr float64) (r learner.Report, err error) {
	o := Order{Kind: Update, AdamW: l.adamW(lr)}
	for _, q := range minibatch {
		i, known := l.at[q.ID]
		if !known {
			return r, fmt.Errorf("launch: sequence %s was not prepared", q.ID)
		}
		o.Indices = append(o.Indices, i)
	}
	_, err = l.group.Do(ctx, o, nil, func(ctx context.Context) (err error) {
		r, err = l.Rank0.Update(ctx, minibatch, lr)
		return err
	})
	return r, err
}

// ColdStartUpdate calls learner.ColdStartUpdate on all ranks.
func (l *RankedLearner) ColdStartUpdate(ctx context.Context, demonstrations []*learner.Sequence, lr float64) (r learner.Report, err error) {
	_, err = l.group.Do(ctx, Order{Kind: ColdStartUpdate, AdamW: l.adamW(lr)}, demonstrations, func(ctx context.Context) (err error) {
		r, err = l.Rank0.ColdStartUpdate(ctx, demonstrations, lr)
		return err
	})
	return r, err
}

func (l *RankedLearner) adamW(lr float64) *AdamW {
	return &AdamW{Adam: l.adam, LR: lr, Steps: l.Rank0.State.Steps()}
}

// SetAdam changes the optimizer's constants of all ranks; followers receive them with the next update.
func (l *RankedLearner) SetAdam(a learner.Adam) {
	l.adam = a
	l.Rank0.State.SetAdam(a)
}

// ResetOptimizer calls State.Reset of the learners of all ranks.
func (l *RankedLearner) ResetOptimizer(ctx context.Context) error {
	_, err := l.group.Do(ctx, Order{Kind: ResetOptimizer}, nil, l.Rank0.State.Reset)
	return err
}

// Copy copies the complete weights and AdamW's moments of all ranks into master, m and v.
func (l *RankedLearner) Copy(ctx context.Context, master, m, v []float32) error {
	_, err := l.group.Do(ctx, Order{Kind: CopyState}, nil, func(ctx context.Context) error { return l.Rank0.State.Copy(ctx, master, m, v) })
	return err
}

// Read copies n weights, beginning with element `from`, to dst. It also works after Release.
func (l *RankedLearner) Read(ctx context.Context, from, n int64, dst []float32) error {
	_, err := l.group.Do(ctx, Order{Kind: Read, Span: &Span{From: from, N: n}}, nil,
		func(ctx context.Context) error { return l.Rank0.State.Read(ctx, from, n, dst) })
	return err
}

// Logits calls model.Logits for a model whose layers are divided among ranks. It also works after Release.
func (l *RankedLearner) Logits(ctx context.Context, ids []int32, ends []int) (logits [][]float32, err error) {
	_, err = l.group.Do(ctx, Order{Kind: JoinForward}, nil, func(ctx context.Context) (err error) {
		logits, err = l.Rank0.Logits(ctx, ids, ends)
		return err
	})
	return logits, err
}

// RestoreMoments gives all ranks their moments. m and v fill dst with the values that begin at index `from`.
func (l *RankedLearner) RestoreMoments(ctx context.Context, m, v func(from int64, dst []float32) error) error {
	_, err := l.group.Do(ctx, Order{Kind: RestoreMoments}, nil, func(ctx context.Context) error { return l.Rank0.State.RestoreMoments(ctx, m, v) })
	return err
}

// RestoreWeights gives all ranks new weights. read fills dst with the values that begin at index `from`.
func (l *RankedLearner) RestoreWeights(ctx context.Context, read func(from int64, dst []float32) error) error {
	replies, err := l.group.Do(ctx, Order{Kind: RestoreWeights}, nil, func(ctx context.Context) error { return l.Rank0.State.RestoreWeights(ctx, read) })
	if err != nil {
		return err
	}
	return l.EndUnlessEqual(ctx, replies)
}

// Release frees the training buffers of all ranks. The followers can still sample.
func (l *RankedLearner) Release(ctx context.Context) error {
	_, err := l.group.Do(ctx, Order{Kind: Release}, nil, l.Rank0.Close)
	return err
}

// Close frees rank 0's buffers, after the followers have ended.
func (l *RankedLearner) Close(ctx context.Context) error { return l.Rank0.Close(ctx) }

// ExecuteOrder executes a follower's part of an order to the learners of all ranks. A refused update is refused on all ranks; rank 0
// reports it.
func (l *RankedLearner) ExecuteOrder(ctx context.Context, o Order, batch []*learner.Sequence) (r Reply, err error) {
	if o.AdamW != nil {
		l.Rank0.State.SetAdam(o.AdamW.Adam)
		l.Rank0.State.SetSteps(o.AdamW.Steps)
	}
	switch o.Kind {
	case Prepare:
		err = l.Prepare(ctx, batch)
	case Update:
		var minibatch []*learner.Sequence
		for _, i := range o.Indices {
			if i < 0 || i >= len(l.prepared) {
				return r, fmt.Errorf("sequence %d does not exist: %d were prepared", i, len(l.prepared))
			}
			minibatch = append(minibatch, l.prepared[i])
		}
		_, err = l.Rank0.Update(ctx, minibatch, o.AdamW.LR)
	case ColdStartUpdate:
		_, err = l.Rank0.ColdStartUpdate(ctx, batch, o.AdamW.LR)
	case ResetOptimizer:
		err = l.Rank0.State.Reset(ctx)
	case CopyState:
		err = l.Rank0.State.Copy(ctx, nil, nil, nil)
	case Read:
		err = l.Rank0.State.Read(ctx, o.Span.From, o.Span.N, nil)
	case JoinForward:
		err = l.Rank0.JoinForward(ctx)
	case RestoreMoments:
		err = l.Rank0.State.RestoreMoments(ctx, nil, nil)
	case RestoreWeights:
		if err = l.Rank0.State.RestoreWeights(ctx, nil); err == nil {
			r.Digest, err = l.Rank0.State.Digest(ctx)
		}
	case Release:
		err = l.Rank0.Close(ctx)
	default:
		err = fmt.Errorf("launch: %s is not an order to a learner", o.Kind)
	}
	return r, err
}

// EndUnlessEqual returns an error and ends the group if a follower's weights differ from rank 0's.
func (l *RankedLearner) EndUnlessEqual(ctx context.Context, replies []Reply) error {
	if len(replies) == 0 {
		return nil
	}
	digest, err := l.Rank0.State.Digest(ctx)
	if err != nil {
		return err
	}
	return l.group.EndUnlessEqual(digest, replies)
}

// RankedParams is the set of rank 0's trained parameters. Restoring them also restores the followers'.
type RankedParams struct {
	model.Params
	Learner *RankedLearner
}

// Read implements model.Params.Read, with the other ranks if they have a share of the values.
func (p RankedParams) Read(ctx context.Context, from int64, dst []float32) error {
	if !p.Shared() {
		return p.Params.Read(ctx, from, dst)
	}
	return p.Learner.Read(ctx, from, int64(len(dst)), dst)
}

// Shared reports whether each rank has only its share of the values.
func (p RankedParams) Shared() bool { return p.Params.Master().Numel() != p.Params.Numel() }

// Restore calls model.Params.Restore on all ranks.
func (p RankedParams) Restore(ctx context.Context, read func(from int64, dst []float32) error) error {
	return p.Learner.RestoreWeights(ctx, read)
}
