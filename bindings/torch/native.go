package torch

// The C side, in shim/. Handles are C memory; the only Go memory that crosses is listed as noescape or is a struct of
// mgrpo/policy_loss.h, and no call keeps it or calls back. A struct that Go allocates must be complete in C: a pointer to an
// incomplete one is memory of C to cgo, and the garbage collector frees what it points to during the call.

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

// maxDim is the most dimensions a tensor may have here.
const maxDim = C.MGT_MAX_DIM

// message takes over a C error: nil pointer means success and "".
func message(err *C.char) string {
	if err == nil {
		return ""
	}
	defer C.mgt_free(err)
	return C.GoString(err)
}

// must panics with the *Error of op if err is one.
func must(op string, err *C.char, tensors ...*Tensor) {
	if err != nil {
		status := kernels.Status(C.mgt_error_status(err))
		e := newError(op, message(err), tensors...)
		e.Status = status
		panic(e)
	}
}

// sizes returns a shape as C sees it; n is 0 for a scalar.
func sizes(shape []int64) (p *C.int64_t, n C.int64_t) {
	if len(shape) == 0 {
		return nil, 0
	}
	return (*C.int64_t)(unsafe.Pointer(&shape[0])), C.int64_t(len(shape))
}

// liveHandles counts the handles that the shim gave out and has not had back, in the whole process.
func liveHandles() int64 { return int64(C.mgt_live_handles()) }

// Version returns the version of the LibTorch library in use, such as "2.11.0".
func Version() string { return C.GoString(C.mgt_loaded_version()) }

// RoundFactors says whether products of fp32 matrices in training round their factors to bf16 from now on, in the whole process
// and on the CPU alone; sums stay fp32. With avx512_bf16 and no AMX it is for products with bf16 weights, too, in training or
// not. inForce is false where neither AMX nor avx512_bf16 is in use.
func RoundFactors(on bool) (inForce bool) {
	var flag C.int
	if on {
		flag = 1
	}
	return C.mgt_round_factors(flag) != 0
}

// Deterministic says whether operations on GPUs take algorithms that give the same bits for the same inputs from now on, in the whole
// process. An operation that has none is an *Error. It comes before the first product on a GPU.
func Deterministic(on bool) {
	var flag C.int
	if on {
		flag = 1
	}
	C.mgt_deterministic(flag)
}

// CPUFeatures names the instruction sets that decide which kernels run, such as
// "avx2 fma avx512f avx512bf16". Equal features give equal bits on CPU.
func CPUFeatures() string { return C.GoString(C.mgt_cpu_features()) }
