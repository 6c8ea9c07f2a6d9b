package kernels

// #include "dispatch.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Trajectories holds the trajectories of a whole optimizer batch, with one entry for each.
type Trajectories struct {
	Group     []int64   // any ids
	Weight    []float64 // w_j; 0 = dropped
	Advantage []float64
	Trained   []int64 // T_j: tokens with mask 1
}

// LossCoefficients returns the coefficient c_j of every trajectory of an optimizer batch (0 for trajectories that are not read), and the
// batch's totals. It returns a *mgrpo.Refusal for a bad weight, an empty batch, and an advantage that is not finite.
func LossCoefficients(objective mgrpo.Objective, t Trajectories) ([]float64, LossTotals, error) {
	var totals LossTotals
	c, err := encodeObjective(objective)
	if err != nil {
		return nil, totals, err
	}
	n := len(t.Weight)
	if len(t.Group) != n || len(t.Advantage) != n || len(t.Trained) != n {
		return nil, totals, fmt.Errorf("kernels: loss_coefficients: %d groups, %d weights, %d advantages and %d token counts",
			len(t.Group), n, len(t.Advantage), len(t.Trained))
	}
	coefficient := make([]float64, n)
	var refusal C.mgrpo_loss_error
	status := C.mgrpo_loss_coefficients(C.int64_t(n), (*C.int64_t)(pointer(t.Group)), (*C.double)(pointer(t.Weight)),
		(*C.double)(pointer(t.Advantage)), (*C.int64_t)(pointer(t.Trained)), &c, (*C.double)(pointer(coefficient)),
		&totals.c, &refusal)
	return coefficient, totals, lossFailure(failure("loss_coefficients", C.mgrpo_outcome{status: status}), refusal)
}

// LossBatch is one micro-batch: trajectory j is tokens CuSeqlens[j]..CuSeqlens[j+1]-1. The slices are in host memory on
// every backend, the addresses are in the backend's memory; nil means not supplied.
type LossBatch struct {
	CuSeqlens   []int64   // [trajectories + 1], from 0
	Weight      []float64 // [trajectories]
	Advantage   []float64
	Coefficient []float64 // this micro-batch's part of LossCoefficients

	Mask                                              unsafe.Pointer // uint8 [tokens], 0 = never read
	DType                                             DType          // of the next arrays: Float32 or Float64
	LogpNew, LogpOld, LogpBehaviour, LogpRef, Entropy unsafe.Pointer // [tokens]
}

// PolicyLoss writes dL/dnew to dlogpNew and dL/dH to dentropy, both [tokens] of the batch's DType and exactly 0 for tokens
// that are not trained, and returns the micro-batch's sums. A nil gradient is not computed; with an entropy term either
// both are nil or neither is. After a *mgrpo.Refusal the gradients are unspecified; its positions count within this
// micro-batch.
func PolicyLoss(b Backend, batch LossBatch, objective mgrpo.Objective, dlogpNew, dentropy unsafe.Pointer) (LossSums, error) {
	return batch.Call("policy_loss", objective, func(c LossCall) error {
		return failure("policy_loss", C.policy_loss(b.c, c.Batch, c.Config, dlogpNew, dentropy, c.Sums, c.Refusal))
	})
}

// PolicyLossFromLogits overwrites the logits with the gradient of the policy loss, moves each row through
// the cache once, writes log-prob and entropy of each token, and returns the micro-batch's sums. Row i of
// the logits is token i of the batch, whose LogpNew and Entropy are not read. targets is int32 [Rows]. logp
// and entropy are [Rows] of the batch's DType, which is Float64 for Float64 logits, else Float32. The ratio
// is token or cispo. The rows of tokens that are not trained become exact zeros, for any earlier values.
//
// An *Error with NonFinite names the first row with NaN or +Inf or a target outside the vocabulary; a *mgrpo.Refusal is
// as of PolicyLoss. After either error the arrays are unspecified.
func PolicyLossFromLogits(b Backend, z Logits, targets unsafe.Pointer, tau float64, batch LossBatch, objective mgrpo.Objective,
	logp, entropy unsafe.Pointer) (LossSums, error) {
	const op = "policy_loss_from_logits"
	return batch.Call(op, objective, func(c LossCall) error {
		row := C.int64_t(-1)
		status := C.policy_loss_from_logits(b.c, z.Data, C.int32_t(z.DType), C.int64_t(z.Rows), C.int64_t(z.Vocab),
			C.int64_t(z.Stride), targets, C.double(tau), c.Batch, c.Config, logp, entropy, c.Sums, &row, c.Refusal)
		return rowFailure(op, status, row)
	})
}

// LossCall holds the addresses of a batch, its options and its results in the C form of mgrpo/policy_loss.h.
type LossCall struct{ Batch, Config, Sums, Refusal unsafe.Pointer }

// Call passes the batch to a C function, in this or another library, that computes its sums. If the function's
// error has the status Refused, Call returns the *mgrpo.Refusal that the function has written to Refusal.
func (b LossBatch) Call(op string, objective mgrpo.Objective, call func(LossCall) error) (LossSums, error) {
	c, err := encodeObjective(objective)
	if err != nil {
		return LossSums{}, err
	}
	n := len(b.Weight)
	if len(b.CuSeqlens) != n+1 || len(b.Advantage) != n || len(b.Coefficient) != n {
		return LossSums{}, fmt.Errorf("kernels: %s: %d cu_seqlens, %d weights, %d advantages and %d coefficients",
			op, len(b.CuSeqlens), n, len(b.Advantage), len(b.Coefficient))
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	cb := b.encode(&pin)
	sums := LossSums{begun: true}
	var refusal C.mgrpo_loss_error
	err = call(LossCall{unsafe.Pointer(&cb), unsafe.Pointer(&c), unsafe.Pointer(&sums.c), unsafe.Pointer(&refusal)})
	return sums, lossFailure(err, refusal)
}

// encode returns the C struct. It pins the Go memory that the struct points to.
func (b LossBatch) encode(pin *runtime.Pinner) C.mgrpo_loss_batch {
	pinned := func(p unsafe.Pointer) unsafe.Pointer {
		if p != nil {
			pin.Pin(p)
		}
		return p
	}
	return C.mgrpo_loss_batch{
		trajectories:   C.int64_t(len(b.Weight)),
		tokens:         C.int64_t(b.CuSeqlens[len(b.CuSeqlens)-1]),
		cu_seqlens:     (*C.int64_t)(pinned(pointer(b.CuSeqlens))),
		weight:         (*C.double)(pinned(pointer(b.Weight))),
		advantage:      (*C.double)(pinned(pointer(b.Advantage))),
		coefficient:    (*C.double)(pinned(pointer(b.Coefficient))),
		mask:           (*C.uint8_t)(pinned(b.Mask)),
		dtype:          C.int32_t(b.DType),
		logp_new:       pinned(b.LogpNew),
		logp_old:       pinned(b.LogpOld),
		logp_behaviour: pinned(b.LogpBehaviour),
		logp_ref:       pinned(b.LogpRef),
		entropy:        pinned(b.Entropy),
	}
}
