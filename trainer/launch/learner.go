package launch

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// Learner is the learner of rank 0, with those of its followers, if it has some: each call is an order to them and rank 0's own part of
// the work.
type Learner struct {
	*learner.Learner
	crew *Crew
	adam learner.Adam
	at   map[string]int // places of sequences, by ID, in the batch that was prepared
}

// Lead gives a learner its followers: none if c is nil. adam is what own was made with.
func (c *Crew) Lead(own *learner.Learner, adam learner.Adam) *Learner {
	return &Learner{Learner: own, crew: c, adam: adam}
}

// Prepare is learner.Prepare of all ranks.
func (l *Learner) Prepare(ctx context.Context, batch []*learner.Sequence) error {
	l.at = make(map[string]int, len(batch))
	for i, q := range batch {
		l.at[q.ID] = i
	}
	_, err := l.crew.Do(ctx, Order{Kind: Prepare}, batch, func(ctx context.Context) error { return l.Learner.Prepare(ctx, batch) })
	return err
}

// Update is learner.Update of all ranks.
func (l *Learner) Update(ctx context.Context, minibatch []*learner.Sequence, lr float64) (r learner.Report, err error) {
	o := Order{Kind: Update, AdamW: l.adamW(lr)}
	for _, q := range minibatch {
		i, known := l.at[q.ID]
		if !known {
			return r, fmt.Errorf("launch: sequence %s was not prepared", q.ID)
		}
		o.Which = append(o.Which, i)
	}
	_, err = l.crew.Do(ctx, o, nil, func(ctx context.Context) (err error) {
		r, err = l.Learner.Update(ctx, minibatch, lr)
		return err
	})
	return r, err
}

// Supervise is learner.Supervise of all ranks.
func (l *Learner) Supervise(ctx context.Context, demonstrations []*learner.Sequence, lr float64) (r learner.Report, err error) {
	_, err = l.crew.Do(ctx, Order{Kind: Supervise, AdamW: l.adamW(lr)}, demonstrations, func(ctx context.Context) (err error) {
		r, err = l.Learner.Supervise(ctx, demonstrations, lr)
		return err
	})
	return r, err
}

func (l *Learner) adamW(lr float64) *AdamW {
	return &AdamW{Adam: l.adam, LR: lr, Steps: l.Learner.Steps()}
}

// SetAdam changes the optimizer's constants of all ranks: the next update brings them.
func (l *Learner) SetAdam(a learner.Adam) {
	l.adam = a
	l.Learner.SetAdam(a)
}

// ResetOptimizer is learner.ResetOptimizer of all ranks.
func (l *Learner) ResetOptimizer(ctx context.Context) error {
	_, err := l.crew.Do(ctx, Order{Kind: Reset}, nil, l.Learner.ResetOptimizer)
	return err
}

// Copy copies the weights and AdamW's moments of all ranks into master, m and v, whole.
func (l *Learner) Copy(ctx context.Context, master, m, v []float32) error {
	_, err := l.crew.Do(ctx, Order{Kind: Gather}, nil, func(ctx context.Context) error { return l.Learner.Copy(ctx, master, m, v) })
	return err
}

// Read copies n of the weights of all ranks to dst, from element from on, also after Close.
func (l *Learner) Read(ctx context.Context, from, n int64, dst []float32) error {
	_, err := l.crew.Do(ctx, Order{Kind: Read, Span: &Span{From: from, N: n}}, nil, func(ctx context.Context) error { return l.Learner.Read(ctx, from, n, dst) })
	return err
}

// Logits are model.Logits of a model of which each rank has a share of the layers, also after Close.
func (l *Learner) Logits(ctx context.Context, ids []int32, ends []int) (logits [][]float32, err error) {
	_, err = l.crew.Do(ctx, Order{Kind: Assist}, nil, func(ctx context.Context) (err error) {
		logits, err = l.Learner.Logits(ctx, ids, ends)
		return err
	})
	return logits, err
}

// RestoreMoments gives all ranks their moments. m and v fill dst with the values that begin at index from.
func (l *Learner) RestoreMoments(ctx context.Context, m, v func(from int64, dst []float32) error) error {
	_, err := l.crew.Do(ctx, Order{Kind: Restore}, nil, func(ctx context.Context) error { return l.Learner.RestoreMoments(ctx, m, v) })
	return err
}

// RestoreWeights gives all ranks other weights. read fills dst with those that begin at index from.
func (l *Learner) RestoreWeights(ctx context.Context, read func(from int64, dst []float32) error) error {
	replies, err := l.crew.Do(ctx, Order{Kind: Adopt}, nil, func(ctx context.Context) error { return l.Learner.RestoreWeights(ctx, read) })
	if err != nil {
		return err
	}
	return l.Agree(ctx, replies)
}

// Close frees what all ranks train with. The followers may go on to sample.
func (l *Learner) Close(ctx context.Context) error {
	_, err := l.crew.Do(ctx, Order{Kind: Release}, nil, l.Learner.Close)
	return err
}

// Agree holds the digests of the followers' weights against rank 0's.
func (l *Learner) Agree(ctx context.Context, replies []Reply) error {
	if len(replies) == 0 {
		return nil
	}
	digest, err := l.Learner.Digest(ctx)
	if err != nil {
		return err
	}
	return l.crew.Agree(digest, replies)
}

// Params are rank 0's trained parameters. When they are restored, the followers take them over.
type Params struct {
	model.Params
	Learner *Learner
}

// Read is model.Params.Read, with the other ranks where they have a share of the values.
func (p Params) Read(ctx context.Context, from int64, dst []float32) error {
	if !p.Shared() {
		return p.Params.Read(ctx, from, dst)
	}
	return p.Learner.Read(ctx, from, int64(len(dst)), dst)
}

// Shared says whether each rank has its share of the values and no others.
func (p Params) Shared() bool { return p.Params.Master().Numel() != p.Params.Numel() }

// Restore is model.Params.Restore of all ranks.
func (p Params) Restore(ctx context.Context, read func(from int64, dst []float32) error) error {
	return p.Learner.RestoreWeights(ctx, read)
}
