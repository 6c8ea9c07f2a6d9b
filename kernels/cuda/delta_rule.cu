// The forward pass of the gated delta rule. For packed rows there is one launch for each level of chains. For rows with states there is one
// launch.
#include "delta_rule.cuh"

namespace mgrpo::cuda {
namespace {

// Advances a column of the state by one row and returns y and r. With the state S before the row and d = exp(g), r = v - d S^T k' and y = d
// S^T q' + beta r (k'.q').
template <int kLanes>
__device__ float2 advance(Column<kLanes> &column, const Chunk<kLanes> &chunk, int t) {
  const float decay = chunk.decay[t], along_k = column.dot(chunk.k[t]), along_q = column.dot(chunk.q[t]);
  const float r = fmaf(-decay, along_k, chunk.v[t][column.number()]), write = r * chunk.beta[t];
#pragma unroll
  for (int n = 0; n < kEach / 4; n++) {
    const float4 k = column.part(chunk.k[t], n);
    float4 &s = column.at[n];
    s.x = fmaf(k.x, write, decay * s.x);
    s.y = fmaf(k.y, write, decay * s.y);
    s.z = fmaf(k.z, write, decay * s.z);
    s.w = fmaf(k.w, write, decay * s.w);
  }
  return {fmaf(decay, along_q, write * chunk.kq[t]), r};
}

// Advances columns of the state by rows [begin, end). r may be null.
template <class T, int kLanes>
__device__ void advance_rows(const Rule<T> &in, const Columns &columns, int64_t begin, int64_t end, Column<kLanes> &column,
                             Chunk<kLanes> &chunk, T *y, float *r) {
  const bool writes = column.lane() == 0 && column.number() < columns.count;
  for_rows<false>(in, columns, in.x + in.v(0, columns.head), in.width(), begin, end, chunk, [&](int64_t row, int t) {
    const float2 result = advance(column, chunk, t);
    if (!writes) return;
    const int64_t to = row * in.values() + static_cast<int64_t>(columns.head) * in.value_dim + columns.first + column.number();
    narrow(result.x, y + to);
    if (r != nullptr) r[to] = result.y;
  });
}

template <class T, int kLanes>
__global__ __launch_bounds__(kDeltaThreads) void delta_rule_packed_kernel(Rule<T> in, Chains chains, Tasks<kLanes> tasks, T *y, float *r,
                                                                          float *states) {
  __shared__ Chunk<kLanes> chunk;
  tasks.each([&](int64_t item, const Columns &columns) {
    const int32_t c = chains.order[chains.from + item];
    const auto state = [&](int64_t piece) { return states + (piece * in.value_heads + columns.head) * in.state(); };
    Column<kLanes> column;
    const int32_t before = chains.before[chains.chain[c]];
    if (before >= 0)
      column.load(in, columns, state(before));
    else
      column.clear();
    for (int32_t piece = chains.chain[c]; piece < chains.chain[c + 1]; piece++) {
      advance_rows(in, columns, chains.first[piece], chains.first[piece + 1], column, chunk, y, r);
      column.store(in, columns, state(piece));
    }
  });
}

// The slots of rows. A run is consecutive rows with the same slot.
struct Slots {
  const int32_t *slot, *pos;
  int64_t slots, rows;

  __device__ bool known(int64_t row) const { return slot[row] >= 0 && slot[row] < slots; }
  __device__ bool begins(int64_t row) const { return row == 0 || slot[row - 1] != slot[row]; }
  // Returns the number of rows from `row` on that have the slot, at most kWarp. All lanes of a warp call it.
  __device__ int next(int64_t row, int32_t its_slot) const {
    const int64_t at = row + lane();
    const unsigned same = __ballot_sync(kAllLanes, at < rows && slot[at] == its_slot);
    return same == kAllLanes ? kWarp : __ffs(static_cast<int>(~same)) - 1;
  }
};

template <class T, int kLanes>
__global__ __launch_bounds__(kDeltaThreads) void delta_rule_states_kernel(Rule<T> in, Slots slots, Tasks<kLanes> tasks, float *states,
                                                                          T *y) {
  __shared__ Chunk<kLanes> chunk;
  tasks.each([&](int64_t row, const Columns &columns) {
    if (!slots.known(row)) {
      for (int j = threadIdx.x; j < columns.count; j += kDeltaThreads)
        narrow(NAN, y + row * in.values() + static_cast<int64_t>(columns.head) * in.value_dim + columns.first + j);
      return;
    }
    if (!slots.begins(row)) return;
    const int32_t slot = slots.slot[row];
    float *state = states + (static_cast<int64_t>(slot) * in.value_heads + columns.head) * in.state();
    Column<kLanes> column;
    if (slots.pos[row] != 0)
      column.load(in, columns, state);
    else
      column.clear();
    for (int64_t at = row, n = slots.next(row, slot); n > 0; at += n, n = slots.next(at, slot))
      advance_rows(in, columns, at, at + n, column, chunk, y, static_cast<float *>(nullptr));
    column.store(in, columns, state);
  });
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_delta_rule_packed_cuda(const void *x, const void *ba, mgrpo_delta_rule rule, mgrpo_pieces pieces, int32_t dtype, void *y,
                                     float *r, float *states, int64_t rows, void *stream) {
  if (!valid_delta_call(rule, pieces, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, ba, y, r, states})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return for_lanes(rule.key_dim, [&](auto lanes) -> int32_t {
      for (int64_t level = 0; level < pieces.levels; level++) {
        const Chains chains(pieces, level);
        const Tasks<lanes> tasks{chains.count, static_cast<int>(rule.value_heads), static_cast<int>(rule.value_dim)};
        MGRPO_TRY(launch(delta_rule_packed_kernel<T, lanes>, tasks.shape(), stream_of(stream), Rule<T>(rule, x, ba), chains, tasks,
                         static_cast<T *>(y), r, states));
      }
      return MGRPO_OK;
    });
  });
}

int32_t mgrpo_delta_rule_states_cuda(const void *x, const void *ba, mgrpo_delta_rule rule, int32_t dtype, float *states, int64_t slots,
                                     const int32_t *slot, const int32_t *pos, void *y, int64_t rows, void *stream) {
  if (!valid_rule(rule, rows, slots)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, ba, rule.a_log, rule.dt_bias, states, slot, pos, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return for_lanes(rule.key_dim, [&](auto lanes) {
      const Tasks<lanes> tasks{rows, static_cast<int>(rule.value_heads), static_cast<int>(rule.value_dim)};
      return launch(delta_rule_states_kernel<T, lanes>, tasks.shape(), stream_of(stream), Rule<T>(rule, x, ba),
                    Slots{slot, pos, slots, rows}, tasks, states, static_cast<T *>(y));
    });
  });
}
