package torch

// #include "mgrpo_torch.h"
// #include "mgrpo/lora.h"
import "C"

import "unsafe"

// LoRAPart is a low-rank addition to some outputs of a linear map (Hu et al. 2021): the columns from From to From+N-1 of
// its result y get Scale·B(A x), A [R, K] and B [N, R].
type LoRAPart struct {
	From, N, R int64
	Scale      float64
}

// LoRA is an adapter of a linear map. Values is 1-D: the A of all parts, one after the other, then the B of all parts. It
// is float32 for inputs in float32 or bfloat16. The zero LoRA adds nothing.
type LoRA struct {
	Values *Tensor
	Parts  []LoRAPart
}

// LoRAAdd_ adds adapters to y [T, N], the result of a linear map of x [T, K], in place, and returns y. Row t has the
// adapter which[t], int32 [T], or none if that is -1. If which is nil, all rows have the first. Gradients are recorded if
// there is one adapter and which is nil. With grad mode off, on a CPU in float32, the bits of a row of the result depend
// only on that row and its adapter. On a GPU a number outside of the table is not an error: the row has no adapter.
func LoRAAdd_(y, x *Tensor, adapters []LoRA, which *Tensor) *Tensor {
	s := y.scopeFor("lora", x)
	rows := s.optional("lora", which)
	var parts []C.mgrpo_lora_part
	values, counts := make([]unsafe.Pointer, len(adapters)), make([]C.int64_t, len(adapters))
	for i, a := range adapters {
		if len(a.Parts) == 0 {
			continue
		}
		a.Values.check("lora", s)
		values[i], counts[i] = a.Values.handle, C.int64_t(len(a.Parts))
		for _, p := range a.Parts {
			parts = append(parts, C.mgrpo_lora_part{from: C.int64_t(p.From), n: C.int64_t(p.N), r: C.int64_t(p.R), scale: C.double(p.Scale)})
		}
	}
	return s.take("lora", C.mgt_lora_add_(s.dev.native, y.handle, x.handle, unsafe.SliceData(values), unsafe.SliceData(counts),
		C.int64_t(len(adapters)), unsafe.SliceData(parts), rows), y, x)
}
