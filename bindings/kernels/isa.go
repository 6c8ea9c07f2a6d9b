package kernels

// #include "mgrpo/nn.h"
import "C"

// ISA names the instruction set that the CPU kernels use on this machine, such as "avx2".
func ISA() string { return C.GoString(C.mgrpo_cpu_isa()) }
