// Package ranks connects the processes that train one agent together, its ranks.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package ranks

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Group is the ranks of an agent from the view of one of them: [Solo] or *torch.Group. Every rank calls the same
// methods in the same order, with tensors of one dtype and, except in AllToAll, of one shape. Methods with tensors are
// called inside Do of their device.
//
// After an error every rank must give up the group. If a rank was lost or did not answer in time, the error is a
// *torch.GroupError. A tensor that was being overwritten may then hold any part of the data in transit.
type Group interface {
	// Rank returns this process's number, counted from 0.
	Rank() int
	// Size returns the number of processes.
	Size() int
	// ReduceScatter writes the sum of all ranks' t (fp32) into this rank's share of t, adding from rank 0 to the last.
	// The rest of t is unchanged. The shares of one block are those of ShareOf.
	ReduceScatter(ctx context.Context, t *torch.Tensor) error
	// Accumulate adds every rank's t, in rank order, to sum (fp32), which contains this rank's share of t only.
	Accumulate(ctx context.Context, sum, t *torch.Tensor) error
	// AllGather overwrites every other rank's share of t with that rank's values.
	AllGather(ctx context.Context, t *torch.Tensor) error
	// StartAllGather begins an AllGather of t. FinishAllGather ends it, and other calls may come between. Gathers
	// finish in the order of their start; until then t must not be written, and only this rank's share may be read.
	StartAllGather(ctx context.Context, t *torch.Tensor) error
	FinishAllGather(ctx context.Context, t *torch.Tensor) error
	// Send overwrites t on rank `to` with the values of t on rank `from`.
	Send(ctx context.Context, t *torch.Tensor, from, to int) error
	// AllToAll overwrites the rows of `in` with the rows that all ranks send to this rank. sent[r] rows of `out` are for
	// rank r, and received[r] rows of `in` come from rank r, both in rank order. Both tensors are [rows, n]; numbers of rows
	// differ among ranks.
	AllToAll(ctx context.Context, in, out *torch.Tensor, received, sent []int64) error
	// Exchange returns the bytes that each rank passed, by rank. If a rank passes more than `most` bytes, all ranks return
	// an error. It need not be called inside Do.
	Exchange(ctx context.Context, mine []byte, most int) ([][]byte, error)
	// Abort makes pending and later calls of the other ranks fail, and makes later calls of this rank return why. A rank
	// calls it if it cannot make the next call, for which the others would wait.
	Abort(why error)
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
func (Solo) Abort(error) {}

// Accumulate adds t to sum without a copy of all of t in sum's dtype.
func (Solo) Accumulate(_ context.Context, sum, t *torch.Tensor) error {
	const piece = 1 << 20 // a CPU adds bf16 to fp32 through an fp32 copy of the piece
	for from, all := int64(0), t.Numel(); from < all; from += piece {
		n := min(piece, all-from)
		sum.Narrow(0, from, n).Add_(t.Narrow(0, from, n))
	}
	return nil
}
