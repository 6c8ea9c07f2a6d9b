#include "short_conv.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <unordered_set>
#include <vector>

#include "layer_loops.h"
#include "parallel.h"
#include "segments.h"
#include "slot_runs.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

constexpr int32_t kNone = -1;

// The order of rows in their sequences. A row can be followed by the next row of its segment and by segments that branch off after it,
// because sequences with a common beginning share its rows.
class Rows {
 public:
  Rows(const int32_t *cu, const int32_t *follows, int64_t batch)
      : before_(static_cast<size_t>(cu[batch])),
        first_branch_(before_.size(), kNone),
        next_branch_(static_cast<size_t>(batch), kNone),
        cu_(cu) {
    for (int64_t s = batch - 1; s >= 0; s--) {
      if (cu[s] == cu[s + 1]) continue;
      const int32_t parent = follows != nullptr ? follows[s] : kNone;
      before_[cu[s]] = parent;
      for (int32_t r = cu[s] + 1; r < cu[s + 1]; r++) before_[r] = r - 1;
      if (parent < 0 || parent == cu[s] - 1) continue;
      next_branch_[s] = first_branch_[parent];
      first_branch_[parent] = static_cast<int32_t>(s);
    }
  }
  int32_t before(int64_t row) const { return before_[row]; }

  // Calls f(row, distance) for a row and for the rows that come after it within max_distance rows, in depth-first order.
  template <class F>
  void each_reader(int32_t row, int64_t max_distance, const F &f, int64_t distance = 0) const {
    f(row, distance);
    if (distance == max_distance) return;
    if (row + 1 < static_cast<int32_t>(before_.size()) && before_[row + 1] == row) each_reader(row + 1, max_distance, f, distance + 1);
    for (int32_t s = first_branch_[row]; s != kNone; s = next_branch_[s]) each_reader(cu_[s], max_distance, f, distance + 1);
  }

 private:
  // first_branch_: the first segment that branches off after a row. next_branch_: the next segment that branches off after the same row.
  std::vector<int32_t> before_, first_branch_, next_branch_;
  const int32_t *cu_;
};

// A copy of the weights in which the channels of a tap are consecutive.
class Taps {
 public:
  explicit Taps(const mgrpo_short_conv &conv) : d_(conv.d), w_(static_cast<size_t>(conv.d * conv.width)) {
    const float *w = static_cast<const float *>(conv.w);
    for (int64_t j = 0; j < conv.d; j++)
      for (int64_t i = 0; i < conv.width; i++) w_[i * d_ + j] = w[j * conv.width + i];
  }
  const float *operator[](int64_t tap) const { return w_.data() + tap * d_; }

 private:
  int64_t d_;
  std::vector<float> w_;
};

// The inputs u of a row. With gates u is the product of gates B and inputs x.
struct Input {
  const float *gate, *x;  // if gate is null, x is u

  float operator()(int64_t j) const { return gate != nullptr ? gate[j] * x[j] : x[j]; }
};

// Returns the number of columns of bcx divided by d.
int64_t parts_of(const mgrpo_short_conv &conv) { return conv.silu != 0 ? 1 : 3; }

Input input_of(const float *bcx, int64_t row, const mgrpo_short_conv &conv) {
  const float *first = bcx + row * parts_of(conv) * conv.d;
  return conv.silu != 0 ? Input{nullptr, first} : Input{first, first + 2 * conv.d};
}

// Computes the convolution of one row. window[n] is u of the row n places before it, for n < count.
void convolve(const mgrpo_short_conv &conv, const Taps &taps, const Input *window, int64_t count, float *sum) {
  const float *bias = static_cast<const float *>(conv.bias_or_null);
  if (bias != nullptr)
    std::memcpy(sum, bias, static_cast<size_t>(conv.d) * sizeof(float));
  else
    std::fill_n(sum, conv.d, 0.0f);
  for (int64_t n = count - 1; n >= 0; n--) {
    const float *w = taps[conv.width - 1 - n];
    const Input u = window[n];
    if (u.gate != nullptr)
      for (int64_t j = 0; j < conv.d; j++) sum[j] += w[j] * (u.gate[j] * u.x[j]);
    else
      for (int64_t j = 0; j < conv.d; j++) sum[j] += w[j] * u.x[j];
  }
}

// Writes u of a row and of the rows before it to `window`. Returns the number of these rows.
int64_t load_window(const float *bcx, const mgrpo_short_conv &conv, const Rows &rows, int64_t row, Input *window) {
  int64_t n = 0;
  for (; row >= 0 && n < conv.width; row = rows.before(row)) window[n++] = input_of(bcx, row, conv);
  return n;
}

double work_of(const mgrpo_short_conv &conv, int64_t rows) { return static_cast<double>(rows) * conv.d * (conv.width + 2); }

// Replaces the convolution of a row by its result.
void finish(const mgrpo_short_conv &conv, const float *bcx, int64_t row, float *sum) {
  if (conv.silu != 0) {
    layer_loops().silu(sum, sum, conv.d);
    return;
  }
  const float *c = bcx + (row * 3 + 1) * conv.d;
  for (int64_t j = 0; j < conv.d; j++) sum[j] *= c[j];
}

// Computes the gradient of a row's convolution. With gates it also computes the gradient of the row's gates C.
void back_to_sum(const float *dy, const float *bcx, const mgrpo_short_conv &conv, const Taps &taps, const Rows &rows, int64_t row,
                 float *dsum, float *dbcx) {
  const int64_t d = conv.d;
  const float *grad = dy + row * d;
  float *to = dsum + row * d;
  Input window[kMaxTaps];
  const int64_t count = load_window(bcx, conv, rows, row, window);
  if (conv.silu != 0) {
    convolve(conv, taps, window, count, to);
    layer_loops().silu_bwd(grad, to, to, d);
    return;
  }
  const float *c = bcx + (row * 3 + 1) * d;
  float *dc = dbcx + (row * 3 + 1) * d;
  convolve(conv, taps, window, count, dc);
  for (int64_t j = 0; j < d; j++) dc[j] *= grad[j], to[j] = grad[j] * c[j];
}

// Computes the gradient of a row's u. With gates it computes the gradients of the row's gates B and inputs x.
void back_to_input(const float *dsum, const float *bcx, const mgrpo_short_conv &conv, const Taps &taps, const Rows &rows, int64_t row,
                   float *dbcx) {
  const int64_t d = conv.d, at = row * parts_of(conv) * d;
  float *du = dbcx + at + (parts_of(conv) - 1) * d;
  std::fill_n(du, d, 0.0f);
  rows.each_reader(static_cast<int32_t>(row), conv.width - 1, [&](int64_t reader, int64_t distance) {
    const float *w = taps[conv.width - 1 - distance], *gradient = dsum + reader * d;
    for (int64_t j = 0; j < d; j++) du[j] += w[j] * gradient[j];
  });
  if (conv.silu != 0) return;
  const float *b = bcx + at, *x = b + 2 * d;
  float *db = dbcx + at;
  for (int64_t j = 0; j < d; j++) {
    db[j] = du[j] * x[j];
    du[j] *= b[j];
  }
}

// Adds the gradients of weights and bias for channels [begin, end).
void add_dw(const float *dsum, const float *bcx, const mgrpo_short_conv &conv, const Rows &rows, int64_t count, int64_t begin, int64_t end,
            float *dw, float *dbias) {
  const int64_t d = conv.d, n = end - begin;
  std::vector<float> sums(static_cast<size_t>((conv.width + 1) * n));
  for (int64_t row = 0; row < count; row++) {
    const float *grad = dsum + row * d + begin;
    Input window[kMaxTaps];
    const int64_t seen = load_window(bcx, conv, rows, row, window);
    for (int64_t i = 0; i < seen; i++) {
      float *sum = sums.data() + (conv.width - 1 - i) * n;
      const float *x = window[i].x + begin;
      if (window[i].gate != nullptr) {
        const float *b = window[i].gate + begin;
        for (int64_t j = 0; j < n; j++) sum[j] += grad[j] * (b[j] * x[j]);
      } else {
        for (int64_t j = 0; j < n; j++) sum[j] += grad[j] * x[j];
      }
    }
    float *sum = sums.data() + conv.width * n;
    for (int64_t j = 0; j < n; j++) sum[j] += grad[j];
  }
  for (int64_t j = 0; j < n; j++) {
    if (dw != nullptr)
      for (int64_t i = 0; i < conv.width; i++) dw[(begin + j) * conv.width + i] += sums[i * n + j];
    if (dbias != nullptr) dbias[begin + j] += sums[conv.width * n + j];
  }
}

// Returns the place of a position in the cache, or -1.
int64_t place_of(const mgrpo_pages &pages, int64_t sequence, int64_t pos) {
  const int64_t block = pages.table[sequence * pages.width + pos / pages.block];
  return block >= 0 && block < pages.blocks ? block * pages.block + pos % pages.block : -1;
}

// Reports whether every place that a row writes or reads is in the cache.
bool known_places(const mgrpo_short_conv &conv, const mgrpo_pages &pages, const int32_t *sequence, const int32_t *pos, int64_t rows) {
  if (!all_in_range(sequence, rows, 0, pages.sequences) || !all_in_range(pos, rows, 0, pages.width * pages.block)) return false;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t n = 0; n < conv.width && n <= pos[r]; n++)
      if (place_of(pages, sequence[r], pos[r] - n) < 0) return false;
  return true;
}

}  // namespace

int32_t mgrpo_short_conv_packed_cpu(const float *bcx, mgrpo_short_conv conv, const int32_t *cu, const int32_t *follows_or_null,
                                    int64_t batch, float *y) try {
  if (!valid_segments(cu, follows_or_null, batch) || !valid_conv(conv, cu[batch])) return MGRPO_INVALID_ARGUMENT;
  if (cu[batch] == 0) return MGRPO_OK;
  if (any_null({bcx, conv.w, y})) return MGRPO_INVALID_ARGUMENT;
  const Rows rows(cu, follows_or_null, batch);
  const Taps taps(conv);
  parallel_ranges(cu[batch], 1, work_of(conv, cu[batch]), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      Input window[kMaxTaps];
      float *to = y + r * conv.d;
      convolve(conv, taps, window, load_window(bcx, conv, rows, r, window), to);
      finish(conv, bcx, r, to);
    }
  });
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_short_conv_packed_bwd_cpu(const float *dy, const float *bcx, mgrpo_short_conv conv, const int32_t *cu,
                                        const int32_t *follows_or_null, int64_t batch, float *dbcx, float *dw_or_null,
                                        float *dbias_or_null) try {
  if (!valid_segments(cu, follows_or_null, batch) || !valid_conv(conv, cu[batch])) return MGRPO_INVALID_ARGUMENT;
  const int64_t count = cu[batch];
  if (count == 0) return MGRPO_OK;
  if (any_null({dy, bcx, conv.w, dbcx})) return MGRPO_INVALID_ARGUMENT;
  const Rows rows(cu, follows_or_null, batch);
  const Taps taps(conv);
  std::vector<float> dsum(static_cast<size_t>(count * conv.d));  // gradients of the convolutions
  const auto each_row = [&](const auto &f) {
    parallel_ranges(count, 1, work_of(conv, count), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) f(r);
    });
  };
  each_row([&](int64_t r) { back_to_sum(dy, bcx, conv, taps, rows, r, dsum.data(), dbcx); });
  each_row([&](int64_t r) { back_to_input(dsum.data(), bcx, conv, taps, rows, r, dbcx); });
  if (dw_or_null == nullptr && dbias_or_null == nullptr) return MGRPO_OK;
  parallel_ranges(conv.d, 16, work_of(conv, count),
                  [&](int64_t begin, int64_t end) { add_dw(dsum.data(), bcx, conv, rows, count, begin, end, dw_or_null, dbias_or_null); });
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_short_conv_cached_cpu(const float *bcx, mgrpo_short_conv conv, float *cache, mgrpo_pages pages, const int32_t *sequence,
                                    const int32_t *pos, float *y, int64_t rows) try {
  if (!valid_conv(conv, rows) || conv.silu != 0 || !valid_conv_cache(conv, pages)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({bcx, conv.w, cache, pages.table, sequence, pos, y}) || !known_places(conv, pages, sequence, pos, rows))
    return MGRPO_INVALID_ARGUMENT;
  const int64_t d = conv.d;
  std::unordered_set<int64_t> written;
  for (int64_t r = rows - 1; r >= 0; r--) {  // from the last row on, because the last row of a place remains
    const int64_t place = place_of(pages, sequence[r], pos[r]);
    if (!written.insert(place).second) continue;
    const Input u = input_of(bcx, r, conv);
    for (int64_t j = 0; j < d; j++) cache[place * d + j] = u(j);
  }
  const Taps taps(conv);
  parallel_ranges(rows, 1, work_of(conv, rows), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      Input window[kMaxTaps] = {input_of(bcx, r, conv)};
      int64_t n = 1;
      for (; n < conv.width && n <= pos[r]; n++) window[n] = {nullptr, cache + place_of(pages, sequence[r], pos[r] - n) * d};
      float *to = y + r * d;
      convolve(conv, taps, window, n, to);
      finish(conv, bcx, r, to);
    }
  });
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_short_conv_states_cpu(const float *u, mgrpo_short_conv conv, float *states, int64_t slots, const int32_t *slot,
                                    const int32_t *pos, float *y, int64_t rows) try {
  const int64_t d = conv.d, kept = conv.width - 1;
  if (!valid_conv(conv, rows) || conv.silu == 0 || !valid_sizes({slots, d, kept, sizeof(float)})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({u, conv.w, slot, pos, y}) || (kept > 0 && states == nullptr) || !all_in_range(slot, rows, 0, slots) ||
      !all_in_range(pos, rows, 0, INT32_MAX))
    return MGRPO_INVALID_ARGUMENT;
  const Taps taps(conv);
  const std::vector<int64_t> runs = runs_of(slot, rows);
  std::vector<int64_t> run_of(static_cast<size_t>(rows));
  for (size_t i = 0; i + 1 < runs.size(); i++) std::fill(run_of.begin() + runs[i], run_of.begin() + runs[i + 1], runs[i]);
  parallel_ranges(rows, 1, work_of(conv, rows), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      const float *state = states + slot[r] * kept * d;
      Input window[kMaxTaps];
      int64_t n = 0;
      for (; n < conv.width && n <= pos[r]; n++) {
        // missing: rows before the first row of the run, which are in the state.
        const int64_t row = r - n, missing = run_of[r] - row;
        window[n] = {nullptr, missing <= 0 ? u + row * d : state + (kept - missing) * d};
      }
      convolve(conv, taps, window, n, y + r * d);
      finish(conv, u, r, y + r * d);
    }
  });
  if (kept == 0) return MGRPO_OK;
  for (size_t i = 0; i + 1 < runs.size(); i++) {
    const int64_t rows_of = runs[i + 1] - runs[i], fresh = rows_of < kept ? rows_of : kept;
    float *state = states + slot[runs[i]] * kept * d;
    std::memmove(state, state + fresh * d, static_cast<size_t>((kept - fresh) * d) * sizeof(float));
    std::memcpy(state + (kept - fresh) * d, u + (runs[i + 1] - fresh) * d, static_cast<size_t>(fresh * d) * sizeof(float));
  }
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}
