package torch

// #include "mgrpo_torch.h"
import "C"

import (
	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// HeadLoss is a micro-batch's policy loss with its gradient for the hidden states.
type HeadLoss struct {
	Sums             kernels.LossSums
	DHidden          *Tensor // [N, D]
	LogProb, Entropy *Tensor // [N] of the targets, in the batch's DType
}

// LinearPolicyLoss returns the policy loss of the logits h w^T, with h's gradient. h [N, D] and w [V, D] have one dtype. targets is
// int32 [N], one for each row of h. It adds dL/dw to sum, float32 [V, D], or to w's gradient in place if sum is nil. It computes no
// dL/dw if w does not require a gradient, for example because it is quantised. Logits exist for chunk rows at a time and are computed
// once, so the ratio must be token or cispo. batch is as for kernels.PolicyLossFromLogits. No operation is recorded: the caller
// passes h's gradient to Backward. Masked rows of h must be finite, too: they have no gradient, but dL/dw multiplies them by 0.
//
// A *kernels.Error with NonFinite names a row of NaN or +Inf logits. A *mgrpo.Refusal names the refused trajectory. The gradients are
// unspecified then.
func LinearPolicyLoss(h *Tensor, w Matrix, sum, targets *Tensor, tau float64, chunk int64, batch kernels.LossBatch,
	objective mgrpo.Objective) (HeadLoss, error) {
	const op = "linear policy loss"
	t, kind, limit := head(op, w)
	s := h.scopeFor(op, t, targets)
	dw := s.optional(op, sum)
	var out HeadLoss
	var err error
	out.Sums, err = batch.Call(op, objective, func(c kernels.LossCall) error {
		r := C.mgt_linear_policy_loss(s.dev.native, h.handle, t.handle, kind, dw, targets.handle, C.double(tau), C.int64_t(chunk), limit,
			(*C.mgrpo_loss_batch)(c.Batch), (*C.mgrpo_loss_config)(c.Config),
			(*C.mgrpo_loss_sums)(c.Sums), (*C.mgrpo_loss_error)(c.Refusal))
		must(op, r.error, h, t, targets)
		out.DHidden, out.LogProb, out.Entropy = s.take(op, r.dh), s.take(op, r.logp), s.take(op, r.entropy)
		if r.status == 0 {
			return nil
		}
		return &kernels.Error{Op: op, Status: kernels.Status(r.status), Row: int64(r.row)}
	})
	return out, err
}
