package kernels

// #include "dispatch.h"
import "C"

import (
	"errors"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

var lossCodes = map[C.int32_t]mgrpo.Code{
	C.MGRPO_LOSS_BAD_WEIGHT:       mgrpo.BadWeight,
	C.MGRPO_LOSS_EMPTY_BATCH:      mgrpo.EmptyBatch,
	C.MGRPO_LOSS_NON_FINITE_INPUT: mgrpo.NonFiniteInput,
	C.MGRPO_LOSS_MISSING_INPUT:    mgrpo.MissingInput,
	C.MGRPO_LOSS_POSITIVE_LOGPROB: mgrpo.PositiveLogProb,
	C.MGRPO_LOSS_RATIO_OVERFLOW:   mgrpo.RatioOverflow,
	C.MGRPO_LOSS_NON_FINITE_VALUE: mgrpo.NonFiniteValue,
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

// lossFailure returns err. If err has the status Refused, it returns C's description of the refused batch as a *mgrpo.Refusal. Such a
// batch must not update parameters. Trajectory and token are numbers within the given batch.
func lossFailure(err error, e C.mgrpo_loss_error) error {
	var failed *Error
	if !errors.As(err, &failed) || failed.Status != Refused {
		return err
	}
	r := &mgrpo.Refusal{Code: lossCodes[e.code], Field: lossFields[e.field]}
	if e.trajectory >= 0 {
		r.Trajectory = new(int(e.trajectory))
	}
	if e.token >= 0 {
		r.Token = new(int(e.token))
	}
	if e.count > 0 {
		r.Count = new(int(e.count))
	}
	return r
}
