#include "short_conv.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <unordered_set>
#include <vector>

#include "parallel.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

constexpr int32_t kNone = -1;

// Which row comes after which. A sequence is a path, and sequences with a common beginning part at a row.
class Rows {
 public:
  Rows(const int32_t *cu, const int32_t *follows, int64_t batch)
      : before_(static_cast<size_t>(cu[batch])), parting_(before_.size(), kNone), next_(static_cast<size_t>(batch), kNone), cu_(cu) {
    for (int64_t s = batch - 1; s >= 0; s--) {
      if (cu[s] == cu[s + 1]) continue;
      const int32_t parent = follows != nullptr ? follows[s] : kNone;
      before_[cu[s]] = parent;
      for (int32_t r = cu[s] + 1; r < cu[s + 1]; r++) before_[r] = r - 1;
      if (parent < 0 || parent == cu[s] - 1) continue;
      next_[s] = parting_[parent];
      parting_[parent] = static_cast<int32_t>(s);
    }
  }
  int32_t before(int64_t row) const { return before_[row]; }

  // f(row, distance) for a row and those that read it, at most `most` rows after it, depth first.
  template <class F>
  void each_reader(int32_t row, int64_t most, const F &f, int64_t distance = 0) const {
    f(row, distance);
    if (distance == most) return;
    if (row + 1 < static_cast<int32_t>(before_.size()) && before_[row + 1] == row) each_reader(row + 1, most, f, distance + 1);
    for (int32_t s = parting_[row]; s != kNone; s = next_[s]) each_reader(cu_[s], most, f, distance + 1);
  }

 private:
  std::vector<int32_t> before_, parting_, next_;  // parting_: the first segment that follows a row; next_: the next one after a segment
  const int32_t *cu_;
};

bool valid_segments(const int32_t *cu, const int32_t *follows, int64_t batch) {
  if (batch < 0 || cu == nullptr || cu[0] != 0) return false;
  for (int64_t s = 0; s < batch; s++)
    if (cu[s + 1] < cu[s] || (follows != nullptr && (follows[s] < kNone || follows[s] >= cu[s]))) return false;
  return true;
}

// Weights with the channels of a tap next to each other.
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

// u of a row: given, or the product of its gates and inputs.
struct Input {
  const float *gate, *x;  // gate null: x is u

  float operator()(int64_t j) const { return gate != nullptr ? gate[j] * x[j] : x[j]; }
};

Input input_of(const float *bcx, int64_t row, int64_t d) { return {bcx + row * 3 * d, bcx + row * 3 * d + 2 * d}; }

// The convolution of one row. taken[n] is u of the row n before it, for n < count.
void convolve(const mgrpo_short_conv &conv, const Taps &taps, const Input *taken, int64_t count, float *sum) {
  const float *bias = static_cast<const float *>(conv.bias_or_null);
  if (bias != nullptr)
    std::memcpy(sum, bias, static_cast<size_t>(conv.d) * sizeof(float));
  else
    std::fill_n(sum, conv.d, 0.0f);
  for (int64_t n = count - 1; n >= 0; n--) {
    const float *w = taps[conv.width - 1 - n];
    const Input u = taken[n];
    if (u.gate != nullptr)
      for (int64_t j = 0; j < conv.d; j++) sum[j] += w[j] * (u.gate[j] * u.x[j]);
    else
      for (int64_t j = 0; j < conv.d; j++) sum[j] += w[j] * u.x[j];
  }
}

// u of a row and of those before it; returns how many there are.
int64_t take(const float *bcx, const mgrpo_short_conv &conv, const Rows &rows, int64_t row, Input *taken) {
  int64_t n = 0;
  for (; row >= 0 && n < conv.width; row = rows.before(row)) taken[n++] = input_of(bcx, row, conv.d);
  return n;
}

double work_of(const mgrpo_short_conv &conv, int64_t rows) { return static_cast<double>(rows) * conv.d * (conv.width + 2); }

// The gradient of a row's inputs.
void back(const float *dy, const float *bcx, const mgrpo_short_conv &conv, const Taps &taps, const Rows &rows, int64_t row, float *to) {
  const int64_t d = conv.d;
  const float *b = bcx + row * 3 * d, *x = b + 2 * d, *grad = dy + row * d;
  float *db = to + row * 3 * d, *dc = db + d, *dx = dc + d;
  Input taken[kMostTaps];
  convolve(conv, taps, taken, take(bcx, conv, rows, row, taken), dc);
  for (int64_t j = 0; j < d; j++) dc[j] *= grad[j];
  std::fill_n(dx, d, 0.0f);  // du, until it is complete
  rows.each_reader(static_cast<int32_t>(row), conv.width - 1, [&](int64_t reader, int64_t distance) {
    const float *w = taps[conv.width - 1 - distance], *its = dy + reader * d, *gate = bcx + reader * 3 * d + d;
    for (int64_t j = 0; j < d; j++) dx[j] += w[j] * (its[j] * gate[j]);
  });
  for (int64_t j = 0; j < d; j++) {
    const float du = dx[j];
    db[j] = du * x[j];
    dx[j] = du * b[j];
  }
}

// Adds the gradients of weights and bias for channels [begin, end).
void add_dw(const float *dy, const float *bcx, const mgrpo_short_conv &conv, const Rows &rows, int64_t count, int64_t begin, int64_t end,
            float *dw, float *dbias) {
  const int64_t d = conv.d, n = end - begin;
  std::vector<float> sums(static_cast<size_t>((conv.width + 1) * n)), grad(static_cast<size_t>(n));
  for (int64_t row = 0; row < count; row++) {
    const float *its = dy + row * d + begin, *gate = bcx + row * 3 * d + d + begin;
    for (int64_t j = 0; j < n; j++) grad[j] = its[j] * gate[j];
    Input taken[kMostTaps];
    const int64_t seen = take(bcx, conv, rows, row, taken);
    for (int64_t i = 0; i < seen; i++) {
      float *sum = sums.data() + (conv.width - 1 - i) * n;
      const float *b = taken[i].gate + begin, *x = taken[i].x + begin;
      for (int64_t j = 0; j < n; j++) sum[j] += grad[j] * (b[j] * x[j]);
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

// The place of a position in a cache of rows, or -1.
int64_t place_of(const mgrpo_pages &pages, int64_t sequence, int64_t pos) {
  const int64_t block = pages.table[sequence * pages.width + pos / pages.block];
  return block >= 0 && block < pages.blocks ? block * pages.block + pos % pages.block : -1;
}

// Whether every place that a row writes or reads is in the cache.
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
      Input taken[kMostTaps];
      float *to = y + r * conv.d;
      convolve(conv, taps, taken, take(bcx, conv, rows, r, taken), to);
      const float *c = bcx + r * 3 * conv.d + conv.d;
      for (int64_t j = 0; j < conv.d; j++) to[j] *= c[j];
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
  parallel_ranges(count, 1, 2 * work_of(conv, count), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) back(dy, bcx, conv, taps, rows, r, dbcx);
  });
  if (dw_or_null == nullptr && dbias_or_null == nullptr) return MGRPO_OK;
  parallel_ranges(conv.d, 16, work_of(conv, count),
                  [&](int64_t begin, int64_t end) { add_dw(dy, bcx, conv, rows, count, begin, end, dw_or_null, dbias_or_null); });
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_short_conv_cached_cpu(const float *bcx, mgrpo_short_conv conv, float *cache, mgrpo_pages pages, const int32_t *sequence,
                                    const int32_t *pos, float *y, int64_t rows) try {
  if (!valid_conv(conv, rows) || !valid_conv_cache(conv, pages)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({bcx, conv.w, cache, pages.table, sequence, pos, y}) || !known_places(conv, pages, sequence, pos, rows))
    return MGRPO_INVALID_ARGUMENT;
  const int64_t d = conv.d;
  std::unordered_set<int64_t> written;
  for (int64_t r = rows - 1; r >= 0; r--) {  // the last row of a place remains
    const int64_t place = place_of(pages, sequence[r], pos[r]);
    if (!written.insert(place).second) continue;
    const Input u = input_of(bcx, r, d);
    for (int64_t j = 0; j < d; j++) cache[place * d + j] = u(j);
  }
  const Taps taps(conv);
  parallel_ranges(rows, 1, work_of(conv, rows), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      Input taken[kMostTaps] = {input_of(bcx, r, d)};
      int64_t n = 1;
      for (; n < conv.width && n <= pos[r]; n++) taken[n] = {nullptr, cache + place_of(pages, sequence[r], pos[r] - n) * d};
      float *to = y + r * d;
      convolve(conv, taps, taken, n, to);
      const float *c = bcx + r * 3 * d + d;
      for (int64_t j = 0; j < d; j++) to[j] *= c[j];
    }
  });
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}
