// Package ranks is how the processes that train one agent together, its ranks, exchange what they have.
package ranks

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Group is the ranks of an agent, as one of them sees it: [Solo] or *torch.Group. Every rank calls the same methods in the same
// order, with tensors of one shape and dtype. Methods with tensors are called inside Do of their device.
//
// After an error every rank is to give up the group: where a rank was lost or did not answer in time, it is a *torch.GroupError. A tensor
// that was to be overwritten then has any part of what was on its way, as of a rank that was killed while it sent.
type Group interface {
	// Rank is this process's number, from 0.
	Rank() int
	// Size is the number of processes.
	Size() int
	// ReduceScatter writes the sum of all ranks' t, fp32, into this rank's share of t, adding up from rank 0 to the last. The
	// rest of t stays as it is. Of one block the shares are those of ShareOf.
	ReduceScatter(ctx context.Context, t *torch.Tensor) error
	// Accumulate adds every rank's t to sum, fp32, which has this rank's share of t alone: from rank 0's to the last's.
	Accumulate(ctx context.Context, sum, t *torch.Tensor) error
	// AllGather overwrites every other rank's share of t with what that rank has there.
	AllGather(ctx context.Context, t *torch.Tensor) error
	// StartAllGather begins an AllGather of t, which FinishAllGather ends, with other calls in between. The one that was started first is
	// finished first; until then nobody writes t, or reads more of it than this rank's share.
	StartAllGather(ctx context.Context, t *torch.Tensor) error
	FinishAllGather(ctx context.Context, t *torch.Tensor) error
	// Send overwrites rank to's t with what rank from has.
	Send(ctx context.Context, t *torch.Tensor, from, to int) error
	// AllToAll overwrites the rows of in with those of every rank's out that are for this one: of out sent[r] rows are for rank r, and of in
	// came[r] are from it, those of rank 0 first. Both are [rows, n], of which numbers of rows differ among ranks.
	AllToAll(ctx context.Context, in, out *torch.Tensor, came, sent []int64) error
	// Exchange returns what every rank gave, by rank; a rank that gives more than most bytes is an error of all. It needs no Do.
	Exchange(ctx context.Context, mine []byte, most int) ([][]byte, error)
	// GiveUp has the calls of the other ranks fail, those under way too, and later ones of this rank return why. A rank calls it that
	// cannot make the next call, for which the others would wait.
	GiveUp(why error)
}

var _ Group = (*torch.Group)(nil)

// Solo is the group of a process that trains its agent alone.
type Solo struct{}

func (Solo) Rank() int                                            { return 0 }
func (Solo) Size() int                                            { return 1 }
func (Solo) ReduceScatter(context.Context, *torch.Tensor) error   { return nil }
func (Solo) AllGather(context.Context, *torch.Tensor) error       { return nil }
func (Solo) StartAllGather(context.Context, *torch.Tensor) error  { return nil }
func (Solo) FinishAllGather(context.Context, *torch.Tensor) error { return nil }
func (Solo) Send(context.Context, *torch.Tensor, int, int) error  { return nil }
func (Solo) Exchange(_ context.Context, mine []byte, _ int) ([][]byte, error) {
	return [][]byte{mine}, nil
}
func (Solo) AllToAll(_ context.Context, in, out *torch.Tensor, _, _ []int64) error {
	in.CopyFrom(out)
	return nil
}
func (Solo) GiveUp(error) {}

// Accumulate adds t to sum without a copy of t in sum's dtype.
func (Solo) Accumulate(_ context.Context, sum, t *torch.Tensor) error {
	const piece = 1 << 20 // a CPU adds bf16 to fp32 through an fp32 copy of the piece
	for from, all := int64(0), t.Numel(); from < all; from += piece {
		n := min(piece, all-from)
		sum.Narrow(0, from, n).Add_(t.Narrow(0, from, n))
	}
	return nil
}
