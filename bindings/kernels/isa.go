package kernels

// #include <stdlib.h>
// #include "mgrpo/isa.h"
import "C"

import "unsafe"

// ISA returns the instruction set that the CPU kernels use, such as "avx2".
func ISA() string { return C.GoString(C.mgrpo_cpu_isa()) }

// BF16IsFaster reports whether this CPU multiplies bf16 faster than fp32. Both AMX and the avx512_bf16 of AMD and of Intel's Cooper Lake
// do. The avx512_bf16 of later CPUs of Intel takes twice as long as fp32.
func BF16IsFaster() bool { return C.mgrpo_cpu_bf16_is_faster() != 0 }

// ISAs returns the instruction sets of the CPU kernels, best first. A CPU may lack some of them.
func ISAs() []string { return []string{"amx", "avx512", "avx2", "portable"} }

// UseISA changes the instruction set of all calls that begin afterwards. If the CPU lacks it, UseISA returns an *Error with Unsupported.
func UseISA(name string) error {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	if status := C.mgrpo_cpu_use(c); status != C.MGRPO_OK {
		return &Error{Op: "the instruction set " + name, Status: Status(status), Row: -1}
	}
	return nil
}
