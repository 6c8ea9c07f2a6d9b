// Low-rank adapters of linear maps (LoRA, Hu et al. 2021): y += scale * B (A x), where each row may have a different adapter.
//
// Batch invariance, threads and returned statuses are as in mgrpo/layers.h.
#pragma once
#include "mgrpo/status.h"

// The columns [from, from + n) of y get scale * B (A x), with A [r, k] and B [n, r].
typedef struct mgrpo_lora_part {
  int64_t from, n, r;
  double scale;
} mgrpo_lora_part;

// One adapter of a linear map. values are float32 and dense: first the matrices A of all parts, one after another, and then the matrices B.
// So the matrices A together are one matrix.
typedef struct mgrpo_lora {
  const float *values;
  const mgrpo_lora_part *parts;
  int64_t count;  // the number of parts
} mgrpo_lora;

// The largest number of parts of an adapter: queries, keys and values are one product.
#define MGRPO_LORA_PARTS 4
// The largest sum of the r of an adapter's parts.
#define MGRPO_LORA_RANK 8192

// Row i of y [rows, n] gets adapter which[i] of `adapters` applied to row i of x [rows, k]; -1 means no
// adapter. If which_or_null is null all rows have adapter 0. The product with A is complete before the product with B.
// MGRPO_INVALID_ARGUMENT: parts outside of y or with common columns, more than MGRPO_LORA_PARTS parts or MGRPO_LORA_RANK, or
// a row with an adapter that was not given. Scratch: the products with A of all rows.
MGRPO_API int32_t mgrpo_lora_add_cpu(const mgrpo_lora *adapters, int64_t count, const int32_t *which_or_null, const float *x, float *y,
                                     int64_t rows, int64_t k, int64_t n);

// The same on a GPU: values, which, x and y are in device memory, x and y of one dtype, float32 or bfloat16. Adapters and
// their parts are in host memory. Arithmetic is float32, and a bfloat16 sum is rounded once. A row whose adapter
// is not one of those given is not changed. Rows of one adapter among eight that follow each other share the reading of its values.
MGRPO_API int32_t mgrpo_lora_add_cuda(const mgrpo_lora *adapters, int64_t count, const int32_t *which_or_null, const void *x, int32_t dtype,
                                      void *y, int64_t rows, int64_t k, int64_t n, void *stream);
