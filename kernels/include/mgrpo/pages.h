// The shape of a paged key-value cache.
#pragma once
#include "mgrpo/status.h"

// The shape of a key-value cache [blocks, kv_heads, block, hd]. A block has `block` tokens, a power of two, and a sequence has at most
// 2^31 tokens. Position p of sequence s is place p % block in block table[s, p / block].
typedef struct mgrpo_pages {
  const int32_t *table;  // [sequences, width]: blocks, in the order of the positions
  int64_t sequences, width;
  int64_t blocks, kv_heads, block, hd;
} mgrpo_pages;
