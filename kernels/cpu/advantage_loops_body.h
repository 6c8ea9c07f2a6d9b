// Advantages of four groups at a time, compiled for the instruction set of the file that includes this one (simd.h).
//
// Member i of the four groups is one vector. So the sums of a group run over its members in order, with the operations of
// group_advantage.h. They have the same bits as in the code for single groups. Elements after the end of a group belong to another group,
// and are masked.
#pragma once
#include <stddef.h>

#include "advantage_loops.h"
#include "group_advantage.h"
#include "simd.h"

namespace mgrpo::cpu {
namespace {

constexpr int kGroups = 4;
// Quads whose divisions and square roots are in progress at the same time, because each takes many cycles.
constexpr int kBatch = 4;
constexpr int64_t kLaneMembers = 64;

typedef double Quad __attribute__((vector_size(32)));
typedef double QuadUnaligned __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t QuadInt __attribute__((vector_size(32)));
typedef int64_t QuadIntUnaligned __attribute__((vector_size(32), aligned(8), may_alias));

MGRPO_INLINE Quad splat_quad(double a) { return Quad{a, a, a, a}; }
MGRPO_INLINE QuadInt splat_quad(int64_t a) { return QuadInt{a, a, a, a}; }
MGRPO_INLINE Quad load_quad(const double *p) { return *reinterpret_cast<const QuadUnaligned *>(p); }
MGRPO_INLINE void store_quad(double *p, Quad a) { *reinterpret_cast<QuadUnaligned *>(p) = a; }

MGRPO_INLINE Quad keep(Quad a, QuadInt mask) { return (Quad)((QuadInt)a & mask); }
MGRPO_INLINE Quad absolute(Quad a) { return (Quad)((QuadInt)a & INT64_MAX); }

#if defined(__AVX2__)
MGRPO_INLINE Quad load_quad(const float *p) { return (Quad)_mm256_cvtps_pd(_mm_loadu_ps(p)); }
MGRPO_INLINE void store_quad(float *p, Quad a) { _mm_storeu_ps(p, _mm256_cvtpd_ps((__m256d)a)); }
MGRPO_INLINE Quad root(Quad a) { return (Quad)_mm256_sqrt_pd((__m256d)a); }
MGRPO_INLINE bool all_lanes(QuadInt mask) { return _mm256_movemask_pd((__m256d)mask) == 15; }
#else
MGRPO_INLINE Quad load_quad(const float *p) { return Quad{p[0], p[1], p[2], p[3]}; }
MGRPO_INLINE void store_quad(float *p, Quad a) {
  for (int i = 0; i < 4; i++) p[i] = static_cast<float>(a[i]);
}
MGRPO_INLINE Quad root(Quad a) { return Quad{__builtin_sqrt(a[0]), __builtin_sqrt(a[1]), __builtin_sqrt(a[2]), __builtin_sqrt(a[3])}; }
MGRPO_INLINE bool all_lanes(QuadInt mask) { return (mask[0] & mask[1] & mask[2] & mask[3]) != 0; }
#endif

// Converts integers from 0 to 2^52.
MGRPO_INLINE Quad to_double(QuadInt n) {
  const Quad magic = splat_quad(0x1p52);
  return (Quad)(n | (QuadInt)magic) - magic;
}

MGRPO_INLINE void transpose(Quad (&a)[4]) {
  const Quad even01 = __builtin_shufflevector(a[0], a[1], 0, 4, 2, 6);
  const Quad odd01 = __builtin_shufflevector(a[0], a[1], 1, 5, 3, 7);
  const Quad even23 = __builtin_shufflevector(a[2], a[3], 0, 4, 2, 6);
  const Quad odd23 = __builtin_shufflevector(a[2], a[3], 1, 5, 3, 7);
  a[0] = __builtin_shufflevector(even01, even23, 0, 1, 4, 5);
  a[1] = __builtin_shufflevector(odd01, odd23, 0, 1, 4, 5);
  a[2] = __builtin_shufflevector(even01, even23, 2, 3, 6, 7);
  a[3] = __builtin_shufflevector(odd01, odd23, 2, 3, 6, 7);
}

// Reports whether every sum of up to kLaneMembers of these numbers is exact in float64. It is exact if the largest number and the smallest
// one other than 0 are at most 23 powers of two apart. That distance takes 23 bits, a number 24 bits and the sum 6 bits, which is 53 bits
// together. The result is false for NaN and Inf.
MGRPO_INLINE bool sums_exactly(const float *p, int64_t n) {
  uint32_t largest = 0, smallest = UINT32_MAX;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    __builtin_memcpy(&bits, p + i, sizeof bits);
    const uint32_t magnitude = bits & INT32_MAX;
    largest = magnitude > largest ? magnitude : largest;
    smallest = magnitude - 1 < smallest ? magnitude - 1 : smallest;  // 0 wraps around
  }
  return largest < 0x7F800000 && (largest == 0 || largest - (smallest + 1) <= 23u << 23);
}
MGRPO_INLINE bool sums_exactly(const double *, int64_t) { return false; }

// Loads four members from p on of each group. Afterwards a[j] has member j of all four groups.
template <class T>
MGRPO_INLINE void load_members(Quad (&a)[4], const T *p, const int64_t *first) {
  MGRPO_UNROLL for (int l = 0; l < kGroups; l++) a[l] = load_quad(p + first[l]);
  transpose(a);
}

// The sums of four groups, one group in each lane. They correspond to GroupMoments and CompensatedSum.
template <bool kWeighted>
struct GroupQuad {
  const int64_t *first;  // the offsets of the groups
  int64_t padded;        // the number of members of the longest group, rounded up to whole vectors
  QuadInt sizes, differ, refused;
  Quad weight_sum, sum, dropped, reference, mean, squares, peak;  // reference: the first reward that counts
  // rewards, later centred rewards; 0 if the member does not count.
  Quad members[kLaneMembers];
  Quad weights[kWeighted ? kLaneMembers : 1];
  Quad sigma, scale;
  QuadInt degenerate, empty;

  // Begins with the four groups from the offset on. Returns false if a group is too large, or if the vectors pass the element `limit`.
  MGRPO_INLINE bool begin(const int64_t *offset, int64_t limit) {
    first = offset;
    sizes = *reinterpret_cast<const QuadIntUnaligned *>(offset + 1) - *reinterpret_cast<const QuadIntUnaligned *>(offset);
    const int64_t longest = max64(max64(sizes[0], sizes[1]), max64(sizes[2], sizes[3]));
    padded = (longest + 3) / 4 * 4;
    return longest <= kLaneMembers && first[3] + padded <= limit;
  }

  // Returns the mask of the groups whose member i counts. inside: the mask of the groups that have a member i.
  MGRPO_INLINE QuadInt counts(int64_t i, QuadInt inside) const {
    if constexpr (kWeighted) return weights[i] > 0.0;
    return inside;
  }

  MGRPO_INLINE void add_weight(int64_t i, QuadInt inside, Quad reward, Quad weight) {
    weights[i] = keep(weight, inside);
    refused |= (weights[i] < 0.0) | (inside & (reward - reward != 0.0));  // also a reward that does not count must be finite
    reference = weight_sum == 0.0 ? keep(reward, weights[i] > 0.0) : reference;
    weight_sum += weights[i];
  }

  MGRPO_INLINE void add(int64_t i, QuadInt inside, Quad reward) {
    const QuadInt in = counts(i, inside);
    const Quad r = members[i] = keep(reward, in), x = kWeighted ? weights[kWeighted ? i : 0] * r : r;
    differ |= in & (r != reference);
    const Quad next = sum + x, of_x = next - sum;
    dropped += (sum - (next - of_x)) + (x - of_x);
    sum = next;
  }

  template <class T>
  MGRPO_INLINE void add_all(const T *rewards, const double *all_weights) {
    weight_sum = sum = dropped = reference = Quad{};
    differ = refused = QuadInt{};
    QuadInt left = sizes;
    for (int64_t i = 0; i < padded; i += 4, left -= 4) {
      Quad r[4], w[4];
      load_members(r, rewards + i, first);
      if (kWeighted) load_members(w, all_weights + i, first);
      if (!kWeighted && i == 0) reference = r[0];
      MGRPO_UNROLL for (int j = 0; j < 4; j++) {
        const QuadInt inside = left > splat_quad(int64_t{j});
        if (kWeighted) add_weight(i + j, inside, r[j], w[j]);
        add(i + j, inside, r[j]);
      }
    }
    if (!kWeighted) weight_sum = to_double(sizes);
    mean = differ ? (sum + dropped) / weight_sum : reference;
  }

  // Does what add_all does for unweighted members if sums_exactly() is true. The order of additions does not matter then.
  template <class T>
  MGRPO_INLINE void add_exactly(const T *rewards) {
    sum = dropped = reference = Quad{};
    refused = QuadInt{};
    QuadInt left = sizes;
    for (int64_t i = 0; i < padded; i += 4, left -= 4) {
      Quad r[4];
      load_members(r, rewards + i, first);
      if (i == 0) reference = r[0];
      MGRPO_UNROLL for (int j = 0; j < 4; j++) members[i + j] = r[j] = keep(r[j], left > splat_quad(int64_t{j}));
      sum += (r[0] + r[1]) + (r[2] + r[3]);
    }
    weight_sum = to_double(sizes);
    mean = sum / weight_sum;
  }

  // Sets `differ` and `mean` after centre_all(). No square of a difference of float32 values underflows, so `squares`
  // is 0 only where all rewards are equal.
  MGRPO_INLINE void compare_exactly() {
    differ = squares > 0.0;
    mean = differ ? mean : reference;
  }

  MGRPO_INLINE void centre_all() {
    squares = peak = Quad{};
    QuadInt left = sizes;
    for (int64_t i = 0; i < padded; i += 4, left -= 4) MGRPO_UNROLL for (int j = 0; j < 4; j++) {
        const QuadInt inside = left > splat_quad(int64_t{j});
        const Quad centred = members[i + j] = keep(members[i + j] - mean, counts(i + j, inside));
        squares += (kWeighted ? weights[kWeighted ? i + j : 0] * centred : centred) * centred;
        if (kWeighted) peak = centred * centred > peak ? centred * centred : peak;
      }
    if (!kWeighted) peak = squares;
  }

  // Computes group_stats and advantage_scale.
  MGRPO_INLINE void find_scale(const mgrpo_convention &c) {
    const Quad w = weight_sum;
    empty = w == 0.0;
    sigma = root(squares / w);
    degenerate = ~differ | (sigma < c.sigma_min);
    if (c.std == MGRPO_STD_SAMPLE || c.baseline != MGRPO_BASELINE_MEAN) degenerate |= w <= 1 + 0x1p-20;  // at_most_one_unit()
    scale = c.baseline == MGRPO_BASELINE_LEAVE_ONE_OUT ? w / (w - 1.0) : splat_quad(1.0);
    if (c.std == MGRPO_STD_POPULATION) scale /= sigma + c.eps;
    if (c.std == MGRPO_STD_SAMPLE) scale /= root(squares / (w - 1.0)) + c.eps;
  }

  // Returns the mask of the groups whose rewards differ, but perhaps only by rounding. They differ by more than that if sigma, which is at
  // most their range, is large compared with rounding() times the mean.
  MGRPO_INLINE QuadInt close(double share) const {
    const Quad near = 4 * share * mean;
    return differ & (squares <= near * near * weight_sum);
  }

  // Reports whether it is certain that no member is refused, and certain whether rewards are equal. The square of an advantage is at most
  // peak * scale^2.
  MGRPO_INLINE bool settled(double largest_square, double share) const {
    return all_lanes(~refused & ~close(share) & (absolute(sum + dropped) < __DBL_MAX__) & (squares < __DBL_MAX__) &
                     (weight_sum < __DBL_MAX__) & (degenerate | empty | (peak * scale * scale < largest_square)));
  }

  template <class T>
  MGRPO_INLINE void write(T *advantages, mgrpo_group_stats *stats) const {
    // The last vector of a group can overwrite the first elements of the groups after it. The loop runs backwards, so those elements are
    // written later: their index in their own group is smaller.
    const QuadInt live = ~(degenerate | empty);
    for (int64_t i = padded - 4; i >= 0; i -= 4) {
      Quad a[4];
      MGRPO_UNROLL for (int j = 0; j < 4; j++) a[j] = keep(members[i + j] * scale, live);
      transpose(a);
      MGRPO_UNROLL for (int l = 0; l < kGroups; l++) store_quad(advantages + first[l] + i, a[l]);
    }
    static_assert(sizeof(mgrpo_group_stats) == sizeof(Quad) && offsetof(mgrpo_group_stats, degenerate) == 24 &&
                  offsetof(mgrpo_group_stats, empty) == 25 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    Quad rows[4] = {keep(mean, ~empty), keep(sigma, differ), weight_sum, (Quad)((degenerate & ~empty & 1) | (empty & 0x100))};
    transpose(rows);
    MGRPO_UNROLL for (int l = 0; l < kGroups; l++) store_quad(&stats[l].mean, rows[l]);
  }
};

// Returns a bound below which the square root of a number is finite in the type of the argument.
MGRPO_INLINE double largest_square(const float *) { return static_cast<double>(__FLT_MAX__) * __FLT_MAX__ / 4; }
MGRPO_INLINE double largest_square(const double *) { return __DBL_MAX__; }

template <bool kWeighted, class T>
int64_t normalise_quads(const GroupArrays<T> &groups, const mgrpo_convention &c, int64_t begin, int64_t end) {
  const int64_t limit = groups.offsets[end];
  constexpr double share = rounding<T>();  // a constant, since inline functions must not be compiled for this instruction set
  GroupQuad<kWeighted> batch[kBatch];
  for (int64_t g = begin;; g += kBatch * kGroups) {
    int ready = 0, settled = 0;
    const int64_t *const offsets = groups.offsets + g;
    while (ready < kBatch && g + (ready + 1) * kGroups <= end && batch[ready].begin(offsets + ready * kGroups, limit)) ready++;
    const bool exact = !kWeighted && sums_exactly(groups.rewards + offsets[0], offsets[ready * kGroups] - offsets[0]);
    for (int i = 0; i < ready; i++) exact ? batch[i].add_exactly(groups.rewards) : batch[i].add_all(groups.rewards, groups.weights);
    for (int i = 0; i < ready; i++) batch[i].centre_all();
    for (int i = 0; i < ready && exact; i++) batch[i].compare_exactly();
    for (int i = 0; i < ready; i++) batch[i].find_scale(c);
    while (settled < ready && batch[settled].settled(largest_square(groups.rewards), share)) settled++;
    for (int i = 0; i < settled; i++) batch[i].write(groups.advantages, groups.stats + g + i * kGroups);
    if (settled < kBatch) return g + settled * kGroups;
  }
}

template <class T>
int64_t small_groups(const GroupArrays<T> &groups, const mgrpo_convention &c, int64_t begin, int64_t end) {
  return groups.weights ? normalise_quads<true>(groups, c, begin, end) : normalise_quads<false>(groups, c, begin, end);
}

constexpr AdvantageLoops make_advantage_loops() { return {small_groups<float>, small_groups<double>}; }

}  // namespace
}  // namespace mgrpo::cpu
