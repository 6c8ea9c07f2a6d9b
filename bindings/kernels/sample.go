package kernels

// #include "dispatch.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Sampling holds the settings of one row's draw. Filters apply in the order top_k, top_p, min_p to
// softmax(z / temperature); all ties at a cut are kept.
type Sampling struct {
	Temperature float64 // 0: the largest logit, log-probs at temperature 1
	TopP        float64 // in (0, 1]; 0 or 1 = off
	MinP        float64 // in [0, 1]; 0 = off
	TopK        int32   // 0 = off
	Key         [2]uint32
	Position    uint64 // the token's position in the stream of Key
}

// Sampling has the layout of the C struct: slices of it are passed to C without a copy.
var _ [unsafe.Sizeof(C.mgrpo_sampling{})]byte = [unsafe.Sizeof(Sampling{})]byte{}

// SamplingSize is the size of a row's settings in int32 words.
const SamplingSize = int(unsafe.Sizeof(Sampling{})) / 4

// SamplingWords returns the settings in the form that EnqueueSample reads.
func SamplingWords(rows []Sampling) []int32 {
	return unsafe.Slice((*int32)(pointer(rows)), SamplingSize*len(rows))
}

// Sample draws one token a row. token int32, logp float32, both [Rows]; logp, which may be nil, is
// under softmax(z / temperature) of the whole vocabulary. A row's result depends only on that row.
// An *Error with NonFinite names the first row with NaN, +Inf or only -Inf (its token is -1).
func Sample(b Backend, z Logits, rows []Sampling, token, logp unsafe.Pointer) error {
	if int64(len(rows)) != z.Rows {
		return fmt.Errorf("kernels: sample: %d settings for %d rows", len(rows), z.Rows)
	}
	var row C.int64_t
	status := C.sample(b.c, z.Data, C.int32_t(z.DType), C.int64_t(z.Rows), C.int64_t(z.Vocab), C.int64_t(z.Stride),
		(*C.mgrpo_sampling)(pointer(rows)), token, logp, &row)
	return rowFailure("sample", status, row)
}

// EnqueueSample enqueues the work of Sample on a GPU without waiting for it. rows holds the bytes of
// one setting for each row of z, and bad is an int64, both in the GPU's memory. bad must be -1 before,
// and becomes the first row with NaN, +Inf or only -Inf. CheckSampling must have accepted the settings.
func EnqueueSample(b Backend, z Logits, rows, token, logp, bad unsafe.Pointer) error {
	const op = "sample"
	if b.c.gpu == nil {
		return fmt.Errorf("kernels: %s: only the work of a GPU is enqueued", op)
	}
	return failure(op, C.sample_enqueue(b.c, z.Data, C.int32_t(z.DType), C.int64_t(z.Rows), C.int64_t(z.Vocab), C.int64_t(z.Stride), rows, token, logp, bad))
}

// CheckSampling returns an *Error with InvalidArgument for the first row whose settings are out of range.
func CheckSampling(rows []Sampling) error {
	if row := C.mgrpo_sampling_out_of_range((*C.mgrpo_sampling)(pointer(rows)), C.int64_t(len(rows))); row >= 0 {
		return &Error{Op: "sample", Status: InvalidArgument, Row: int64(row)}
	}
	return nil
}

// NonFiniteRow returns the *Error of a row that cannot be sampled.
func NonFiniteRow(row int64) error { return &Error{Op: "sample", Status: NonFinite, Row: row} }
