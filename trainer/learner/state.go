package learner

import (
	"context"
	"hash/crc32"
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// pieceElements is how many values of a buffer are on their way between two ranks at a time (4 MiB).
const pieceElements = 1 << 20

// Steps is the number of updates made.
func (l *Learner) Steps() int64 { return l.steps }

// SetSteps sets the update count, when a checkpoint is restored.
func (l *Learner) SetSteps(n int64) { l.steps = n }

// CopyMoments copies the moments of all ranks to rank 0: m and v are whole there, and nil in the others.
func (l *Learner) CopyMoments(ctx context.Context, m, v []float32) error {
	if err := l.collect(ctx, l.m, m); err != nil {
		return err
	}
	return l.collect(ctx, l.v, v)
}

// RestoreMoments gives every rank its share of the moments. On rank 0 m and v fill dst with the values from element `from` on; in the
// others they are nil.
func (l *Learner) RestoreMoments(ctx context.Context, m, v func(from int64, dst []float32) error) error {
	if err := l.distribute(ctx, l.m, m); err != nil {
		return err
	}
	return l.distribute(ctx, l.v, v)
}

// ShareWeights gives all ranks the weights of rank 0.
func (l *Learner) ShareWeights(ctx context.Context) error {
	return l.model.Device.Do(ctx, func(*torch.Scope) error {
		for _, whole := range []*torch.Tensor{l.params.Master(), l.params.Half()} {
			for r := 1; r < l.group.Size() && whole != nil; r++ {
				if err := l.group.Send(ctx, whole, 0, r); err != nil {
					return err
				}
			}
		}
		l.params.Publish()
		return nil
	})
}

// Digest is a checksum of the weights, by which ranks compare theirs.
func (l *Learner) Digest(ctx context.Context) (sum uint32, err error) {
	values := make([]float32, pieceElements)
	for from, n := int64(0), l.params.Numel(); from < n; from += pieceElements {
		part := values[:min(pieceElements, n-from)]
		if err := l.model.ReadFlat(ctx, l.params.Master(), from, part); err != nil {
			return 0, err
		}
		bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(part))), 4*len(part))
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), bytes)
	}
	return sum, nil
}

// collect copies all ranks' shares of a flat fp32 buffer to dst of rank 0.
func (l *Learner) collect(ctx context.Context, share *torch.Tensor, dst []float32) error {
	if l.group.Rank() == 0 {
		if err := l.model.CopyFlat(ctx, share, dst[l.from:l.to]); err != nil {
			return err
		}
	}
	return l.eachPiece(ctx, func(s *torch.Scope, owner int, from, n int64) error {
		var piece *torch.Tensor
		if l.group.Rank() == owner {
			piece = share.Narrow(0, from-l.from, n)
		} else {
			piece = s.Empty(torch.Float32, n)
		}
		if err := l.group.Send(ctx, piece, owner, 0); err != nil {
			return err
		}
		if l.group.Rank() == 0 {
			piece.Float32s(dst[from:][:n])
		}
		return nil
	})
}

// distribute fills every rank's share of a flat fp32 buffer from what rank 0 reads.
func (l *Learner) distribute(ctx context.Context, share *torch.Tensor, read func(from int64, dst []float32) error) error {
	if l.group.Rank() == 0 {
		if err := l.model.WriteFlat(ctx, share, read); err != nil {
			return err
		}
	}
	return l.eachPiece(ctx, func(s *torch.Scope, owner int, from, n int64) error {
		piece := s.Empty(torch.Float32, n)
		switch l.group.Rank() {
		case 0:
			values := make([]float32, n)
			if err := read(from, values); err != nil {
				return err
			}
			piece = s.FromFloat32(values, n)
		case owner:
			piece = share.Narrow(0, from-l.from, n)
		}
		return l.group.Send(ctx, piece, 0, owner)
	})
}

// eachPiece calls move for the pieces of all shares but rank 0's, in their order.
func (l *Learner) eachPiece(ctx context.Context, move func(s *torch.Scope, owner int, from, n int64) error) error {
	for owner := 1; owner < l.group.Size(); owner++ {
		from, to := l.group.Share(l.params.Numel(), owner)
		for ; from < to; from += pieceElements {
			n := min(pieceElements, to-from)
			if err := l.model.Device.Do(ctx, func(s *torch.Scope) error { return move(s, owner, from, n) }); err != nil {
				return err
			}
		}
	}
	return nil
}
