/* SPDX-License-Identifier: Apache-2.0
 * The additional parts of general kernels: several query tokens per sequence, masks, capped logits, sinks, page lists
 * with pages of any size, and scales. General kernels are the templates of the lean kernels with these parts.
 *
 * Rows. An item has up to 16 (or 32) rows of a sequence and KV head. Row r of a sequence is query token r / group and
 * head r % group. Query tokens after the last sequence and before the first one form two more sequences, which have no
 * keys.
 *
 * Positions increase with the keys of a shard, even if blocks interleave over ranks. A bound of positions is therefore
 * a bound of keys. A row sees keys [low, high), and key high + j if bit j of `bits` is set. Keys that no row of a
 * sequence sees are not read. A tile that all rows see takes no mask. */
#pragma once

#include "cuda/decode_fragment.cuh"
#include "cuda/decode_walk.cuh"
#include "cuda/valid.h"

/* ---- keys of a sequence ------------------------------------------------------------------------------------------ */

BNY_DEVICE int32_t bny_general_clamp(int64_t value, int32_t low, int32_t high) {
  return value < low ? low : value > high ? high : (int32_t)value;
}

/* Returns how many of a shard's `keys` keys lie below a position. The shard's first key lies at `start`. */
BNY_DEVICE uint32_t bny_general_below(const bny_decode_general &general, int32_t start, int64_t position,
                                      uint32_t keys) {
  const int64_t wide = position - start;
  if (wide <= 0) return 0;
  uint32_t count = wide < INT32_MAX ? (uint32_t)wide : (uint32_t)INT32_MAX;
  if (general.key_block > 0) {
    const uint32_t blocks = count / (uint32_t)general.key_stride, rest = count - blocks * (uint32_t)general.key_stride;
    const uint32_t block = (uint32_t)general.key_block;
    count = blocks * block + (rest < block ? rest : block);
  }
  return count < keys ? count : keys;
}

BNY_DEVICE int32_t bny_general_position(const bny_decode_general &general, int32_t start, uint32_t key) {
  if (general.key_block == 0) return start + (int32_t)key;
  const uint32_t block = key / (uint32_t)general.key_block;
  return start + (int32_t)(block * (uint32_t)general.key_stride + key - block * (uint32_t)general.key_block);
}

/* Returns the number of a sequence's keys in this shard. If the length is impossible, it is cut and *wrong is set. */
BNY_DEVICE uint32_t bny_general_length(const bny_decode_call &call, uint32_t sequence, bool *wrong) {
  const bny_decode_general &general = call.general;
  int64_t given, most = call.keys_max;
  if (general.page_indptr) {
    const int64_t pages = (int64_t)general.page_indptr[sequence + 1] - general.page_indptr[sequence];
    const int64_t room = pages > 0 ? pages * general.page_keys : 0;
    if (room < most) most = room;
    given = !general.last_page_len ? call.seq_lens[sequence]
            : pages > 0            ? room - general.page_keys + general.last_page_len[sequence]
                                   : 0;
  } else {
    given = call.seq_lens[sequence];
  }
  const int32_t keys = bny_general_clamp(given, 0, (int32_t)most);
  *wrong = given != keys;
  return (uint32_t)keys;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

/* The query tokens of a sequence, and the keys that any of them sees. */
struct bny_general_span {
  uint32_t first_token, tokens;
  uint32_t first_key, keys; /* keys [first_key, keys); first_key begins a key tile */
  uint32_t tiles;           /* tiles of rows */
  uint32_t units;           /* units of all items */
  bool wrong;
};

struct bny_general_walk : bny_decode_walk {
  uint32_t tiles, first_key, first_token, tokens;
};

struct bny_general_item : bny_decode_item {
  uint32_t first_key, first_token;
};

BNY_DEVICE uint32_t bny_decode_first_key(const bny_decode_item &) { return 0; }
BNY_DEVICE uint32_t bny_decode_first_key(const bny_general_item &item) { return item.first_key; }

/* Returns the number of sequences. Without query_start_loc, each sequence has one token. */
BNY_DEVICE uint32_t bny_general_sequences(const bny_decode_call &call, uint32_t run_tokens) {
  return call.general.query_start_loc ? (uint32_t)call.batch + 2 : run_tokens;
}

BNY_DEVICE bool bny_general_attends(const bny_decode_call &call, const bny_general_span &span) {
  uint32_t token = 0;
  BNY_ROLLED while (token < span.tokens && !bny_decode_attends(call, span.first_token + token)) token++;
  return token < span.tokens;
}

/* Narrows the keys of a sequence to those that its tokens see. */
BNY_DEVICE void bny_general_narrow(bny_general_span *span, const bny_decode_general &general, uint32_t sequence) {
  if (!general.query_start) return;
  const int64_t position = general.query_start[sequence];
  const int32_t start = general.key_start ? general.key_start[sequence] : 0;
  const uint32_t keys = span->keys;
  span->keys = bny_general_below(general, start, position + (general.tree_mask ? 64 : span->tokens), keys);
  if (general.window > 0)
    span->first_key = bny_general_below(general, start, position - general.window + 1, span->keys) /
                      BNY_DECODE_TILE_KEYS * BNY_DECODE_TILE_KEYS;
}

template <int tile_rows>
BNY_DEVICE bny_general_span bny_general_span_of(const bny_decode_call &call, uint32_t run_tokens, uint32_t sequence) {
  const bny_decode_general &general = call.general;
  bny_general_span span = {sequence, 1, 0, 0, 0, 0, false};
  if (sequence >= bny_general_sequences(call, run_tokens)) return {0, 0, 0, 0, 0, 0, false};
  const bool has_keys = sequence < (uint32_t)call.batch;
  if (general.query_start_loc) {
    const int32_t tokens = (int32_t)run_tokens;
    const bool is_before = sequence > (uint32_t)call.batch;
    const int32_t first = is_before ? 0 : bny_general_clamp(general.query_start_loc[sequence], 0, tokens);
    const int32_t end = is_before  ? bny_general_clamp(general.query_start_loc[0], 0, tokens)
                        : has_keys ? bny_general_clamp(general.query_start_loc[sequence + 1], first, tokens)
                                   : tokens;
    span.first_token = (uint32_t)first;
    span.tokens = (uint32_t)(end - first);
  }
  if (has_keys) {
    span.keys = bny_general_length(call, sequence, &span.wrong);
    if (bny_general_attends(call, span))
      bny_general_narrow(&span, general, sequence);
    else
      span.keys = 0;
  }
  span.tiles = (span.tokens * (uint32_t)call.group + tile_rows - 1) / tile_rows;
  const uint32_t key_tiles = bny_decode_key_tiles((int32_t)(span.keys - span.first_key));
  span.units = (key_tiles + call.division.item_cost) * (uint32_t)call.kv_heads * span.tiles;
  return span;
}

BNY_DEVICE void bny_general_walk_set(bny_general_walk *walk, const bny_general_span &span) {
  walk->keys = span.keys;
  walk->key_tiles = bny_decode_key_tiles((int32_t)(span.keys - span.first_key));
  walk->tiles = span.tiles;
  walk->first_key = span.first_key;
  walk->first_token = span.first_token;
  walk->tokens = span.tokens;
}

template <int tile_rows> struct bny_general_spans {
  const bny_decode_call &call;
  uint32_t run_tokens, count;

  BNY_DEVICE_METHOD bny_general_span of(uint32_t sequence) const {
    return bny_general_span_of<tile_rows>(call, run_tokens, sequence);
  }
};

BNY_DEVICE bny_general_span bny_decode_span_in(const bny_general_span &span, int lane) {
  return {bny_shuffle(span.first_token, lane),
          bny_shuffle(span.tokens, lane),
          bny_shuffle(span.first_key, lane),
          bny_shuffle(span.keys, lane),
          bny_shuffle(span.tiles, lane),
          0,
          false};
}

template <int tile_rows>
BNY_DEVICE bny_general_walk bny_general_walk_begin(const bny_decode_call &call, const bny_device_group *group) {
  bny_general_walk walk = {};
  const uint32_t run_tokens = bny_decode_run_tokens(call, call.general.tokens);
  const bny_general_spans<tile_rows> spans = {call, run_tokens, bny_general_sequences(call, run_tokens)};
  bny_general_span span;
  if (bny_block() == 0 && bny_warp() == 0 && call.general.query_start_loc && group->nranks > 0)
    bny_valid_check_starts(group, call.general.query_start_loc, call.batch, (int32_t)run_tokens);
  if (!bny_decode_walk_seek(&walk, spans, group, &span)) return walk;
  bny_general_walk_set(&walk, span);
  bny_decode_walk_item_of_share(&walk, call.division);
  return walk;
}

template <int tile_rows> BNY_DEVICE void bny_general_walk_next(bny_general_walk *walk, const bny_decode_call &call) {
  walk->start += walk->key_tiles + call.division.item_cost;
  if (++walk->index < (uint32_t)call.kv_heads * walk->tiles) return;
  walk->index = 0;
  const uint32_t run_tokens = bny_decode_run_tokens(call, call.general.tokens);
  while (++walk->sequence < bny_general_sequences(call, run_tokens)) {
    bny_general_walk_set(walk, bny_general_span_of<tile_rows>(call, run_tokens, walk->sequence));
    if (walk->tiles > 0) return;
  }
  walk->sequence = BNY_DECODE_END;
}

/* Sets the current item. Returns false at the end of the CTA group's share. */
BNY_DEVICE bool bny_decode_walk_item(const bny_general_walk &walk, const bny_decode_call &call, int tile_rows,
                                     bny_general_item *item) {
  if (walk.sequence == BNY_DECODE_END || walk.start >= (walk.team + 1) * walk.team_units) return false;
  item->sequence = walk.sequence;
  item->kv_head = bny_decode_divide(walk.index, walk.tiles);
  item->tile = walk.index - item->kv_head * walk.tiles;
  const uint32_t left = walk.tokens * (uint32_t)call.group - item->tile * (uint32_t)tile_rows;
  item->rows = left < (uint32_t)tile_rows ? left : (uint32_t)tile_rows;
  item->keys = walk.keys;
  item->first_key = walk.first_key;
  item->first_token = walk.first_token;
  item->piece = bny_decode_piece_range(walk.start, walk.key_tiles, walk.team, walk.team_units);
  return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct bny_general_row {
  uint32_t token; /* index in the sequence */
  uint32_t head;
};

BNY_DEVICE bny_general_row bny_general_row_of(const bny_decode_call &call, const bny_general_item &item, int tile_rows,
                                              uint32_t row) {
  const uint32_t index = item.tile * (uint32_t)tile_rows + row, token = bny_decode_divide(index, (uint32_t)call.group);
  return {token, item.kv_head * (uint32_t)call.group + index - token * (uint32_t)call.group};
}

/* Returns whether the row of q is read. Rows of masked tokens are not read. */
BNY_DEVICE bool bny_general_reads(const bny_decode_call &call, const bny_general_item &item, int tile_rows,
                                  uint32_t row) {
  return row < bny_decode_query_rows(item) &&
         bny_decode_attends(call, item.first_token + bny_general_row_of(call, item, tile_rows, row).token);
}

/* Returns the address of a byte in a row of q, which may have two parts. */
BNY_DEVICE const unsigned char *bny_general_query_at(const bny_decode_call &call, const bny_general_item &item,
                                                     int tile_rows, uint32_t row, int32_t byte) {
  const bny_decode_general &general = call.general;
  const bny_general_row at = bny_general_row_of(call, item, tile_rows, row);
  const int64_t token = item.first_token + at.token;
  if (byte < general.nope_bytes)
    return (const unsigned char *)call.q + token * call.q_batch_stride + at.head * call.q_head_stride + byte;
  return (const unsigned char *)general.q_rope + token * general.q_rope_batch_stride +
         at.head * general.q_rope_head_stride + (byte - general.nope_bytes);
}

/* The keys that an item's rows see, and the scale of its logits, in shared memory. */
template <int rows> struct bny_general_rows {
  uint64_t bits[rows];
  uint32_t low[rows], high[rows];
  uint32_t clear_first, clear_end; /* the keys that all rows see */
  float scale;                     /* factor from the tensor cores' logits to base 2; 1 if the logits are capped */
  float cap, cap_scale;            /* t = cap tanh(cap_scale s / (2 log2 e)); 0: none */
};

/* Turns bits of positions into bits of keys, where bit i is key first + i. */
BNY_DEVICE uint64_t bny_general_bits(const bny_decode_general &general, int32_t start, int32_t position, uint32_t first,
                                     uint64_t mask) {
  uint64_t bits = 0;
  BNY_ROLLED for (uint32_t i = 0; i < 64; i++) {
    const int32_t place = bny_general_position(general, start, first + i) - position;
    if (place >= 64) break;
    if (place >= 0) bits |= (mask >> place & 1) << i;
  }
  return bits;
}

/* Returns the depth of a draft token: how many earlier drafts of its sequence it sees. */
BNY_DEVICE int32_t bny_general_depth(uint64_t mask, uint32_t token) {
  int32_t depth = 0;
  BNY_ROLLED for (uint64_t before = mask & (((uint64_t)1 << (token & 63)) - 1); before; before &= before - 1) depth++;
  return depth;
}

/* Called by all threads of a block. The caller then syncs the block. */
template <int rows>
BNY_DEVICE void bny_general_rows_make(bny_general_rows<rows> *made, const bny_decode_call &call,
                                      const bny_general_item &item) {
  const bny_decode_general &general = call.general;
  const uint32_t row = bny_thread();
  if (row == 0) {
    const float scale = general.k_scale
                            ? bny_mul(call.scale_log2, general.k_scale[item.kv_head * general.kv_scale_stride])
                            : call.scale_log2;
    made->cap = general.soft_cap_log2;
    made->cap_scale = general.soft_cap_log2 > 0 ? 2 * (float)BNY_LOG2_E * scale / general.soft_cap_log2 : 0;
    made->scale = general.soft_cap_log2 > 0 ? 1 : scale;
  }
  const bool is_left_out = row < item.rows && !bny_general_reads(call, item, rows, row);
  const uint32_t left_out = bny_warp_ballot(is_left_out); /* the first warp holds all rows */
  if (row >= (uint32_t)rows) return;
  uint32_t low = 0, high = is_left_out ? 0 : ~0u;
  uint64_t bits = 0;
  if (row < item.rows && !is_left_out && general.query_start) {
    const uint32_t token = bny_general_row_of(call, item, rows, row).token;
    const int32_t first = general.query_start[item.sequence];
    const int32_t start = general.key_start ? general.key_start[item.sequence] : 0;
    uint64_t mask = general.tree_mask ? general.tree_mask[item.first_token + token] : 0;
    const int32_t depth = general.tree_mask ? bny_general_depth(mask, token) : (int32_t)token;
    high = bny_general_below(general, start, general.tree_mask ? first : (int64_t)first + token + 1, item.keys);
    if (general.window > 0) {
      low = bny_general_below(general, start, (int64_t)first + depth - general.window + 1, item.keys);
      BNY_ROLLED for (int32_t hidden = depth - general.window + 1; hidden > 0; hidden--) mask &= mask - 1;
    }
    if (general.tree_mask) bits = bny_general_bits(general, start, first, high, mask);
  }
  made->low[row] = low;
  made->high[row] = high;
  made->bits[row] = bits;
  /* Consecutive tokens bound the keys that all rows see: the first token has the lowest end, and the last has the
   * highest start. Drafts of a tree are not consecutive, so their windows are checked for all keys. */
  if (row == 0) made->clear_end = left_out || (general.tree_mask && general.window > 0) ? 0 : high;
  if (row + 1 == item.rows) made->clear_first = low;
}

/* Applies the cap and the mask of rows first_row .. first_row + 15 to a tile's logits. The tile begins at key
 * `first`. */
template <int rows, int classes>
BNY_DEVICE void bny_general_logits(bny_logits<classes> *logits, const bny_general_rows<rows> &all, uint32_t first_row,
                                   uint32_t first) {
  if (all.cap > 0) {
    const float cap = all.cap, scale = all.cap_scale;
    BNY_UNROLL for (int i = 0; i < 4 * classes; i++) {
      float &s = logits->s[i / 4][i % 4];
      s = fmaf(-2 * cap, 1 / (bny_exp2_fast(bny_mul(s, scale)) + 1), cap);
    }
  }
  if (first >= all.clear_first && first + 8 * classes <= all.clear_end) return;
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    const uint32_t at = first_row + bny_lane() / 4 + 8 * row;
    const uint32_t low = all.low[at], high = all.high[at];
    const uint64_t bits = all.bits[at];
    BNY_UNROLL for (uint32_t i = 0; i < 2 * classes; i++) {
      const uint32_t key = first + (bny_lane() % 4 * 2 + i % 2) * classes + i / 2, beyond = key - high;
      const bool seen = key >= low && (key < high || (beyond < 64 && (bits >> beyond & 1) != 0));
      if (!seen) logits->s[i / 2][2 * row + i % 2] = -BNY_INFINITY_F;
    }
  }
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* The keys of an item. Rows see only keys [begin, count). Other keys are not read, because their pages may be freed. */
struct bny_general_keys : bny_decode_keys {
  uint32_t begin;
};

BNY_DEVICE const int32_t *bny_general_pages(const bny_decode_call &call, uint32_t sequence) {
  if (!call.page_table) return nullptr;
  return call.page_table +
         (call.general.page_indptr ? (int64_t)call.general.page_indptr[sequence] : sequence * call.page_table_stride);
}

BNY_DEVICE uint32_t bny_general_page_of(const bny_decode_general &general, uint32_t key) {
  return (uint32_t)((uint64_t)key * general.page_magic >> general.page_magic_shift);
}

BNY_DEVICE bny_general_keys bny_decode_keys_of_item(const bny_decode_call &call, const bny_general_item &item) {
  const bny_decode_general &general = call.general;
  bny_general_keys keys = {};
  keys.pages = item.keys > 0 ? bny_general_pages(call, item.sequence) : nullptr;
  keys.sequence = item.sequence;
  keys.kv_head = item.kv_head;
  keys.count = item.keys;
  keys.page_end = call.pages;
  if (item.keys > 0 && general.query_start && general.window > 0)
    keys.begin = bny_general_below(general, general.key_start ? general.key_start[item.sequence] : 0,
                                   (int64_t)general.query_start[item.sequence] - general.window + 1, item.keys);
  return keys;
}

/* Copies rows of `row_bytes` of keys first .. first + rows - 1 to a tile, where row r lies at place(r). Keys that no
 * row sees become zero. Warp `warp` of `warps` copies its part, and the caller commits. Each lane finds the address of
 * one key and shares it with the others. Returns true if some keys are lost. */
template <int row_bytes, int rows, int warps, class Place>
BNY_DEVICE bool bny_general_load(unsigned char *tile, const bny_decode_call &call, const bny_decode_cache &cache,
                                 const bny_general_keys &keys, uint32_t first, uint32_t end, uint32_t warp,
                                 const Place &place) {
  enum : int { CHUNKS = row_bytes / 16, ALL = rows * CHUNKS, STEP = warps * BNY_WARP_LANES };
  const int64_t nothing = INT64_MIN;
  const uint32_t key = first + bny_lane() % rows;
  const bool wanted = key >= keys.begin && key < end;
  uint32_t page = keys.sequence, within = key;
  if (wanted && keys.pages) {
    const uint32_t index = bny_general_page_of(call.general, key);
    within = key - index * call.general.page_keys;
    page = (uint32_t)keys.pages[index];
  }
  const bool lost = wanted && page >= keys.page_end;
  int64_t at = nothing;
  if (wanted && !lost) at = page * cache.page_stride + within * cache.token_stride + keys.kv_head * cache.head_stride;
  BNY_ROLLED for (int begin = 0; begin < ALL; begin += 4 * STEP) {
    BNY_UNROLL for (int step = 0; step < 4; step++) {
      const int chunk = begin + step * STEP + (int)(warp * BNY_WARP_LANES + bny_lane());
      const int row = chunk / CHUNKS, column = chunk % CHUNKS * 16;
      const int64_t from = bny_shuffle(at, row % rows);
      const bool there = from != nothing;
      if (ALL % (4 * STEP) == 0 || chunk < ALL)
        bny_copy_async_16(tile + place(row) + column, (const unsigned char *)cache.base + (there ? from + column : 0),
                          there);
    }
  }
  return bny_warp_any(lost);
}

/* Return the offset of a row: in a tile of 16-bit elements, and in a tile before its conversion. */
template <int dim, int rows> struct bny_general_tiled {
  BNY_DEVICE_METHOD uint32_t operator()(int row) const { return bny_tile_row<dim, rows>((uint32_t)row); }
};
template <int row_bytes> struct bny_general_flat {
  BNY_DEVICE_METHOD uint32_t operator()(int row) const { return (uint32_t)(row * row_bytes); }
};

/* Converts 16 elements of E4M3 to 16-bit elements, exactly. */
template <class Element> BNY_DEVICE void bny_general_convert(unsigned char *to, const unsigned char *from) {
  const bny_quad packed = bny_load_quad(from);
  bny_quad wide[2];
  BNY_UNROLL for (int i = 0; i < 8; i++) {
    wide[i / 4].word[i % 4] = Element::of_e4m3(packed.word[i / 2] >> (i % 2 * 16));
  }
  bny_store_quad(to, wide[0]);
  bny_store_quad(to + 16, wide[1]);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Reports a lost page like bny_decode_report_lost(), for page lists. */
BNY_DEVICE_COLD void bny_general_report_lost(const bny_decode_call &call, const bny_device_group *group,
                                             uint32_t sequence, uint32_t first, uint32_t keys) {
  if (group->nranks == 0) return;
  bny_decode_report_pages(call, group, sequence, bny_general_pages(call, sequence),
                          bny_general_page_of(call.general, first), bny_general_page_of(call.general, keys - 1) + 1);
}

BNY_DEVICE void bny_decode_item_lost(const bny_decode_call &call, const bny_device_group *group,
                                     const bny_general_item &item) {
  bny_general_report_lost(call, group, item.sequence, item.first_key, item.keys);
}

/* Adds a sink to a row: a logit without a value. */
template <int dim> BNY_DEVICE void bny_general_sink(bny_decode_row<dim> *row, float sink) {
  const float t = bny_mul(sink, (float)BNY_LOG2_E), m = fminf(fmaxf(row->m, ceilf(t) + 0.0f), FLT_MAX);
  if (!(t > -BNY_INFINITY_F)) return;
  const float factor = bny_exp2_whole(row->m - m);
  row->d = bny_add(bny_mul(row->d, factor), bny_exp2_fast(t - m));
  row->m = m;
  BNY_UNROLL for (int i = 0; i < 4 * bny_decode_row<dim>::QUADS; i++) row->n[i / 4][i % 4] *= factor;
}

template <int dim, class Epilogue>
BNY_DEVICE void bny_decode_emit(const bny_decode_call &call, const bny_general_item &item, uint32_t row_in_item,
                                int item_rows, bny_decode_row<dim> *row, Epilogue &epilogue) {
  const bny_decode_general &general = call.general;
  const bny_general_row at = bny_general_row_of(call, item, item_rows, row_in_item);
  if (general.v_scale) {
    const float scale = general.v_scale[item.kv_head * general.kv_scale_stride];
    BNY_UNROLL for (int i = 0; i < 4 * bny_decode_row<dim>::QUADS; i++) row->n[i / 4][i % 4] *= scale;
  }
  if (general.sinks && item.sequence < (uint32_t)call.batch) bny_general_sink(row, general.sinks[at.head]);
  bny_decode_row_settle(call, row);
  epilogue.row(item.first_token + at.token, at.head, *row);
}

/* ---- which parts a kernel has ------------------------------------------------------------------------------------ */

template <bny_decode_rows kv> struct bny_decode_kind {
  using walk = bny_general_walk;
  using item = bny_general_item;
  template <int count> using rows = bny_general_rows<count>;

  template <int tile_rows> BNY_DEVICE walk begin(const bny_decode_call &call, const bny_device_group *group) {
    return bny_general_walk_begin<tile_rows>(call, group);
  }
  template <int tile_rows> BNY_DEVICE void next(walk *self, const bny_decode_call &call) {
    bny_general_walk_next<tile_rows>(self, call);
  }
  template <int count> BNY_DEVICE const rows<count> &make_rows(const bny_decode_call &call, const item &one) {
    BNY_SHARED(rows<count>, made);
    bny_general_rows_make(&made, call, one);
    return made;
  }
  template <int count> BNY_DEVICE float scale(const bny_decode_call &, const rows<count> &all) { return all.scale; }
};

struct bny_lean_rows {};

template <> struct bny_decode_kind<BNY_ROWS_lean> {
  using walk = bny_decode_walk;
  using item = bny_decode_item;
  template <int> using rows = bny_lean_rows;

  template <int> BNY_DEVICE walk begin(const bny_decode_call &call, const bny_device_group *group) {
    return bny_decode_walk_begin(call, group);
  }
  template <int> BNY_DEVICE void next(walk *self, const bny_decode_call &call) { bny_decode_walk_next(self, call); }
  template <int> BNY_DEVICE bny_lean_rows make_rows(const bny_decode_call &, const item &) { return {}; }
  BNY_DEVICE float scale(const bny_decode_call &call, const bny_lean_rows &) { return call.scale_log2; }
};
