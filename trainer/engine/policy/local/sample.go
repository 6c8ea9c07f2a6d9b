package local

import (
	"errors"
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// settings returns the settings for sampling the next token. Its random number is a function of the sequence's key and
// the token's position.
func (q *sequence) settings() kernels.Sampling {
	return kernels.Sampling{
		Temperature: q.sampling.Temperature, TopP: q.sampling.TopP, MinP: q.sampling.MinP, TopK: int32(q.sampling.TopK),
		Key: q.key, Position: uint64(len(q.tokens)),
	}
}

// sample draws the next token of each ready sequence; row i of logits [N, vocabulary] belongs to ready[i].
func sample(s *torch.Scope, logits *torch.Tensor, ready []*sequence) ([]token, error) {
	rows := make([]kernels.Sampling, len(ready))
	for i, q := range ready {
		rows[i] = q.settings()
	}
	constrain(s, logits, ready)
	n := int64(len(ready))
	drawn := s.Empty(torch.Int32, 2, n) // ids, and the bits of their log-probs: one copy to the host
	ids, logp := drawn.Select(0, 0), drawn.Select(0, 1)
	if err := kernels.Sample(model.Backend(s), logitsOf(logits), rows, ids.Ptr(), logp.Ptr()); err != nil {
		return nil, fmt.Errorf("sampling: %w", err)
	}
	host := make([]int32, 2*n)
	drawn.Int32s(host)
	out := tokensOf(host[:n], host[n:])
	for i, q := range ready {
		if q.constraint != nil && q.constraintErr == nil {
			q.constraintErr = q.constraint.Accept(out[i].id)
		}
	}
	return out, nil
}

func logitsOf(t *torch.Tensor) kernels.Logits {
	return kernels.Logits{Data: t.Ptr(), DType: kernels.DType(t.DType()), Rows: t.Size(0), Vocab: t.Size(1), Stride: t.Size(1)}
}

// tokensOf returns tokens from their ids and the bits of their log-probs.
func tokensOf(ids, logp []int32) []token {
	out := make([]token, len(ids))
	for i, id := range ids {
		out[i] = token{id: id, logProb: math.Float32frombits(uint32(logp[i]))}
	}
	return out
}

// constrain removes forbidden tokens from the logits of sequences with a constraint. If a sequence's constraint fails,
// its constraintErr is set and its row is unchanged.
func constrain(s *torch.Scope, logits *torch.Tensor, ready []*sequence) {
	vocab := logits.Size(1)
	for i, q := range ready {
		if q.constraint == nil {
			continue
		}
		words, err := q.constraint.Allowed()
		minus := make([]float32, vocab) // added to the row
		any := false
		for id := range minus {
			if id/32 < len(words) && words[id/32]>>(id%32)&1 == 1 {
				any = true
			} else {
				minus[id] = float32(math.Inf(-1))
			}
		}
		if err == nil && !any {
			err = errors.New("policy: the constraint allows no token")
		}
		if q.constraintErr = err; err == nil {
			logits.Select(0, int64(i)).Add_(s.FromFloat32(minus, vocab).To(logits.DType()))
		}
	}
}
