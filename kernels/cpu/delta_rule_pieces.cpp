// The division of packed rows into the pieces and chains of mgrpo/delta_rule.h.
#include <algorithm>
#include <new>
#include <vector>

#include "check.h"
#include "mgrpo/delta_rule.h"
#include "segments.h"

using namespace mgrpo;

namespace {

// Returns the maximum number of pieces. A piece has MGRPO_PIECE_ROWS rows, or ends its segment, or ends at a row after which another
// segment branches off.
int64_t max_pieces(int64_t rows, int64_t batch) { return std::min(rows, rows / MGRPO_PIECE_ROWS + 2 * batch); }

// Divides rows into pieces, and returns their number.
int64_t cut(const int32_t *cu, const int32_t *follows, int64_t batch, int32_t *first, int32_t *before) {
  std::vector<char> branches(static_cast<size_t>(cu[batch]));  // whether a segment begins after the row
  for (int64_t s = 0; s < batch && follows != nullptr; s++)
    if (cu[s] < cu[s + 1] && follows[s] >= 0) branches[follows[s]] = 1;
  std::vector<int32_t> piece_of(branches.size());
  int32_t n = 0;
  for (int64_t s = 0; s < batch; s++) {
    int32_t parent = follows != nullptr && follows[s] >= 0 ? piece_of[follows[s]] : -1;
    for (int32_t r = cu[s]; r < cu[s + 1]; r++) {
      const bool begins = r == cu[s] || branches[r - 1] || r - first[n - 1] == MGRPO_PIECE_ROWS;
      if (begins) first[n] = r, before[n] = r == cu[s] ? parent : n - 1, n++;
      piece_of[r] = n - 1;
    }
  }
  first[n] = cu[batch];
  return n;
}

// Writes the first piece of each chain, and the chains by level.
void chain(mgrpo_pieces *p, int32_t *chain, int32_t *order, int32_t *level) {
  const auto count = static_cast<size_t>(p->count);
  std::vector<int32_t> children(count), chain_of(count), level_of;
  for (size_t i = 0; i < count; i++)
    if (p->before[i] >= 0) children[p->before[i]]++;
  int64_t n = 0;
  for (size_t i = 0; i < count; i++) {
    const int32_t before = p->before[i];
    const bool goes_on = i > 0 && before == static_cast<int32_t>(i) - 1 && children[before] == 1;
    if (!goes_on) {
      chain[n++] = static_cast<int32_t>(i);
      level_of.push_back(before < 0 ? 0 : level_of[chain_of[before]] + 1);
    }
    chain_of[i] = static_cast<int32_t>(n - 1);
  }
  chain[n] = static_cast<int32_t>(p->count);
  for (int64_t i = 0; i < n; i++) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order, order + n, [&](int32_t a, int32_t b) { return level_of[a] < level_of[b]; });
  int64_t levels = 0;
  for (int64_t i = 0; i < n; i++)
    if (i == 0 || level_of[order[i]] != level_of[order[i - 1]]) level[levels++] = static_cast<int32_t>(i);
  level[levels] = static_cast<int32_t>(n);
  p->chain = chain, p->order = order, p->level = level, p->chains = n, p->levels = levels;
}

}  // namespace

int64_t mgrpo_pieces_size(int64_t rows, int64_t batch) {
  if (rows < 0 || batch < 0 || rows > INT32_MAX || batch > INT32_MAX) return -1;
  return 5 * max_pieces(rows, batch) + 3;
}

int32_t mgrpo_pieces_of(const int32_t *cu, const int32_t *follows_or_null, int64_t batch, int32_t *to, mgrpo_pieces *pieces) try {
  if (any_null({to, pieces}) || !valid_segments(cu, follows_or_null, batch)) return MGRPO_INVALID_ARGUMENT;
  const int64_t max_count = max_pieces(cu[batch], batch);
  int32_t *first = to, *before = first + max_count + 1, *chains = before + max_count, *order = chains + max_count + 1,
          *level = order + max_count;
  *pieces = {cut(cu, follows_or_null, batch, first, before), 0, 0, first, before, nullptr, nullptr, nullptr};
  chain(pieces, chains, order, level);
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}
