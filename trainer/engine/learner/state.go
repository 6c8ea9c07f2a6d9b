package learner

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// State holds the values that training changes, which checkpoints contain: the weights, AdamW's moments, and the number of updates.
// Each rank updates its share of the weights and has the moments of this share.
type State struct {
	*division
	adam  Adam
	m, v  *model.Buffer // [share.Numel]: first and second moment
	steps int64         // updates with these moments; AdamW's bias correction counts them

	Earlier int64 // updates before the moments began anew, because a checkpoint had none
}

// Steps returns the number of updates with these moments.
func (s *State) Steps() int64 { return s.steps }

// Updates returns the number of all updates.
func (s *State) Updates() int64 { return s.Earlier + s.steps }

// SetSteps sets the update count, when a checkpoint is restored.
func (s *State) SetSteps(n int64) { s.steps = n }

// Copy copies the weights and moments of all ranks to rank 0: there master, m and v receive the complete buffers; on
// the others they are nil.
func (s *State) Copy(ctx context.Context, master, m, v []float32) error {
	all := ranks.Span{To: s.params.Numel()}
	if err := s.copyToRank0(ctx, s.params.Master(), all, master); err != nil {
		return err
	}
	if err := s.copyToRank0(ctx, s.m, all, m); err != nil {
		return err
	}
	return s.copyToRank0(ctx, s.v, all, v)
}

// Read copies n weights of all ranks, beginning with element `from`, to dst on rank 0. On the others dst is nil. It also
// works after Close.
func (s *State) Read(ctx context.Context, from, n int64, dst []float32) error {
	return s.copyToRank0(ctx, s.params.Master(), ranks.Span{From: from, To: from + n}, dst)
}

// RestoreMoments gives every rank its share of the moments. On rank 0 m and v fill dst with the values that begin at
// element `from`; on the others they are nil.
func (s *State) RestoreMoments(ctx context.Context, m, v func(from int64, dst []float32) error) error {
	if err := s.distribute(ctx, s.m, m); err != nil {
		return err
	}
	return s.distribute(ctx, s.v, v)
}

// RestoreWeights gives all ranks new weights. On rank 0 read fills dst with the values that begin at element `from`; on the
// others it is nil. After an error the weights are unusable.
func (s *State) RestoreWeights(ctx context.Context, read func(from int64, dst []float32) error) error {
	if err := s.distribute(ctx, s.params.Master(), read); err != nil {
		return err
	}
	return s.group.together(ctx, s.group.run(ctx, s.model.Device, func(scope *torch.Scope) error {
		if half, master := s.params.Half(), s.params.Master(); half != nil {
			for _, p := range s.share {
				master.CopyTo(scope, p.In(master.Numel(), s.params.Numel()), s.in(half, p))
			}
		}
		return s.spread(ctx)
	}))
}

// Digest returns a checksum of the weights that forward passes read, with which ranks compare their weights.
func (s *State) Digest(ctx context.Context) (sum uint32, err error) {
	if s.model.Gathered() {
		return s.model.Digest(ctx)
	}
	values := make([]float32, pieceElements)
	for from, n := int64(0), s.params.Numel(); from < n; from += pieceElements {
		part := values[:min(pieceElements, n-from)]
		if err := model.BufferOver(s.whole()[0]).Read(ctx, from, part); err != nil {
			return 0, err
		}
		sum = model.Checksum(sum, part)
	}
	return sum, nil
}

// Reset sets moments and update count to 0, as between cold start and training.
func (s *State) Reset(ctx context.Context) error {
	s.steps = 0
	return s.model.Device.Do(ctx, func(*torch.Scope) error {
		s.m.Clear()
		s.v.Clear()
		return nil
	})
}

// SetAdam changes the optimizer's constants, as between cold start and training.
func (s *State) SetAdam(a Adam) { s.adam = a }
