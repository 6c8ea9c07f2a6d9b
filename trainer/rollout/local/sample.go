package local

import (
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// sample draws the next token of each ready sequence: row i of logits [N, vocabulary] is ready[i]'s. The
// token's random number is a function of the sequence's key and the token's place in the sequence.
func sample(s *torch.Scope, logits *torch.Tensor, ready []*sequence) ([]token, error) {
	rows := make([]kernels.Sampling, len(ready))
	for i, q := range ready {
		rows[i] = kernels.Sampling{
			Temperature: q.sampling.Temperature, TopP: q.sampling.TopP, MinP: q.sampling.MinP, TopK: int32(q.sampling.TopK),
			Key: q.key, Position: uint64(len(q.tokens)),
		}
	}
	n, vocab := int64(len(ready)), logits.Size(1)
	ids, logp, truncated := s.Empty(torch.Int32, n), s.Empty(torch.Float32, n), s.Empty(torch.Float32, n)
	z := kernels.Logits{Data: logits.Ptr(), DType: kernels.DType(logits.DType()), Rows: n, Vocab: vocab, Stride: vocab}
	if err := kernels.Sample(model.Backend(s), z, rows, ids.Ptr(), logp.Ptr(), truncated.Ptr()); err != nil {
		return nil, fmt.Errorf("sampling: %w", err)
	}
	hostIDs, hostLogp, hostTruncated := make([]int32, n), make([]float32, n), make([]float32, n)
	ids.Int32s(hostIDs)
	logp.Float32s(hostLogp)
	truncated.Float32s(hostTruncated)
	out := make([]token, n)
	for i := range out {
		out[i] = token{id: hostIDs[i], logProb: hostLogp[i], truncated: hostTruncated[i]}
	}
	return out, nil
}
