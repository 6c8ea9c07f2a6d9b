package torch

// The C side is in shim/. Handles are C memory. The only Go memory that calls pass is listed as noescape or is a struct
// of mgrpo/policy_loss.h. No call keeps it or calls back. A struct that Go allocates must be complete in C. cgo treats
// a pointer to an incomplete struct as C memory, and the garbage collector could free the struct during the call.

/*
#cgo CFLAGS: -I${SRCDIR}/shim -I${SRCDIR}/../../kernels/include
#cgo LDFLAGS: -L${SRCDIR}/../../build/lib -lmgrpo_torch -Wl,-rpath,${SRCDIR}/../../build/lib
#cgo noescape mgt_drop
#cgo nocallback mgt_drop
#cgo noescape mgt_empty
#cgo nocallback mgt_empty
#cgo noescape mgt_full
#cgo nocallback mgt_full
#cgo noescape mgt_from_host
#cgo nocallback mgt_from_host
#cgo noescape mgt_to_host
#cgo nocallback mgt_to_host
#cgo noescape mgt_set_host_
#cgo nocallback mgt_set_host_
#cgo noescape mgt_view
#cgo nocallback mgt_view
#cgo noescape mgt_backward
#cgo nocallback mgt_backward
#include "mgrpo_torch.h"
*/
import "C"

import (
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/kernels"
)

// maxDim is the largest number of dimensions of a tensor.
const maxDim = C.MGT_MAX_DIM

// message returns a C error's text and frees it. A nil pointer means success and returns "".
func message(err *C.char) string {
	if err == nil {
		return ""
	}
	defer C.mgt_free(err)
	return C.GoString(err)
}

// must panics with op's *Error if err is not nil.
func must(op string, err *C.char, tensors ...*Tensor) {
	if err != nil {
		status := kernels.Status(C.mgt_error_status(err))
		e := newError(op, message(err), tensors...)
		e.Status = status
		panic(e)
	}
}

// sizes returns a shape for C. n is 0 for a scalar.
func sizes(shape []int64) (p *C.int64_t, n C.int64_t) {
	if len(shape) == 0 {
		return nil, 0
	}
	return (*C.int64_t)(unsafe.Pointer(&shape[0])), C.int64_t(len(shape))
}

// liveHandles returns the number of handles of the whole process that the shim has returned and that are not dropped.
func liveHandles() int64 { return int64(C.mgt_live_handles()) }

// Version returns the version of the LibTorch library in use, such as "2.11.0".
func Version() string { return C.GoString(C.mgt_loaded_version()) }

// SetRoundFactors sets whether products of fp32 matrices in training round their factors to bf16, in the whole process
// and only on the CPU. Sums stay fp32. With avx512_bf16 and without AMX it also affects products with bf16 weights, in
// training or not. inForce reports whether factors are rounded now; without AMX and avx512_bf16 they are not.
func SetRoundFactors(on bool) (inForce bool) {
	return C.mgt_round_factors(cbool(on)) != 0
}

// SetRoundFactorsIfFaster does the same on a CPU that multiplies bf16 faster than fp32. On other CPUs factors are not rounded.
func SetRoundFactorsIfFaster(on bool) (inForce bool) {
	return SetRoundFactors(on && kernels.BF16IsFaster())
}

// SetDeterministic sets whether operations on GPUs use algorithms that give the same bits for the same inputs, in the
// whole process. An operation without such an algorithm then is an *Error. Call it before the first product on a GPU.
func SetDeterministic(on bool) { C.mgt_deterministic(cbool(on)) }

// CPUFeatures returns the instruction sets that decide which kernels run, such as
// "avx2 fma avx512f avx512bf16". Equal features give equal bits on a CPU.
func CPUFeatures() string { return C.GoString(C.mgt_cpu_features()) }
