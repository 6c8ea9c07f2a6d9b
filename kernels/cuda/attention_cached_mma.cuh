// Decode attention in bf16, on tensor cores. A warp computes tiles of 16 keys, each for up to 8 or 16 query heads at once. One tensor-core
// instruction replaces about a hundred conversions, multiply-adds and shuffles on CUDA cores. So the kernel is bound by memory, even if
// only a few of the 8 columns of a product are heads.
//
// A lane loads packs of 16 bytes of keys and values from the cache to registers and does not reorder them. The terms of a product may be
// added in any order, so each product uses the order of the numbers in the lane. Weights are the sum of two bf16 numbers, which keeps 16 of
// their bits. (float32 has 24 bits, and one bf16 number has 8.)
//
// Lane 4 g + t has these elements:
// - Of the scores [heads, keys] = q [heads, hd] k [hd, keys], for each c: 8 elements of a head and of a key, from 32 c + 8 t on. The first
// and the second pair are for columns 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of one product. The other two pairs are for the same columns of
// another product.
// - Of the values [hd, heads] = v [hd, keys] p [keys, heads], for each e: 8 elements of the keys 4 t to 4 t + 3, from 64 e + 8 g on. Their
// pairs are rearranged to pairs of keys. The lane also has the weights of these keys for head g, because it computed their scores.
#pragma once
#include "attention_cached.cuh"
#include "mma.cuh"

namespace mgrpo::cuda {

using Bf16 = __nv_bfloat16;

// A warp's attention for one part of a row. g and t are the numbers of lane 4 g + t.
template <int kHd, int kHeads>
struct WarpAttention {
  static constexpr int kHalves = kHeads / 8;  // heads g and g + 8 of a lane
  static constexpr int kBlocks = kHd / 32, kDims = kHd / 64;
  // Groups of 64 elements whose values are loaded at once; more would take all registers.
  static constexpr int kGroup = kDims < 2 ? kDims : 2;
  static constexpr bool kAhead = kHd <= 128;  // whether there are enough registers to load the next keys ahead

  const Attention<Bf16> &in;
  const Part &part;
  uint4 *const buffer;  // the warp's shared memory for 16 rows
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, hd = static_cast<int>(in.hd);
  const bool contiguous;  // whether the rows of a tile are consecutive packs if one block of the cache contains the tile
  uint4 q[kHalves][kBlocks], k[2][kBlocks];
  float score[kHalves][2][2];  // [pair of keys][key] of the lane's heads
  // Weights of the same keys, in the layout of mma; rest: the second bf16 numbers.
  unsigned weight[kHalves][2], rest[kHalves][2];
  // The maximum score of all lanes, and the sum of the weights of the lane's own keys.
  float max[kHalves], sum[kHalves];
  // [half][e][pair of elements][4]. The last four are in the layout of mma: the first elements for heads 2 t and 2 t + 1, then the second
  // elements.
  float value[kHalves][kDims][4][4];

  __device__ WarpAttention(const Attention<Bf16> &in, const Part &part, void *buffer)
      : in(in),
        part(part),
        buffer(static_cast<uint4 *>(buffer)),
        contiguous(in.hd == kHd && (1u << in.pages.shift) >= kKeyTile && aligned(in.k) && aligned(in.v)) {
    const Bf16 *heads = gathered([&](int r) { return r < part.heads ? in.q + (part.first_head + r) * in.hd : nullptr; });
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
#pragma unroll
      for (int c = 0; c < kBlocks; c++) q[half][c] = pack_at(heads + (g + 8 * half) * kHd + 32 * c + 8 * t);
      max[half] = kFloor;
      sum[half] = 0;
#pragma unroll
      for (int e = 0; e < kDims; e++)
#pragma unroll
        for (int i = 0; i < 16; i++) value[half][e][i / 4][i % 4] = 0;
    }
  }

  __device__ static uint4 pack_at(const Bf16 *from) { return *reinterpret_cast<const uint4 *>(from); }

  // Copies 16 rows of kHd elements from any addresses to the warp's shared memory. A row is 0 if row_of(number) is null, and elements from
  // hd on are 0. Two lanes copy a row: first packs of 16 bytes, then the remaining elements.
  template <class F>
  __device__ const Bf16 *gathered(const F &row_of) const {
    constexpr int kPacks = kHd / 8;
    const int r = lane / 2, from = lane % 2;
    const Bf16 *const row = row_of(r);
    const int packed = row != nullptr && aligned(row) ? hd / 8 : 0;
    uint4 all[kPacks / 2];
#pragma unroll
    for (int i = 0; i < kPacks / 2; i++) all[i] = 2 * i + from < packed ? pack_at(row + 8 * (2 * i + from)) : uint4{0, 0, 0, 0};
    __syncwarp();  // waits until all lanes have read the previous rows
#pragma unroll
    for (int i = 0; i < kPacks / 2; i++) buffer[r * kPacks + 2 * i + from] = all[i];
    __syncwarp();
    Bf16 *const rows = reinterpret_cast<Bf16 *>(buffer);
    if (row != nullptr)
#pragma unroll 1
      for (int c = 8 * packed + from; c < hd; c += 2) rows[r * kHd + c] = row[c];
    __syncwarp();
    return rows;
  }
  __device__ const Bf16 *gathered(const Bf16 *cache, unsigned tile) const {
    return gathered([&](int r) {
      const int64_t at = sees(tile + r) ? in.row_at(part, tile + r) : -1;
      return at < 0 ? nullptr : cache + at;
    });
  }

  // Returns the place of the tile's first row in the cache if the part contains the whole tile and its rows are consecutive there.
  // Otherwise returns -1.
  __device__ int64_t whole_tile(unsigned tile) const {
    return contiguous && tile >= part.begin && tile + kKeyTile <= part.end ? in.row_at(part, tile) : -1;
  }
  __device__ bool sees(unsigned key) const { return key >= part.begin && key < part.end; }

  // Loads the keys of a tile. Column g of product u is key 4 (g / 2) + g % 2 + 2 u, so that lane t gets the scores of keys 4 t to 4 t + 3.
  __device__ void take_keys(const Bf16 *rows) {
    rows += (g / 2 * 4 + g % 2) * kHd + 8 * t;
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
      for (int c = 0; c < kBlocks; c++) k[u][c] = pack_at(rows + 2 * u * kHd + 32 * c);
  }
  __device__ void score_keys() {
#pragma unroll
    for (int u = 0; u < 2; u++) {
      float product[4] = {};
#pragma unroll
      for (int c = 0; c < kBlocks; c++) {
        const uint4 a = q[0][c], b = kHalves > 1 ? q[kHalves - 1][c] : uint4{0, 0, 0, 0}, keys = k[u][c];
        mma(product, {a.x, b.x, a.y, b.y}, {keys.x, keys.y});
        mma(product, {a.z, b.z, a.w, b.w}, {keys.z, keys.w});
      }
#pragma unroll  // __fmul_rn prevents fusion with a later subtraction, so the scores are always rounded here
      for (int i = 0; i < 2 * kHalves; i++) score[i / 2][u][i % 2] = __fmul_rn(product[i], in.scale);
    }
  }
  // Scores of keys that the row does not attend to are -Inf; scores of keys without a block in the table are NaN.
  __device__ void mask(unsigned tile) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned key = tile + 4 * t + i;
      if (sees(key) && in.row_at(part, key) >= 0) continue;
#pragma unroll
      for (int half = 0; half < kHalves; half++) score[half][i / 2][i % 2] = sees(key) ? NAN : -INFINITY;
    }
  }

  // Turns scores into weights.
  __device__ void weigh_keys() {
    float rescale[kHalves];
    bool rescales = false;
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      float new_max = max[half];
#pragma unroll
      for (int i = 0; i < 4; i++) new_max = fmaxf(new_max, score[half][i / 2][i % 2]);
      new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, 1));
      new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, 2));
      rescale[half] = exp2_of(max[half] - new_max);
      rescales |= new_max != max[half];
      max[half] = new_max;
      sum[half] *= rescale[half];
#pragma unroll
      for (int u = 0; u < 2; u++) {
        const float a = exp2_of(score[half][u][0] - new_max), b = exp2_of(score[half][u][1] - new_max);
        sum[half] += a + b;
        weight[half][u] = bf16_pair(a, b);
        rest[half][u] = bf16_pair(a - low_of(weight[half][u]), b - high_of(weight[half][u]));
      }
    }
    if (!__any_sync(kAllLanes, rescales)) return;
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const float even = __shfl_sync(kAllLanes, rescale[half], 8 * t), odd = __shfl_sync(kAllLanes, rescale[half], 8 * t + 4);
#pragma unroll
      for (int e = 0; e < kDims; e++)
#pragma unroll
        for (int i = 0; i < 16; i++) value[half][e][i / 4][i % 4] *= i % 2 == 0 ? even : odd;
    }
  }

  __device__ void add_values(const Bf16 *rows) {
    rows += 4 * t * kHd + 8 * g;
#pragma unroll
    for (int from = 0; from < kDims; from += kGroup) {
      unsigned v[kGroup][4][4];
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < kGroup; e++) {
          const uint4 pack = pack_at(rows + j * kHd + 64 * (from + e));
          __builtin_memcpy(v[e][j], &pack, sizeof pack);
        }
#pragma unroll
      for (int e = 0; e < kGroup; e++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const unsigned a[4] = {__byte_perm(v[e][0][i], v[e][1][i], 0x5410), __byte_perm(v[e][0][i], v[e][1][i], 0x7632),
                                 __byte_perm(v[e][2][i], v[e][3][i], 0x5410), __byte_perm(v[e][2][i], v[e][3][i], 0x7632)};
#pragma unroll
          for (int half = 0; half < kHalves; half++) {
            mma(value[half][from + e][i], a, weight[half]);
            mma(value[half][from + e][i], a, rest[half]);
          }
        }
    }
  }

  // Computes the tiles first, first + step... If the next tile is whole, its keys are loaded while the values of the current tile are
  // added.
  __device__ void run(unsigned first, unsigned step) {
    for (unsigned tile = first; tile < part.end;) {
      int64_t at = whole_tile(tile);
      if (at < 0) {
        take_keys(gathered(in.k, tile));
        score_keys();
        mask(tile);
        weigh_keys();
        add_values(gathered(in.v, tile));
        tile += step;
        continue;
      }
      if (kAhead) take_keys(in.k + at);
      do {
        tile += step;
        const int64_t next = tile < part.end ? whole_tile(tile) : -1;
        if (!kAhead) take_keys(in.k + at);
        score_keys();
        if (kAhead && next >= 0) take_keys(in.k + next);
        weigh_keys();
        add_values(in.v + at);
        at = next;
      } while (at >= 0);
    }
#pragma unroll
    for (int half = 0; half < kHalves; half++)
#pragma unroll
      for (int by = 1; by < 4; by *= 2) sum[half] += __shfl_xor_sync(kAllLanes, sum[half], by);
  }
};

}  // namespace mgrpo::cuda
