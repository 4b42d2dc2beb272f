/* SPDX-License-Identifier: Apache-2.0
 * Computes which keys a query token sees, and how many bytes a call of attention reads. */
#include "attention/queries.h"

enum { TREE_BITS = 64 };

int32_t bny_attention_keys(const banyan_kv_part *part, int32_t sequence) {
  if (!part->pages.last_len) return part->seq_lens[sequence];
  int32_t pages = part->pages.indptr[sequence + 1] - part->pages.indptr[sequence];
  return pages > 0 ? (pages - 1) * part->pages.keys + part->pages.last_len[sequence] : 0;
}

/* Returns how many of the blocks of the pattern are before block `block` of a period. */
static int64_t blocks_below(const banyan_queries *queries, int64_t block) {
  int64_t low = 0, high = queries->key_pattern_len;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (queries->key_pattern[middle] < block)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Returns how many keys of the pattern are below `rest` of a period. */
static int64_t pattern_below(const banyan_queries *queries, int64_t rest) {
  int64_t block = rest / queries->key_block, blocks = blocks_below(queries, block);
  bool has_block = blocks < queries->key_pattern_len && queries->key_pattern[blocks] == block;
  return blocks * queries->key_block + (has_block ? rest % queries->key_block : 0);
}

/* Positions grow with keys. */
int32_t bny_attention_keys_below(const bny_attention_desc *desc, int32_t sequence, int64_t position) {
  const banyan_queries *queries = &desc->queries;
  int64_t keys = bny_attention_keys(&desc->kv, sequence), below = position;
  if (queries->key_start) below -= queries->key_start[sequence];
  if (below <= 0) return 0;
  if (queries->key_pattern_len > 0) {
    below = below / queries->key_stride * queries->key_pattern_len * queries->key_block +
            pattern_below(queries, below % queries->key_stride);
  } else if (queries->key_block > 0) {
    int64_t rest = below % queries->key_stride;
    below = below / queries->key_stride * queries->key_block + (rest < queries->key_block ? rest : queries->key_block);
  }
  return (int32_t)(below < keys ? below : keys);
}

int64_t bny_attention_position(const bny_attention_desc *desc, int32_t sequence, int32_t key) {
  const banyan_queries *queries = &desc->queries;
  int64_t start = queries->key_start ? queries->key_start[sequence] : 0;
  if (queries->key_block == 0) return start + key;
  int64_t block = key / queries->key_block, period = block, offset = 0;
  if (queries->key_pattern_len > 0) {
    period = block / queries->key_pattern_len;
    offset = (int64_t)queries->key_pattern[block % queries->key_pattern_len] * queries->key_block;
  }
  return start + period * queries->key_stride + offset + key % queries->key_block;
}

/* The drafts of `mask`, of keys from sight->tree_first on. */
static uint64_t tree_bits(const bny_attention_desc *desc, int32_t sequence, uint64_t mask,
                          const bny_attention_sight *sight) {
  int64_t start = desc->queries.query_start[sequence];
  uint64_t bits = 0;
  for (int32_t j = 0; j < TREE_BITS; j++) {
    if (!(mask >> j & 1)) continue;
    int32_t key = bny_attention_keys_below(desc, sequence, start + j);
    if (bny_attention_keys_below(desc, sequence, start + j + 1) > key) bits |= UINT64_C(1) << (key - sight->tree_first);
  }
  return bits;
}

/* Returns the depth of the sequence's draft `index`: how many drafts before it its query sees. */
static int32_t depth_of(uint64_t mask, int32_t index) {
  int32_t depth = 0;
  for (uint64_t before = mask & ((UINT64_C(1) << index) - 1); before; before &= before - 1) depth++;
  return depth;
}

/* Leaves out the drafts that a window hides from a query of this depth: all but the last `window` up to it. */
static uint64_t windowed(uint64_t mask, int32_t depth, int32_t window) {
  for (int32_t hidden = depth - window + 1; hidden > 0; hidden--) mask &= mask - 1;
  return mask;
}

bny_attention_sight bny_attention_sight_of(const bny_attention_desc *desc, int32_t sequence, int32_t token) {
  const banyan_queries *queries = &desc->queries;
  int32_t index = token - bny_attention_queries(desc, sequence).first;
  uint64_t mask = queries->tree_mask ? queries->tree_mask[token] : 0;
  int32_t depth = queries->tree_mask ? depth_of(mask, index) : index;
  int64_t start = queries->query_start[sequence], own = start + depth;
  int64_t lowest = queries->window > 0 ? own - queries->window + 1 : 0;
  bny_attention_sight sight = {.end = bny_attention_keys_below(desc, sequence, queries->tree_mask ? start : own + 1)};
  sight.first = bny_attention_keys_below(desc, sequence, lowest);
  if (sight.first > sight.end) sight.first = sight.end;
  sight.tree_first = sight.end;
  if (queries->window > 0) mask = windowed(mask, depth, queries->window);
  sight.tree_bits = tree_bits(desc, sequence, mask, &sight);
  return sight;
}

static int32_t clamp(int32_t value, int32_t most) { return value < 0 ? 0 : value < most ? value : most; }

bny_attention_sight bny_attention_part_sight(bny_attention_sight sight, int32_t first, int32_t keys) {
  int32_t skipped = first > sight.tree_first ? first - sight.tree_first : 0;
  bny_attention_sight part = {.first = clamp(sight.first - first, keys),
                              .end = clamp(sight.end - first, keys),
                              .tree_first = clamp(sight.tree_first - first, keys)};
  int32_t left = keys - part.tree_first;
  part.tree_bits = skipped < TREE_BITS ? sight.tree_bits >> skipped : 0;
  if (sight.tree_first - first > keys) part.tree_bits = 0;
  if (left < TREE_BITS) part.tree_bits &= (UINT64_C(1) << left) - 1;
  return part;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* If values are part of keys, they are read with them. */
static uint64_t part_key_bytes(const bny_attention_desc *desc, const banyan_kv_part *part) {
  int64_t value_dim = desc->value_dim, row = desc->head_dim + value_dim;
  bool is_latent = part->v == part->k && part->v_token_stride == part->k_token_stride &&
                   (part->v_head_stride == part->k_head_stride || desc->kv_heads == 1) &&
                   (part->v_batch_stride == part->k_batch_stride || (desc->batch == 1 && !part->pages.table));
  if (is_latent) row = value_dim > desc->head_dim ? value_dim : desc->head_dim;
  if (part->rows != BANYAN_KV_ROWS_PLAIN) row = BNY_FLASHMLA_BYTES;
  return (uint64_t)row * bny_dtype_bytes(part->dtype) + (part->scales.token_stride != 0 ? 2 * sizeof(float) : 0);
}

uint64_t bny_attention_key_bytes(const bny_attention_desc *desc) {
  uint64_t most = 0;
  for (int32_t i = 0; i < desc->memories; i++) {
    uint64_t bytes = part_key_bytes(desc, bny_attention_part(desc, i));
    most = bytes > most ? bytes : most;
  }
  return most;
}

uint64_t bny_attention_bytes(const bny_attention_desc *desc) {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < desc->memories; i++) {
    const banyan_kv_part *part = bny_attention_part(desc, i);
    int64_t keys = 0;
    for (int32_t b = 0; b < desc->batch && desc->tokens > 0; b++) keys += bny_attention_keys(part, b);
    bytes += (uint64_t)(keys * desc->kv_heads) * part_key_bytes(desc, part);
  }
  return bytes;
}
