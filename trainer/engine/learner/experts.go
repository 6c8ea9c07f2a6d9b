package learner

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// failedExperts is the error of this rank's experts. All exchanges were made nevertheless.
type failedExperts struct{ error }

func (f failedExperts) Unwrap() error { return f.error }

// dispatch sends this rank's rows of a layer to the ranks that own their experts, and computes the rows
// that arrive with this rank's experts. It returns the results of its own rows. Every rank must call it
// at the same time, even without rows. After an error other than failedExperts the group is unusable.
func (p *passes) dispatch(ctx context.Context, s *torch.Scope, m *model.Model, out model.RoutedRows) (back []*torch.Tensor, err error) {
	r, err := p.exchangeCounts(ctx, out.Counts)
	if err != nil {
		return nil, err
	}
	s.Scoped(func() {
		opErr := catchTorchError(func() {
			var received, results []*torch.Tensor
			if received, err = p.allToAll(ctx, s, out.Rows, r.received, r.sent); err != nil {
				return
			}
			failed := catchTorchError(func() { results = m.ApplyExperts(s, out.Layer, received, r.experts) })
			if failed != nil { // the others wait for results of this shape; no update will use them
				results = model.EmptyResults(received)
			}
			if back, err = p.allToAll(ctx, s, results, r.sent, r.received); err == nil && failed != nil {
				err = failedExperts{failed}
			}
			for _, rows := range back {
				s.Hoist(rows)
			}
		})
		if opErr != nil {
			err = opErr
			p.group.Abort(err)
		}
	})
	return back, err
}

// catchTorchError calls f and returns the error of the torch operation that ended it, or nil.
func catchTorchError(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			failed, known := p.(*torch.Error)
			if !known {
				panic(p)
			}
			err = failed
		}
	}()
	f()
	return nil
}

// allToAll sends rows of several tensors and returns the rows that arrived.
func (p *passes) allToAll(ctx context.Context, s *torch.Scope, out []*torch.Tensor, received, sent []int64) (in []*torch.Tensor, err error) {
	n := int64(0)
	for _, from := range received {
		n += from
	}
	for _, rows := range out {
		there := s.Empty(rows.DType(), n, rows.Size(1))
		if err := p.group.AllToAll(ctx, there, rows, received, sent); err != nil {
			return nil, err
		}
		in = append(in, there)
	}
	return in, nil
}

// rowCounts holds the number of a layer's rows that this rank sends to each rank, and the number that it
// receives from each rank. For each received row it holds the index of its expert among this rank's experts.
type rowCounts struct {
	sent, received []int64
	experts        []int32
}

// exchangeCounts exchanges the number of rows for each expert. After an error the group is unusable.
func (p *passes) exchangeCounts(ctx context.Context, counts []int) (r rowCounts, err error) {
	defer func() {
		if err != nil {
			p.group.Abort(err)
		}
	}()
	var mine []byte
	for _, n := range counts {
		mine = binary.LittleEndian.AppendUint32(mine, uint32(n))
	}
	all, err := p.group.Exchange(ctx, mine, len(mine))
	if err != nil {
		return r, err
	}
	shape := p.model.Config
	most := p.maxRows * shape.Mixture.PerToken
	own, end := ranks.Experts(len(counts), p.group.Rank(), p.group.Size())
	for rank, theirs := range all {
		if len(theirs) != len(mine) {
			return r, fmt.Errorf("learner: rank %d counts rows in %d bytes instead of %d: it has a different model", rank, len(theirs), len(mine))
		}
		received, sent, rows := 0, 0, 0
		for e := range counts {
			n := int(binary.LittleEndian.Uint32(theirs[4*e:]))
			if rows += n; rows > most {
				return r, fmt.Errorf("learner: rank %d has more than %d rows for a layer's experts: it has a different configuration", rank, most)
			}
			if own <= e && e < end {
				received += n
				r.experts = append(r.experts, slices.Repeat([]int32{int32(e - own)}, n)...)
			}
		}
		for e, last := ranks.Experts(len(counts), rank, p.group.Size()); e < last; e++ {
			sent += counts[e]
		}
		r.received, r.sent = append(r.received, int64(received)), append(r.sent, int64(sent))
	}
	return r, nil
}
