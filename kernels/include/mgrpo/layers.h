// Conventions of the layers of a decoder-only transformer, for linear.h, rms_norm.h, glu.h, heads.h and attention.h.
//
// On a CPU numbers are fp32 unless a function states otherwise.
// - Layout: every tensor is dense and row-major; [T, H, hd] means T rows of H heads of hd floats.
// - Batch invariance: a row of a result depends on that row's inputs alone, bit for bit. The number of
//   rows, the row's position among them and the number of threads do not matter. The bits may differ
//   between kinds of CPU, because the width of the vector registers fixes the order of the sums.
// - Threads: OpenMP, at most the caller's omp_get_max_threads(); small calls stay on the calling thread.
// - Aliasing: outputs must not overlap inputs unless a function works in place.
// - Returns: MGRPO_OK, or MGRPO_INVALID_ARGUMENT for a negative size, a null pointer to a non-empty
//   tensor, a size whose bytes overflow int64, or a condition that a function names. Then nothing was
//   written. MGRPO_OUT_OF_MEMORY if scratch cannot be allocated. Zero rows are valid.
//
// The functions ending in _cuda do the same on a GPU.
// - Arrays are in device memory. x, y, w and similar have one dtype, float32 or bfloat16; cos, sin, inv_rms,
//   dw and sinks are float32. Arithmetic is float32, and a bfloat16 result is rounded once. The sum of
//   mgrpo_add_rms_norm_cuda is rounded before it is normalised, and a head between norm and rotation.
// - Attention to a bfloat16 cache multiplies on tensor cores, with softmax weights as sums of two bfloat16 terms.
// - A row's bits depend on that row only, and the bits of dw on its inputs only.
// - Calls only enqueue, so the host does not read table, sequence, pos and length. A row that names a place
//   outside its table or cache gives NaN, or is not written to the cache, and no other memory is accessed for it.
// - Scratch is allocated in the stream's order. A norm's backward pass takes at most 2 KiB a column. More than
//   512 rows that go to a cache take at most 32 bytes a row. Attention with more than 512 keys a row takes
//   hd + 2 floats for each row, head and part of the keys, at most 64 parts and 64 MiB.
#pragma once
#include "mgrpo/status.h"
