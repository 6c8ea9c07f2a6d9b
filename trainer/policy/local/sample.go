package local

import (
	"errors"
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// sample draws the next token of each ready sequence; row i of logits [N, vocabulary] belongs to ready[i]. A token's
// random number is a function of the sequence's key and the token's position.
func sample(s *torch.Scope, logits *torch.Tensor, ready []*sequence) ([]token, error) {
	rows := make([]kernels.Sampling, len(ready))
	for i, q := range ready {
		rows[i] = kernels.Sampling{
			Temperature: q.sampling.Temperature, TopP: q.sampling.TopP, MinP: q.sampling.MinP, TopK: int32(q.sampling.TopK),
			Key: q.key, Position: uint64(len(q.tokens)),
		}
	}
	constrain(s, logits, ready)
	n, vocab := int64(len(ready)), logits.Size(1)
	drawn := s.Empty(torch.Int32, 2, n) // ids, and the bits of their log-probs: one copy to the host
	ids, logp := drawn.Select(0, 0), drawn.Select(0, 1)
	z := kernels.Logits{Data: logits.Ptr(), DType: kernels.DType(logits.DType()), Rows: n, Vocab: vocab, Stride: vocab}
	if err := kernels.Sample(model.Backend(s), z, rows, ids.Ptr(), logp.Ptr()); err != nil {
		return nil, fmt.Errorf("sampling: %w", err)
	}
	host := make([]int32, 2*n)
	drawn.Int32s(host)
	out := make([]token, n)
	for i := range n {
		out[i] = token{id: host[i], logProb: math.Float32frombits(uint32(host[n+i]))}
		if q := ready[i]; q.allows != nil && q.broken == nil {
			q.broken = q.allows.Accept(out[i].id)
		}
	}
	return out, nil
}

// constrain takes the tokens that may not come out of the logits of sequences with a constraint. A sequence whose constraint fails is
// broken, and its row stays as it is.
func constrain(s *torch.Scope, logits *torch.Tensor, ready []*sequence) {
	vocab := logits.Size(1)
	for i, q := range ready {
		if q.allows == nil {
			continue
		}
		words, err := q.allows.Allowed()
		minus := make([]float32, vocab) // what is added to the row
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
		if q.broken = err; err == nil {
			logits.Select(0, int64(i)).Add_(s.FromFloat32(minus, vocab).To(logits.DType()))
		}
	}
}
