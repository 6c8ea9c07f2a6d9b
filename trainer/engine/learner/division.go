package learner

import (
	"cmp"
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// division divides the trained parameters of a model among ranks.
type division struct {
	model  *model.Model
	params model.Params
	group  group
	blocks []ranks.Block // of the parameters
	share  ranks.Share   // this rank's share of the blocks
	fixed  []ranks.Span  // parameters that no update changes
}

func newDivision(mod *model.Model, params model.Params, g ranks.Group) *division {
	d := &division{model: mod, params: params, group: group{g}}
	if g == nil {
		d.group = group{ranks.Solo{}}
	}
	for _, p := range params.Leaves() {
		d.blocks = ranks.Extend(d.blocks, p.Block)
		if p.Constant {
			d.fixed = append(d.fixed, p.Span)
		}
	}
	d.share = d.shareOf(d.group.Rank())
	return d
}

// pieceElements is the number of values of a buffer that are sent between two ranks at a time (4 MiB).
const pieceElements = 1 << 20

// whole returns the buffers of weights that every rank has completely, which forward passes read.
func (d *division) whole() (all []*torch.Tensor) {
	for _, flat := range []*torch.Tensor{d.params.Master().Tensor, d.params.Half()} {
		if flat != nil && flat.Numel() == d.params.Numel() {
			all = append(all, flat)
		}
	}
	return all
}

// in returns a piece of this rank's share as a view of a flat buffer, which holds either all parameters or only this share.
func (d *division) in(flat *torch.Tensor, p ranks.Piece) *torch.Tensor {
	return flat.Narrow(0, p.In(flat.Numel(), d.params.Numel()), p.Numel())
}

// shareOf returns a rank's share of the parameters.
func (d *division) shareOf(rank int) ranks.Share {
	return ranks.ShareOf(d.blocks, rank, d.group.Size())
}

// copyToRank0 copies a span of a flat fp32 buffer to dst on rank 0. If one rank fails, all return an error.
func (d *division) copyToRank0(ctx context.Context, flat *model.Buffer, span ranks.Span, dst []float32) error {
	whole, own := flat.Numel() == d.params.Numel(), d.share.Within(span)
	if whole {
		own = ranks.Share{{Span: span}}
	}
	var unread error
	for i := 0; d.group.Rank() == 0 && i < len(own) && unread == nil; i++ {
		p := own[i]
		unread = flat.Copy(ctx, p.In(flat.Numel(), d.params.Numel()), dst[p.From-span.From:p.To-span.From])
	}
	var moved error
	if !whole {
		moved = d.eachPiece(ctx, flat, span, func(_ *torch.Scope, owner int, at ranks.Span, piece *torch.Tensor) error {
			if err := d.group.Send(ctx, piece, owner, 0); err != nil || d.group.Rank() > 0 {
				return err
			}
			piece.Float32s(dst[at.From-span.From : at.To-span.From])
			return nil
		})
	}
	return d.group.together(ctx, cmp.Or(unread, moved))
}

// distribute fills every rank's share of a flat fp32 buffer with values that rank 0 reads. After an error of read it
// sends zeros, since the others wait for values before they receive the error. If one rank fails, all return an error.
func (d *division) distribute(ctx context.Context, flat *model.Buffer, read func(from int64, dst []float32) error) error {
	var unread, own error
	readOwn := func(from int64, dst []float32) error {
		if unread == nil {
			unread = read(from, dst)
		}
		if unread != nil {
			clear(dst)
		}
		return nil
	}
	for i := 0; d.group.Rank() == 0 && i < len(d.share) && own == nil; i++ {
		p := d.share[i]
		own = flat.Fill(ctx, p.In(flat.Numel(), d.params.Numel()), p.Numel(), func(from int64, dst []float32) error { return readOwn(p.From+from, dst) })
	}
	moved := d.eachPiece(ctx, flat, ranks.Span{To: d.params.Numel()}, func(s *torch.Scope, owner int, at ranks.Span, piece *torch.Tensor) error {
		if d.group.Rank() == 0 {
			values := make([]float32, piece.Numel())
			_ = readOwn(at.From, values)
			piece = s.FromFloat32(values, piece.Numel())
		}
		return d.group.Send(ctx, piece, 0, owner)
	})
	return d.group.together(ctx, cmp.Or(own, moved, unread))
}

// eachPiece calls move for the pieces of a span of a flat buffer that belong to ranks other than 0. piece is the owner's
// memory, and temporary memory on other ranks.
func (d *division) eachPiece(ctx context.Context, flat *model.Buffer, span ranks.Span,
	move func(s *torch.Scope, owner int, at ranks.Span, piece *torch.Tensor) error) error {
	for owner := 1; owner < d.group.Size(); owner++ {
		for _, p := range d.shareOf(owner).Within(span).Cut(pieceElements) {
			err := d.group.run(ctx, d.model.Device, func(s *torch.Scope) error {
				if d.group.Rank() != owner {
					return move(s, owner, p.Span, s.Empty(torch.Float32, p.Numel()))
				}
				return flat.OnDevice(s, p.In(flat.Numel(), d.params.Numel()), p.Numel(),
					func(piece *torch.Tensor) error { return move(s, owner, p.Span, piece) })
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// spread gives every rank the others' shares of the weights that forward passes always read, and publishes them.
func (d *division) spread(ctx context.Context) error {
	if d.model.Gathered() {
		return d.group.gatherRest(ctx, d.model)
	}
	for _, whole := range d.whole() {
		for _, b := range d.blocks {
			if err := d.group.AllGather(ctx, whole.Narrow(0, b.From, b.Numel())); err != nil {
				return err
			}
		}
	}
	d.params.Publish()
	return nil
}
