package kernels

// #include "dispatch.h"
import "C"

// Philox is the block of Philox4x32-10 for a counter and key (Salmon et al., SC 2011).
func Philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	b := C.mgrpo_philox(C.uint32_t(counter[0]), C.uint32_t(counter[1]), C.uint32_t(counter[2]), C.uint32_t(counter[3]),
		C.uint32_t(key[0]), C.uint32_t(key[1]))
	var out [4]uint32
	for i, w := range b.word {
		out[i] = uint32(w)
	}
	return out
}

// PhiloxBounded is draw number index of a key's stream, uniform on 0..bound-1, and how many blocks it took.
// bound is at least 1.
func PhiloxBounded(key [2]uint32, index uint64, bound uint32) (value, attempts uint32) {
	var n C.uint32_t
	v := C.mgrpo_philox_bounded(C.uint32_t(key[0]), C.uint32_t(key[1]), C.uint64_t(index), C.uint32_t(bound), &n)
	return uint32(v), uint32(n)
}
