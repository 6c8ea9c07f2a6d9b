// A tile of a product of matrices in bfloat16: what one thread computes at a time.
#pragma once
#include <cstdint>

#include "mgrpo/matmul.h"

namespace mgrpo::cpu {

// The registers hold kTileRows x 2 * kTileColumns sums: 28 of 32, which leaves room for two vectors of b, and a's numbers are
// broadcast from memory.
constexpr int64_t kTileRows = 14, kTileColumns = 16;
// Largest packed numbers of rows of a and columns of b, for this many numbers of k: 24 panels of each, 12 KiB a panel.
// Two panels of b stay in the first-level cache while all panels of a stream from the second-level cache.
constexpr int64_t kTilePanels = 24, kTileDepth = 384;
constexpr int64_t kMostTileRows = kTilePanels * kTileRows, kMostTileColumns = kTilePanels * kTileColumns;
constexpr int64_t kPanelBytes = kTileDepth / 2 * 64, kTileScratch = 2 * kTilePanels * kPanelBytes;

// mgrpo_matmul_bf16_cpu for m <= kMostTileRows and n <= kMostTileColumns. scratch: kTileScratch bytes on a multiple of 64.
void matmul_tile(const mgrpo_matrix &a, const mgrpo_matrix &b, float *y, int64_t y_row, int64_t m, int64_t k, int64_t n, bool add,
                 char *scratch);

}  // namespace mgrpo::cpu
