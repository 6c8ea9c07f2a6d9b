package learner

import (
	"cmp"
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// pieceElements is the number of values of a buffer that are sent between two ranks at a time (4 MiB).
const pieceElements = 1 << 20

// Steps returns the number of updates made.
func (l *Learner) Steps() int64 { return l.steps }

// SetSteps sets the update count, when a checkpoint is restored.
func (l *Learner) SetSteps(n int64) { l.steps = n }

// Copy copies the weights and moments of all ranks to rank 0: there master, m and v receive the complete buffers; on
// the others they are nil.
func (l *Learner) Copy(ctx context.Context, master, m, v []float32) error {
	all := ranks.Span{To: l.params.Numel()}
	if err := l.collect(ctx, l.params.Master(), all, master); err != nil {
		return err
	}
	if err := l.collect(ctx, l.m, all, m); err != nil {
		return err
	}
	return l.collect(ctx, l.v, all, v)
}

// Read copies n weights of all ranks, beginning with element `from`, to dst on rank 0. On the others dst is nil. It also
// works after Close.
func (l *Learner) Read(ctx context.Context, from, n int64, dst []float32) error {
	return l.collect(ctx, l.params.Master(), ranks.Span{From: from, To: from + n}, dst)
}

// RestoreMoments gives every rank its share of the moments. On rank 0 m and v fill dst with the values that begin at
// element `from`; on the others they are nil.
func (l *Learner) RestoreMoments(ctx context.Context, m, v func(from int64, dst []float32) error) error {
	if err := l.distribute(ctx, l.m, m); err != nil {
		return err
	}
	return l.distribute(ctx, l.v, v)
}

// RestoreWeights gives all ranks new weights. On rank 0 read fills dst with the values that begin at element `from`; on the
// others it is nil. After an error the weights are unusable.
func (l *Learner) RestoreWeights(ctx context.Context, read func(from int64, dst []float32) error) error {
	if err := l.distribute(ctx, l.params.Master(), read); err != nil {
		return err
	}
	return l.together(ctx, l.runOrGiveUp(ctx, func(s *torch.Scope) error {
		if half, master := l.params.Half(), l.params.Master(); half != nil {
			for _, p := range l.share {
				master.CopyTo(s, p.In(master.Numel(), l.params.Numel()), l.in(half, p))
			}
		}
		return l.spread(ctx)
	}))
}

// Digest returns a checksum of the weights that forward passes read, with which ranks compare their weights.
func (l *Learner) Digest(ctx context.Context) (sum uint32, err error) {
	if l.model.Gathered() {
		return l.model.Digest(ctx)
	}
	values := make([]float32, pieceElements)
	for from, n := int64(0), l.params.Numel(); from < n; from += pieceElements {
		part := values[:min(pieceElements, n-from)]
		if err := model.On(l.whole()[0]).Read(ctx, from, part); err != nil {
			return 0, err
		}
		sum = model.Checksum(sum, part)
	}
	return sum, nil
}

// collect copies a span of a flat fp32 buffer to dst on rank 0. All ranks return the same error.
func (l *Learner) collect(ctx context.Context, flat *model.Buffer, span ranks.Span, dst []float32) error {
	whole, own := flat.Numel() == l.params.Numel(), l.share.Within(span)
	if whole {
		own = ranks.Share{{Span: span}}
	}
	var unread error
	for i := 0; l.group.Rank() == 0 && i < len(own) && unread == nil; i++ {
		p := own[i]
		unread = flat.Copy(ctx, p.In(flat.Numel(), l.params.Numel()), dst[p.From-span.From:p.To-span.From])
	}
	var moved error
	if !whole {
		moved = l.eachPiece(ctx, flat, span, func(_ *torch.Scope, owner int, at ranks.Span, piece *torch.Tensor) error {
			if err := l.group.Send(ctx, piece, owner, 0); err != nil || l.group.Rank() > 0 {
				return err
			}
			piece.Float32s(dst[at.From-span.From : at.To-span.From])
			return nil
		})
	}
	return l.together(ctx, cmp.Or(unread, moved))
}

// distribute fills every rank's share of a flat fp32 buffer with values that rank 0 reads. After an error of read it
// sends zeros, since the others wait for values before they receive the error. All ranks return the same error.
func (l *Learner) distribute(ctx context.Context, flat *model.Buffer, read func(from int64, dst []float32) error) error {
	var unread, own error
	given := func(from int64, dst []float32) error {
		if unread == nil {
			unread = read(from, dst)
		}
		if unread != nil {
			clear(dst)
		}
		return nil
	}
	for i := 0; l.group.Rank() == 0 && i < len(l.share) && own == nil; i++ {
		p := l.share[i]
		own = flat.Fill(ctx, p.In(flat.Numel(), l.params.Numel()), p.Numel(), func(from int64, dst []float32) error { return given(p.From+from, dst) })
	}
	moved := l.eachPiece(ctx, flat, ranks.Span{To: l.params.Numel()}, func(s *torch.Scope, owner int, at ranks.Span, piece *torch.Tensor) error {
		if l.group.Rank() == 0 {
			values := make([]float32, piece.Numel())
			_ = given(at.From, values)
			piece = s.FromFloat32(values, piece.Numel())
		}
		return l.group.Send(ctx, piece, 0, owner)
	})
	return l.together(ctx, cmp.Or(own, moved, unread))
}

// eachPiece calls move for the pieces of a span of a flat buffer that belong to ranks other than 0. piece is the owner's
// memory, and temporary memory on other ranks.
func (l *Learner) eachPiece(ctx context.Context, flat *model.Buffer, span ranks.Span,
	move func(s *torch.Scope, owner int, at ranks.Span, piece *torch.Tensor) error) error {
	for owner := 1; owner < l.group.Size(); owner++ {
		for _, p := range l.shareOf(owner).Within(span).Cut(pieceElements) {
			err := l.runOrGiveUp(ctx, func(s *torch.Scope) error {
				if l.group.Rank() != owner {
					return move(s, owner, p.Span, s.Empty(torch.Float32, p.Numel()))
				}
				return flat.OnDevice(s, p.In(flat.Numel(), l.params.Numel()), p.Numel(),
					func(piece *torch.Tensor) error { return move(s, owner, p.Span, piece) })
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
