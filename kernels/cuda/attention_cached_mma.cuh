// Decode attention in bf16, on tensor cores. A warp takes tiles of 16 keys, each for up to 8 or 16 query heads at once. One
// tensor-core instruction replaces about a hundred conversions, multiply-adds and shuffles on CUDA cores, so the kernel is
// memory bound, even if only few of the 8 columns are heads. A lane copies packs of 16 bytes of keys and values from the cache to
// places in shared memory that it alone reads, several half tiles ahead and without reordering: the terms of a product may be added in any
// order, so each product uses the order of the lane's numbers.
//   scores [heads, keys] = q [heads, hd] k [hd, keys]: lane 4 g + t has the elements 32 c + 8 t... of a head and of a key for each c, and
//     takes the first, second... pair of them for the columns 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of two products;
//   values [hd, heads] = v [hd, keys] p [keys, heads]: it has the elements 64 e + 8 g... of the keys 4 t... 4 t + 3 for each e, whose
//     pairs become pairs of keys, and the weights of those keys for head g, which are the scores that it computed.
// Weights are the sum of two bf16 numbers, which keeps 16 of their bits (float32 has 24, and one bf16 has 8).
#pragma once
#include "attention_cached.cuh"
#include "copy_ahead.cuh"
#include "mma.cuh"

namespace mgrpo::cuda {

using Bf16 = __nv_bfloat16;

// A warp's attention of one part of a row: lane 4 g + t has g and t of its own.
template <int kHd, int kHeads>
struct WarpAttention {
  static constexpr int kHalves = kHeads / 8;  // heads g and g + 8 of a lane
  static constexpr int kBlocks = kHd / 32, kDims = kHd / 64;
  static constexpr int kPacks = kHd / 16;  // of a lane in half a tile, which is its keys or its values
  static constexpr int kHalvesAhead = kHd > 64 ? 3 : 6;
  static constexpr int kRoom = kHalvesAhead * kPacks * 32;  // packs

  const Attention<Bf16> &in;
  const Part &part;
  uint4 *const room;  // the warp's [kRoom]
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, hd = static_cast<int>(in.hd);
  const bool packs;  // whether a tile's rows are packs that follow each other
  uint4 q[kHalves][kBlocks];
  float score[kHalves][2][2];                     // [pair of keys][key] of the lane's heads
  unsigned weight[kHalves][2], rest[kHalves][2];  // of the same keys, as mma has them
  float max[kHalves], sum[kHalves];               // of scores of all lanes, and of weights of the lane's own keys
  float value[kHalves][kDims][4][4];  // [pair of elements]; as mma has them: the first of heads 2 t, 2 t + 1, the second of these

  static constexpr unsigned kStep = kAttentionThreads / 32 * kKeyTile;
  const unsigned begin, end, first;  // the part's keys; the tiles are first, first + kStep...
  int32_t block = -1;                // of the cache, with the lane's tile of 32; -1: the table names none
  bool holes = false;                // whether it named none for a tile, so that the row's result is NaN
  unsigned half = 0;                 // of the room: the half tile that arrives next

  __device__ WarpAttention(const Attention<Bf16> &in, const Part &part, uint4 *room, unsigned first)
      : in(in),
        part(part),
        room(room),
        packs(in.hd == kHd && (1u << in.pages.shift) >= kKeyTile && aligned(in.q) && aligned(in.k) && aligned(in.v)),
        begin(part.begin),
        end(part.end),
        first(first) {
    if (packs) {
      find_tiles(first);
      take_queries([&](int r, int c) {
        return r < part.heads ? pack_at(in.q + static_cast<int64_t>(part.first_head + r) * kHd + c) : uint4{0, 0, 0, 0};
      });
    } else {
      const Bf16 *const heads = gathered([&](int r) { return r < part.heads ? in.q + (part.first_head + r) * in.hd : nullptr; });
      take_queries([&](int r, int c) { return pack_at(heads + r * kHd + c); });
    }
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      max[half] = kFloor;
      sum[half] = 0;
#pragma unroll
      for (int e = 0; e < kDims; e++)
#pragma unroll
        for (int i = 0; i < 16; i++) value[half][e][i / 4][i % 4] = 0;
    }
  }

  // pack(r, c) has the elements from c on of query head r.
  template <class F>
  __device__ void take_queries(const F &pack) {
#pragma unroll
    for (int half = 0; half < kHalves; half++)
#pragma unroll
      for (int c = 0; c < kBlocks; c++) q[half][c] = pack(g + 8 * half, 32 * c + 8 * t);
  }

  __device__ static uint4 pack_at(const Bf16 *from) { return *reinterpret_cast<const uint4 *>(from); }

  // 16 rows of kHd elements in the warp's shared memory, from any place; zeros if row_of(number) is null, and
  // beyond hd. Two lanes take a row: first packs of 16 bytes, then the remaining elements.
  template <class F>
  __device__ const Bf16 *gathered(const F &row_of) const {
    constexpr int kPacks = kHd / 8;
    const int r = lane / 2, from = lane % 2;
    const Bf16 *const row = row_of(r);
    const int packed = row != nullptr && aligned(row) ? hd / 8 : 0;
    __syncwarp();  // what lay there may still be read
#pragma unroll 4
    for (int i = from; i < kPacks; i += 2) room[r * kPacks + i] = i < packed ? pack_at(row + 8 * i) : uint4{0, 0, 0, 0};
    __syncwarp();
    Bf16 *const rows = reinterpret_cast<Bf16 *>(room);
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

  __device__ bool sees(unsigned key) const { return key >= begin && key < end; }

  // Column g of the product of keys number u is key 4 (g / 2) + g % 2 + 2 u, so that lane t has the scores of keys 4
  // t...
  __device__ int key_of(int u) const { return g / 2 * 4 + g % 2 + 2 * u; }
  // Keeps the compiler from moving loads from shared memory to before this: registers do not suffice for all at once.
  __device__ static void load_later() { __syncwarp(); }
  // pack(u, c) has the lane's elements from 32 c on of its key number u.
  template <class F>
  __device__ void score_keys(const F &pack) {
#pragma unroll
    for (int u = 0; u < 2; u++) {
      if (u > 0) load_later();
      float product[4] = {};
#pragma unroll
      for (int c = 0; c < kBlocks; c++) {
        const uint4 a = q[0][c], b = kHalves > 1 ? q[kHalves - 1][c] : uint4{0, 0, 0, 0}, keys = pack(u, c);
        mma(product, {a.x, b.x, a.y, b.y}, {keys.x, keys.y});
        mma(product, {a.z, b.z, a.w, b.w}, {keys.z, keys.w});
      }
#pragma unroll  // rounded here, on every way to the exponentials
      for (int i = 0; i < 2 * kHalves; i++) score[i / 2][u][i % 2] = __fmul_rn(product[i], in.scale);
    }
  }
  // Scores of keys that the row does not attend to are -Inf. A key whose block the table does not name has the score NaN; has(key) is
  // false for it.
  template <class F>
  __device__ void mask(unsigned tile, const F &has) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned key = tile + 4 * t + i;
      if (sees(key) && has(key)) continue;
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
      float most = max[half];
#pragma unroll
      for (int i = 0; i < 4; i++) most = fmaxf(most, score[half][i / 2][i % 2]);
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      rescale[half] = exp2_of(max[half] - most);
      rescales |= most != max[half];
      max[half] = most;
      sum[half] *= rescale[half];
#pragma unroll
      for (int u = 0; u < 2; u++) {
        const float a = exp2_of(score[half][u][0] - most), b = exp2_of(score[half][u][1] - most);
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

  // pack_of(j, e) has the lane's elements from 64 e on of its key number j.
  template <class F>
  __device__ void add_values(const F &pack_of) {
#pragma unroll
    for (int e = 0; e < kDims; e++) {
      if (e > 0) load_later();
      unsigned v[4][4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const uint4 pack = pack_of(j, e);
        __builtin_memcpy(v[j], &pack, sizeof pack);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const unsigned a[4] = {__byte_perm(v[0][i], v[1][i], 0x5410), __byte_perm(v[0][i], v[1][i], 0x7632),
                               __byte_perm(v[2][i], v[3][i], 0x5410), __byte_perm(v[2][i], v[3][i], 0x7632)};
#pragma unroll
        for (int half = 0; half < kHalves; half++) {
          mma(value[half][e][i], a, weight[half]);
          mma(value[half][e][i], a, rest[half]);
        }
      }
    }
  }

  // Finds 32 tiles from `tile` on.
  __device__ void find_tiles(unsigned tile) {
    tile += static_cast<unsigned>(lane) * kStep;
    block = tile < end ? in.block_of(part, tile) : -1;
    holes |= __any_sync(kAllLanes, tile < end && block < 0) != 0;
  }
  // Begins to copy half of a tile, its keys or its values, to the lane's packs of a half in the room. The lane has used what lay there.
  template <bool kKeys>
  __device__ void copy_half(unsigned tile, uint4 *to) {
    if (tile < end) {
      const unsigned number = (tile - begin / kKeyTile * kKeyTile) / kStep;
      if (kKeys && number > 0 && number % 32 == 0) find_tiles(tile);
      const int32_t there = __shfl_sync(kAllLanes, block, static_cast<int>(number % 32));
      const int row = kKeys ? key_of(0) : 4 * t;
      const Bf16 *const from =
          (kKeys ? in.k + 8 * t : in.v + 8 * g) + (there < 0 ? 0 : in.pages.row_in(there, tile, part.kv_head) + row) * kHd;
      constexpr int kRows = kKeys ? 2 : 4, kEach = kPacks / kRows, kApart = kKeys ? 2 : 1, kAlong = kKeys ? 32 : 64;
#pragma unroll
      for (int j = 0; j < kRows; j++) {
        const bool reads = there >= 0 && sees(tile + row + kApart * j);
#pragma unroll
        for (int c = 0; c < kEach; c++) copy_ahead(to + (j * kEach + c) * 32, from + kApart * j * kHd + kAlong * c, reads);
      }
    }
    end_copies();
  }
  __device__ uint4 *packs_of_half(unsigned number) const { return room + number * kPacks * 32 + lane; }
  // Waits for the next half tile, and returns the lane's packs of it.
  __device__ uint4 *next_half() {
    wait_for_all_but<kHalvesAhead - 1>();
    uint4 *const packs = packs_of_half(half);
    half = half + 1 < kHalvesAhead ? half + 1 : 0;
    return packs;
  }
  __device__ bool partial(unsigned tile) const { return tile < begin || tile + kKeyTile > end; }

  __device__ void run_ahead() {
#pragma unroll 1
    for (unsigned n = 0; n < kHalvesAhead; n++) {
      const unsigned tile = first + n / 2 * kStep;
      n % 2 == 0 ? copy_half<true>(tile, packs_of_half(n)) : copy_half<false>(tile, packs_of_half(n));
    }
#pragma unroll 1
    for (unsigned tile = first; tile < end; tile += kStep) {
      uint4 *const keys = next_half();
      score_keys([&](int u, int c) { return keys[(u * kBlocks + c) * 32]; });
      copy_half<kHalvesAhead % 2 == 0>(tile + kHalvesAhead / 2 * kStep, keys);
      if (holes || partial(tile)) mask(tile, [&](unsigned) { return !holes; });
      weigh_keys();
      uint4 *const values = next_half();
      add_values([&](int j, int e) { return values[(j * kDims + e) * 32]; });
      copy_half<kHalvesAhead % 2 != 0>(tile + (kHalvesAhead + 1) / 2 * kStep, values);
    }
    wait_for_all_but<0>();
  }
  __device__ void run_gathered() {
#pragma unroll 1
    for (unsigned tile = first; tile < end; tile += kStep) {
      const Bf16 *const keys = gathered(in.k, tile) + 8 * t;
      score_keys([&](int u, int c) { return pack_at(keys + key_of(u) * kHd + 32 * c); });
      mask(tile, [&](unsigned key) { return in.row_at(part, key) >= 0; });
      weigh_keys();
      const Bf16 *const values = gathered(in.v, tile) + 4 * t * kHd + 8 * g;
      add_values([&](int j, int e) { return pack_at(values + j * kHd + 64 * e); });
    }
  }
  __device__ void run() {
    packs ? run_ahead() : run_gathered();
#pragma unroll
    for (int half = 0; half < kHalves; half++)
#pragma unroll
      for (int by = 1; by < 4; by *= 2) sum[half] += __shfl_xor_sync(kAllLanes, sum[half], by);
  }
};

}  // namespace mgrpo::cuda
