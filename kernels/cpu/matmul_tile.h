// A tile of a product of matrices, which one thread computes at a time.
#pragma once
#include <cstdint>

#include "mgrpo/matmul.h"

namespace mgrpo::cpu {

// The sums of kTileRows x 2 * kTileColumns elements take 28 of the 32 registers. Two more contain vectors of b. The numbers of a are
// broadcast from memory.
constexpr int64_t kTileRows = 14, kTileColumns = 16;
// A packed tile has up to kTilePanels panels of rows of a and as many panels of columns of b, for kTileUnits units of k. A unit is a
// float or a pair of bfloat16. A panel has 12 KiB. Two panels of b stay in the first-level cache while all panels of a are read from the
// second-level cache.
constexpr int64_t kTilePanels = 24, kTileUnits = 192;
constexpr int64_t kMaxTileRows = kTilePanels * kTileRows, kMaxTileColumns = kTilePanels * kTileColumns;
constexpr int64_t kPanelBytes = kTileUnits * 64, kTileScratch = 2 * kTilePanels * kPanelBytes;

// Does what mgrpo_matmul_cpu does, for m <= kMaxTileRows and n <= kMaxTileColumns. scratch has kTileScratch bytes and is aligned to 64
// bytes.
void matmul_tile(const mgrpo_matrix &a, const mgrpo_matrix &b, float *y, int64_t y_row, int64_t m, int64_t k, int64_t n, bool add,
                 bool round, char *scratch);

}  // namespace mgrpo::cpu
