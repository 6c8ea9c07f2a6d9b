package learner

import (
	"cmp"
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// pieceElements is how many values of a buffer are on their way between two ranks at a time (4 MiB).
const pieceElements = 1 << 20

// Steps is the number of updates made.
func (l *Learner) Steps() int64 { return l.steps }

// SetSteps sets the update count, when a checkpoint is restored.
func (l *Learner) SetSteps(n int64) { l.steps = n }

// Copy copies the weights and moments of all ranks to rank 0: master, m and v are whole there, and nil in the others.
func (l *Learner) Copy(ctx context.Context, master, m, v []float32) error {
	if err := l.collect(ctx, l.params.Master(), master); err != nil {
		return err
	}
	if err := l.collect(ctx, l.m, m); err != nil {
		return err
	}
	return l.collect(ctx, l.v, v)
}

// Read copies n of the weights of all ranks, from element from on, to dst of rank 0. In the others dst is nil. It is called also after
// Close.
func (l *Learner) Read(ctx context.Context, from, n int64, dst []float32) error {
	master := l.params.Master()
	var own error
	if here := min(n, master.Numel()-from); l.group.Rank() == 0 && here > 0 { // rank 0's share is the first
		own = master.Read(ctx, from, dst[:here])
	}
	return l.together(ctx, cmp.Or(own, l.eachPiece(ctx, master, from, from+n, l.toRank0(ctx, from, dst))))
}

// RestoreMoments gives every rank its share of the moments. On rank 0 m and v fill dst with the values from element `from` on; in the
// others they are nil.
func (l *Learner) RestoreMoments(ctx context.Context, m, v func(from int64, dst []float32) error) error {
	if err := l.distribute(ctx, l.m, m); err != nil {
		return err
	}
	return l.distribute(ctx, l.v, v)
}

// RestoreWeights gives all ranks other weights. On rank 0 read fills dst with the values from element `from` on; in the others it is nil.
// After an error the weights are of no use.
func (l *Learner) RestoreWeights(ctx context.Context, read func(from int64, dst []float32) error) error {
	var own error
	if l.group.Rank() == 0 {
		own = l.params.Restore(ctx, read)
	}
	if err := l.together(ctx, own); err != nil {
		return err
	}
	if err := l.distribute(ctx, l.params.Master(), read); err != nil {
		return err
	}
	return l.together(ctx, l.publish(ctx))
}

// publish gives all ranks what rank 0 has of the buffers that each holds whole.
func (l *Learner) publish(ctx context.Context) error {
	return l.meet(ctx, func(*torch.Scope) error {
		for _, whole := range l.whole() {
			for r := 1; r < l.group.Size(); r++ {
				if err := l.group.Send(ctx, whole, 0, r); err != nil {
					return err
				}
			}
		}
		l.params.Publish()
		return nil
	})
}

// Digest is a checksum of the weights that forward passes read, by which ranks compare theirs.
func (l *Learner) Digest(ctx context.Context) (sum uint32, err error) {
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

// collect copies a flat fp32 buffer to dst of rank 0. An error is one of all ranks.
func (l *Learner) collect(ctx context.Context, flat *model.Buffer, dst []float32) error {
	var own error
	if l.group.Rank() == 0 {
		own = flat.Copy(ctx, dst[:flat.Numel()])
	}
	moved := l.eachPiece(ctx, flat, 0, l.params.Numel(), l.toRank0(ctx, 0, dst))
	return l.together(ctx, cmp.Or(own, moved))
}

// toRank0 sends pieces to rank 0, where dst begins with element start of their buffer.
func (l *Learner) toRank0(ctx context.Context, start int64, dst []float32) func(s *torch.Scope, owner int, from int64, piece *torch.Tensor) error {
	return func(_ *torch.Scope, owner int, from int64, piece *torch.Tensor) error {
		if err := l.group.Send(ctx, piece, owner, 0); err != nil || l.group.Rank() > 0 {
			return err
		}
		piece.Float32s(dst[from-start:][:piece.Numel()])
		return nil
	}
}

// distribute fills every rank's share of a flat fp32 buffer from what rank 0 reads. After an error of read it sends zeros: the others
// wait for values before they hear of it. An error is one of all ranks.
func (l *Learner) distribute(ctx context.Context, flat *model.Buffer, read func(from int64, dst []float32) error) error {
	var unread error
	given := func(from int64, dst []float32) error {
		if unread == nil {
			unread = read(from, dst)
		}
		if unread != nil {
			clear(dst)
		}
		return nil
	}
	var own error
	if l.group.Rank() == 0 {
		own = flat.Fill(ctx, given)
	}
	moved := l.eachPiece(ctx, flat, 0, l.params.Numel(), func(s *torch.Scope, owner int, from int64, piece *torch.Tensor) error {
		if l.group.Rank() == 0 {
			values := make([]float32, piece.Numel())
			_ = given(from, values)
			piece = s.FromFloat32(values, piece.Numel())
		}
		return l.group.Send(ctx, piece, 0, owner)
	})
	return l.together(ctx, cmp.Or(own, moved, unread))
}

// eachPiece calls move for the pieces that rank 0 lacks of elements [begin, end) of a flat buffer, in their order: for all but rank 0's
// share where each rank has its share alone. piece is the owner's, and memory for it in the other ranks.
func (l *Learner) eachPiece(ctx context.Context, flat *model.Buffer, begin, end int64, move func(s *torch.Scope, owner int, from int64, piece *torch.Tensor) error) error {
	n := l.params.Numel()
	if flat.Numel() == n {
		return nil
	}
	for owner := 1; owner < l.group.Size(); owner++ {
		first, last := l.group.Share(n, owner)
		last = min(last, end)
		for from := max(first, begin); from < last; from += pieceElements {
			size := min(pieceElements, last-from)
			err := l.meet(ctx, func(s *torch.Scope) error {
				if l.group.Rank() == owner {
					return flat.Lend(s, from-first, size, func(piece *torch.Tensor) error { return move(s, owner, from, piece) })
				}
				return move(s, owner, from, s.Empty(torch.Float32, size))
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
