package kernels

// #include "dispatch.h"
import "C"

import (
	"fmt"
	"strings"
)

// LossError is a batch that must not be trained on; no parameter may be updated from it. Positions that do not
// apply are -1, a count or field that does not apply is 0 or empty.
type LossError struct {
	Code       string // bad_weight, empty_batch, non_finite_input, missing_input, positive_logprob, ratio_overflow, non_finite_value
	Field      string // advantage, logp_new, logp_old, logp_behaviour, logp_ref, entropy, ratio, ref_kl
	Trajectory int64  // position in the batch given
	Token      int64  // packed token index in the batch given
	Count      int64  // how many values are bad in all
}

// Error names the code and every position that is known.
func (e *LossError) Error() string {
	var b strings.Builder
	b.WriteString("kernels: policy_loss: " + e.Code)
	if e.Field != "" {
		b.WriteString(": " + e.Field)
	}
	if e.Trajectory >= 0 {
		fmt.Fprintf(&b, ", trajectory %d", e.Trajectory)
	}
	if e.Token >= 0 {
		fmt.Fprintf(&b, ", token %d", e.Token)
	}
	if e.Count > 0 {
		fmt.Fprintf(&b, ", %d values", e.Count)
	}
	return b.String()
}

var lossCodes = map[C.int32_t]string{
	C.MGRPO_LOSS_BAD_WEIGHT:       "bad_weight",
	C.MGRPO_LOSS_EMPTY_BATCH:      "empty_batch",
	C.MGRPO_LOSS_NON_FINITE_INPUT: "non_finite_input",
	C.MGRPO_LOSS_MISSING_INPUT:    "missing_input",
	C.MGRPO_LOSS_POSITIVE_LOGPROB: "positive_logprob",
	C.MGRPO_LOSS_RATIO_OVERFLOW:   "ratio_overflow",
	C.MGRPO_LOSS_NON_FINITE_VALUE: "non_finite_value",
}

var lossFields = map[C.int32_t]string{
	C.MGRPO_FIELD_ADVANTAGE:      "advantage",
	C.MGRPO_FIELD_LOGP_NEW:       "logp_new",
	C.MGRPO_FIELD_LOGP_OLD:       "logp_old",
	C.MGRPO_FIELD_LOGP_BEHAVIOUR: "logp_behaviour",
	C.MGRPO_FIELD_LOGP_REF:       "logp_ref",
	C.MGRPO_FIELD_ENTROPY:        "entropy",
	C.MGRPO_FIELD_RATIO:          "ratio",
	C.MGRPO_FIELD_REF_KL:         "ref_kl",
}

func lossError(e C.mgrpo_loss_error) *LossError {
	return &LossError{lossCodes[e.code], lossFields[e.field], int64(e.trajectory), int64(e.token), int64(e.count)}
}

func lossFailure(op string, status C.int32_t, e C.mgrpo_loss_error) error {
	if status != C.MGRPO_REFUSED {
		return failure(op, C.mgrpo_outcome{status: status})
	}
	return lossError(e)
}
