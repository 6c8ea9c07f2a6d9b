#include "mgrpo/matmul.h"

#include <algorithm>

#include "check.h"
#include "layer_loops.h"
#include "matmul_tile.h"
#include "parallel.h"
#include "scratch.h"

namespace mgrpo::cpu {
namespace {

#if defined(__x86_64__)
int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// The division of a product into tiles: as few tiles of equal size as fit into the scratch memory, but several for each thread.
struct Cut {
  int64_t rows, columns, down, across;

  Cut(int64_t m, int64_t n, int64_t threads) {
    for (down = parts(m, kMaxTileRows), across = parts(n, kMaxTileColumns); down * across < 3 * threads;) {
      int64_t &halved = m / down >= n / across ? down : across;
      if (std::max(m / down, n / across) < 4 * kTileColumns) break;
      halved *= 2;
    }
    rows = parts(parts(m, down), kTileRows) * kTileRows;
    columns = parts(parts(n, across), 2 * kTileColumns) * 2 * kTileColumns;
    down = parts(m, rows), across = parts(n, columns);
  }
};

int32_t matmul(const mgrpo_matrix &a, const mgrpo_matrix &b, float *y, int64_t y_row, int64_t m, int64_t k, int64_t n, bool add,
               bool round) {
  const double work = static_cast<double>(m) * k * n;
  const Cut cut(m, n, thread_count(work));
  std::atomic<bool> failed{false};
  parallel_for(cut.down * cut.across, work, [&](int64_t t) {
    static thread_local Scratch scratch;
    const int64_t i = t / cut.across * cut.rows, j = t % cut.across * cut.columns;
    note_bad_alloc(&failed, [&] {
      matmul_tile({a.data + i * a.row, a.row, a.column}, {b.data + j * b.column, b.row, b.column}, y + i * y_row + j, y_row,
                  std::min(m - i, cut.rows), k, std::min(n - j, cut.columns), add, round, scratch.at_least(kTileScratch));
    });
  });
  return failed ? MGRPO_OUT_OF_MEMORY : MGRPO_OK;
}

// Reports whether the strides of a matrix are valid for this shape.
bool valid(const mgrpo_matrix &x, int64_t rows, int64_t columns) {
  if (rows == 0 || columns == 0) return true;
  return x.data != nullptr && ((x.column == 1 && x.row >= columns) || (x.row == 1 && x.column >= rows));
}
#endif

}  // namespace
}  // namespace mgrpo::cpu

int32_t mgrpo_matmul_cpu([[maybe_unused]] mgrpo_matrix a, [[maybe_unused]] mgrpo_matrix b, [[maybe_unused]] float *y,
                         [[maybe_unused]] int64_t y_row, [[maybe_unused]] int64_t m, [[maybe_unused]] int64_t k, [[maybe_unused]] int64_t n,
                         [[maybe_unused]] int32_t add, [[maybe_unused]] int32_t round) {
#if defined(__x86_64__)
  using namespace mgrpo::cpu;
  if (multiplies_bf16_pairs()) {
    if (!mgrpo::valid_sizes({m, k, n}) || !valid(a, m, k) || !valid(b, k, n)) return MGRPO_INVALID_ARGUMENT;
    if (m == 0 || n == 0) return MGRPO_OK;
    if (y == nullptr || y_row < n) return MGRPO_INVALID_ARGUMENT;
    if (k > 0) return matmul(a, b, y, y_row, m, k, n, add != 0, round != 0);
    if (add == 0)
      for (int64_t i = 0; i < m; i++) std::fill_n(y + i * y_row, n, 0.0f);
    return MGRPO_OK;
  }
#endif
  return MGRPO_UNSUPPORTED;
}
