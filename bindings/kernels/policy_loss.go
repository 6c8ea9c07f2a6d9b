package kernels

// #include "dispatch.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Trajectories are the trajectories of a whole optimizer batch, one entry each.
type Trajectories struct {
	Group     []int64   // any ids
	Weight    []float64 // w_j; 0 = dropped
	Advantage []float64
	Trained   []int64 // T_j: tokens with mask 1
}

// LossCoefficients returns the coefficient c_j of every trajectory of an optimizer batch, 0 for those that are
// not read, and the batch's totals. A *LossError is a bad weight, an empty batch or an advantage that is not finite.
func LossCoefficients(config LossConfig, t Trajectories) ([]float64, LossTotals, error) {
	var totals LossTotals
	c, err := config.encode()
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
	status := C.mgrpo_loss_coefficients(C.int64_t(n), (*C.int64_t)(Pointer(t.Group)), (*C.double)(Pointer(t.Weight)),
		(*C.double)(Pointer(t.Advantage)), (*C.int64_t)(Pointer(t.Trained)), &c, (*C.double)(Pointer(coefficient)),
		&totals.c, &refusal)
	return coefficient, totals, lossFailure("loss_coefficients", status, refusal)
}

// LossBatch is one micro-batch: trajectory j is tokens CuSeqlens[j]..CuSeqlens[j+1]-1. The slices are host memory on
// every backend, the addresses the backend's memory; nil means not supplied.
type LossBatch struct {
	CuSeqlens   []int64   // [trajectories + 1], from 0
	Weight      []float64 // [trajectories]
	Advantage   []float64
	Coefficient []float64 // this micro-batch's part of LossCoefficients

	Mask                                              unsafe.Pointer // uint8 [tokens], 0 = never read
	DType                                             DType          // of what follows: Float32 or Float64
	LogpNew, LogpOld, LogpBehaviour, LogpRef, Entropy unsafe.Pointer // [tokens]
}

// PolicyLoss writes dL/dnew to dlogpNew and, unless nil, dL/dH to dentropy, both [tokens] of the batch's DType and
// exactly 0 where nothing is trained, and returns the micro-batch's sums. After a *LossError the gradients are
// unspecified; its positions count within this micro-batch.
func PolicyLoss(b Backend, batch LossBatch, config LossConfig, dlogpNew, dentropy unsafe.Pointer) (LossSums, error) {
	sums := LossSums{begun: true}
	c, err := config.encode()
	if err != nil {
		return LossSums{}, err
	}
	n := len(batch.Weight)
	if len(batch.CuSeqlens) != n+1 || len(batch.Advantage) != n || len(batch.Coefficient) != n {
		return LossSums{}, fmt.Errorf("kernels: policy_loss: %d cu_seqlens, %d weights, %d advantages and %d coefficients",
			len(batch.CuSeqlens), n, len(batch.Advantage), len(batch.Coefficient))
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	cb := batch.encode(&pin)
	var refusal C.mgrpo_loss_error
	status := C.policy_loss(b.c, &cb, &c, dlogpNew, dentropy, &sums.c, &refusal)
	return sums, lossFailure("policy_loss", status, refusal)
}

// encode fills the C struct; the Go memory it points to is pinned.
func (b LossBatch) encode(pin *runtime.Pinner) C.mgrpo_loss_batch {
	held := func(p unsafe.Pointer) unsafe.Pointer {
		if p != nil {
			pin.Pin(p)
		}
		return p
	}
	return C.mgrpo_loss_batch{
		trajectories:   C.int64_t(len(b.Weight)),
		tokens:         C.int64_t(b.CuSeqlens[len(b.CuSeqlens)-1]),
		cu_seqlens:     (*C.int64_t)(held(Pointer(b.CuSeqlens))),
		weight:         (*C.double)(held(Pointer(b.Weight))),
		advantage:      (*C.double)(held(Pointer(b.Advantage))),
		coefficient:    (*C.double)(held(Pointer(b.Coefficient))),
		mask:           (*C.uint8_t)(held(b.Mask)),
		dtype:          C.int32_t(b.DType),
		logp_new:       held(b.LogpNew),
		logp_old:       held(b.LogpOld),
		logp_behaviour: held(b.LogpBehaviour),
		logp_ref:       held(b.LogpRef),
		entropy:        held(b.Entropy),
	}
}
