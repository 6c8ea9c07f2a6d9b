package kernels

// #include "dispatch.h"
import "C"

import "unsafe"

// Logits describes a [Rows, Stride] matrix. The first Vocab columns of its rows are valid.
type Logits struct {
	Data                unsafe.Pointer
	DType               DType // Float32, BFloat16; Float64 for TokenLogProb and its backward
	Rows, Vocab, Stride int64
}

// TokenLogProb writes the log-prob of each row's target under softmax(z / tau), and the entropy of that
// distribution unless entropy is nil.
//
// targets int32 [Rows]; mask uint8 [Rows] or nil, 0 = the row is not read and gets 0; logp and entropy [Rows],
// float64 for Float64 logits, else float32. An *Error with NonFinite names the first row with NaN or +Inf, with
// InvalidArgument the first with a target outside the vocabulary; a GPU reports both as NonFinite. -Inf is probability 0.
func TokenLogProb(b Backend, z Logits, targets, mask unsafe.Pointer, tau float64, logp, entropy unsafe.Pointer) error {
	var row C.int64_t
	status := C.token_logprob(b.c, z.Data, C.int32_t(z.DType), C.int64_t(z.Rows), C.int64_t(z.Vocab), C.int64_t(z.Stride),
		targets, mask, C.double(tau), logp, entropy, &row)
	return rowFailure("token_logprob", status, row)
}

// TokenLogProbBackward overwrites the logits with dL/dlogits, given dL/dlogp and, unless nil, dL/dentropy, both
// [Rows] of TokenLogProb's output type. Rows of mask 0 become exactly 0.
func TokenLogProbBackward(b Backend, z Logits, targets, mask unsafe.Pointer, tau float64, dlogp, dentropy unsafe.Pointer) error {
	var row C.int64_t
	status := C.token_logprob_bwd(b.c, z.Data, C.int32_t(z.DType), C.int64_t(z.Rows), C.int64_t(z.Vocab), C.int64_t(z.Stride),
		targets, mask, C.double(tau), dlogp, dentropy, &row)
	return rowFailure("token_logprob_bwd", status, row)
}
