package gotchx

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sugarme/gotch/ts"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Scorer is a TorchScript module with forward(tokens, mask) -> scores: tokens and mask are int64 [B, T], the scores
// float32 [B]. The mask is 1 for tokens and 0 for padding, which is at the end.
type Scorer struct {
	path   string
	device *torch.Device
	module *ts.CModule
}

// OpenScorer loads a file of torch.jit.save onto a new device. The file is a program that runs in this process, so open only files whose
// author you trust.
func OpenScorer(ctx context.Context, path, device string, threads int) (*Scorer, error) {
	d, err := torch.Open(device, threads)
	if err != nil {
		return nil, err
	}
	s := &Scorer{path: path, device: d}
	err = d.Do(ctx, func(*torch.Scope) (err error) {
		if s.module, err = ts.ModuleLoadOnDevice(path, toDevice(d)); err != nil {
			return fmt.Errorf("gotchx: %s: no TorchScript module, as torch.jit.save writes it: %w", path, err)
		}
		s.module.SetEval()
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return s, nil
}

// Score returns the scores of a batch of sequences, each with at least one token. It returns an error if the module fails, or if its output
// has another shape or dtype.
func (s *Scorer) Score(ctx context.Context, batch [][]int32) ([]float32, error) {
	longest := 0
	for _, tokens := range batch {
		longest = max(longest, len(tokens))
	}
	if longest == 0 {
		return nil, errors.New("gotchx: a batch without tokens")
	}
	ids, mask := make([]int64, len(batch)*longest), make([]int64, len(batch)*longest)
	for i, tokens := range batch {
		for j, id := range tokens {
			ids[i*longest+j], mask[i*longest+j] = int64(id), 1
		}
	}
	shape := []int64{int64(len(batch)), int64(longest)}
	scores := make([]float32, len(batch))
	err := s.device.Do(ctx, func(scope *torch.Scope) error {
		tokens, attention := toGotch(scope.FromInt64(ids, shape...)), toGotch(scope.FromInt64(mask, shape...))
		defer tokens.MustDrop()
		defer attention.MustDrop()
		out, err := s.module.ForwardTs([]*ts.Tensor{tokens, attention})
		if err != nil {
			return fmt.Errorf("gotchx: %s: forward(tokens, mask) of int64 %v: %w", s.path, shape, err)
		}
		defer out.MustDrop()
		result := fromGotch(scope, out)
		if result.DType() != torch.Float32 || !slices.Equal(result.Shape(), shape[:1]) {
			return fmt.Errorf("gotchx: %s: forward returned %v %v; want float32 %v, one score per sequence", s.path, result.DType(), result.Shape(), shape[:1])
		}
		result.Float32s(scores)
		return nil
	})
	return scores, err
}

// Close frees the module.
func (s *Scorer) Close() error {
	err := s.device.Do(context.Background(), func(*torch.Scope) error { s.module.Drop(); return nil })
	return errors.Join(err, s.device.Close())
}
