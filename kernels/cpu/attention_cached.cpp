#include <algorithm>
#include <new>
#include <vector>

#include "layer_loops.h"
#include "mgrpo/attention.h"
#include "mgrpo/dtype.h"
#include "pages.h"
#include "parallel.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

// Consecutive rows of one sequence, and the spans of the keys that they attend to.
struct Run {
  int64_t row, rows;
  size_t span, spans;  // the first one in Runs::spans, and their number
};

// Consecutive (row, query head) pairs of a run and one key/value head.
struct Tile {
  size_t run;
  int64_t kv_head;
  int64_t first, end;  // pairs, numbered (row - run's first row) * group + query head of the group
};

struct Runs {
  std::vector<Run> runs;
  std::vector<KeySpan> spans;  // KeySpan::row counts rows of hd numbers from the first block of a head

  // Adds the runs of all rows. Returns false if a row has a place outside of the cache.
  bool add(const mgrpo_pages &pages, const int32_t *sequence, const int32_t *length, int64_t rows, int64_t window) {
    for (int64_t row = 0, next; row < rows; row = next) {
      int64_t first = first_seen(length[row] - 1, window), longest = length[row];
      for (next = row + 1; next < rows && sequence[next] == sequence[row]; next++) {
        first = std::min(first, first_seen(length[next] - 1, window));
        longest = std::max<int64_t>(longest, length[next]);
      }
      const size_t span = spans.size();
      const int32_t *table = pages.table + sequence[row] * pages.width;
      for (int64_t i = first / pages.block; i * pages.block < longest; i++) {
        if (table[i] < 0 || table[i] >= pages.blocks) return false;
        spans.push_back({i * pages.block, table[i] * pages.kv_heads * pages.block, pages.block});
      }
      runs.push_back({row, next - row, span, spans.size() - span});
    }
    return true;
  }

  std::vector<Tile> tiles(int64_t kv_heads, int64_t group) const {
    std::vector<Tile> tiles;
    for (size_t run = 0; run < runs.size(); run++) {
      const int64_t pairs = runs[run].rows * group;
      for (int64_t h = 0; h < kv_heads; h++)
        for (int64_t first = 0; first < pairs; first += kAttentionTile)
          tiles.push_back({run, h, first, std::min(first + kAttentionTile, pairs)});
    }
    return tiles;
  }
};

// The queries of a call, and the results.
struct Queries {
  const float *q, *sinks;  // sinks may be null
  const int32_t *length;
  float *out;
  int64_t heads;
  float scale;
  int64_t window;
};

// Computes a tile of attention to a cache of W.
template <class W>
void attend_tile(Attend<W> attend, const Queries &in, const Runs &all, const Tile &tile, const W *k_cache, const W *v_cache,
                 const mgrpo_pages &pages) {
  const int64_t hd = pages.hd, group = in.heads / pages.kv_heads;
  const Run &run = all.runs[tile.run];
  const float *queries[kAttentionTile];
  float *outputs[kAttentionTile], sinks[kAttentionTile];
  int64_t lengths[kAttentionTile];
  int n = 0;
  for (int64_t pair = tile.first; pair < tile.end; pair++, n++) {
    const int64_t row = run.row + pair / group, head = tile.kv_head * group + pair % group, at = (row * in.heads + head) * hd;
    queries[n] = in.q + at;
    outputs[n] = in.out + at;
    lengths[n] = in.length[row];
    if (in.sinks != nullptr) sinks[n] = in.sinks[head];
  }
  const int64_t at = tile.kv_head * pages.block * hd;
  const AttentionKeys<W> seen{all.spans.data() + run.span, static_cast<int64_t>(run.spans), k_cache + at, v_cache + at, hd};
  attend(queries, lengths, n, seen, hd, in.scale, in.window, in.sinks != nullptr ? sinks : nullptr, outputs, nullptr);
}

}  // namespace

int32_t mgrpo_attention_cached_cpu(const float *q, const void *k_cache, const void *v_cache, int32_t cache_dtype, mgrpo_pages pages,
                                   const int32_t *sequence, const int32_t *length, const float *sinks_or_null, float *out, int64_t rows,
                                   int64_t heads, float scale, int64_t window) try {
  const int64_t kv_heads = pages.kv_heads, hd = pages.hd, longest = pages.width * pages.block;
  if (!valid_pages(pages) || !valid_sizes({rows, heads, hd}) || kv_heads == 0 || heads == 0 || heads % kv_heads != 0 || hd == 0 ||
      hd > kMaxHeadDim || window < 0 || (cache_dtype != MGRPO_FLOAT32 && cache_dtype != MGRPO_BFLOAT16))
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({q, sequence, length, out}) || !all_in_range(sequence, rows, 0, pages.sequences) ||
      !all_in_range(length, rows, 0, longest + 1) || (longest > 0 && any_null({pages.table, k_cache, v_cache})))
    return MGRPO_INVALID_ARGUMENT;
  Runs all;
  if (!all.add(pages, sequence, length, rows, window)) return MGRPO_INVALID_ARGUMENT;
  const std::vector<Tile> tiles = all.tiles(kv_heads, heads / kv_heads);
  double keys = 0;
  for (int64_t r = 0; r < rows; r++) keys += static_cast<double>(length[r] - first_seen(length[r] - 1, window));
  const Queries in{q, sinks_or_null, length, out, heads, scale, window};
  const auto run = [&](auto attend, const auto *k, const auto *v) {
    parallel_for(static_cast<int64_t>(tiles.size()), 2 * keys * heads * hd,
                 [&](int64_t t) { attend_tile(attend, in, all, tiles[static_cast<size_t>(t)], k, v, pages); });
  };
  if (cache_dtype == MGRPO_BFLOAT16)
    run(layer_loops().attend_bf16, static_cast<const uint16_t *>(k_cache), static_cast<const uint16_t *>(v_cache));
  else
    run(layer_loops().attend, static_cast<const float *>(k_cache), static_cast<const float *>(v_cache));
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}
