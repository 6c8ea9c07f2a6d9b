// A paged key-value cache, for kernels.
#pragma once
#include "layers.cuh"
#include "pages.h"

namespace mgrpo::cuda {

struct Pages {
  const int32_t *table;
  int64_t sequences, width, blocks, kv_heads, hd;
  int shift;  // a block is 1 << shift tokens

  explicit Pages(const mgrpo_pages &p)
      : table(p.table), sequences(p.sequences), width(p.width), blocks(p.blocks), kv_heads(p.kv_heads), hd(p.hd), shift(0) {
    while (int64_t{1} << shift < p.block) shift++;
  }

  __device__ int64_t in_block(int64_t pos) const { return pos & ((int64_t{1} << shift) - 1); }
  __host__ __device__ int64_t longest() const { return width << shift; }
  // Returns the index of a position's place among the places of all blocks, or -1 if the position has no place.
  __device__ int64_t place(int64_t sequence, int64_t pos) const {
    if (sequence < 0 || sequence >= sequences || pos < 0 || pos >= longest()) return -1;
    const int64_t block = table[sequence * width + (pos >> shift)];
    return block >= 0 && block < blocks ? (block << shift) + in_block(pos) : -1;
  }
  // Returns the row of a head at a position, or -1 if the position has no place. table_row is the row of the table for the sequence.
  __device__ int64_t row(const int32_t *table_row, unsigned pos, int64_t head) const {
    const int64_t block = table_row[pos >> shift];
    return block >= 0 && block < blocks ? ((block * kv_heads + head) << shift) + in_block(pos) : -1;
  }
  // Returns the row of a head at a place. The cache is regarded as rows of hd values.
  __device__ int64_t row(int64_t place, int64_t head) const { return (((place >> shift) * kv_heads + head) << shift) + in_block(place); }
};

}  // namespace mgrpo::cuda
