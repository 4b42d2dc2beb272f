/* SPDX-License-Identifier: Apache-2.0
 * The query tokens of a call of attention, its keys, and which keys a query sees. It converts banyan_queries and page
 * lists to numbers of tokens and keys. All of it assumes a checked description. */
#pragma once

#include "attention/call.h"

/* Returns the address of an element; NULL if there is no memory, as where no key is read. */
static inline void *bny_attention_moved(const void *base, int64_t elements, banyan_dtype dtype) {
  return base ? (char *)(uintptr_t)base + elements * (int64_t)bny_dtype_bytes(dtype) : NULL;
}

/* The query tokens [first, first + count) of a sequence. */
typedef struct bny_query_range {
  int32_t first, count;
} bny_query_range;

static inline bny_query_range bny_attention_queries(const bny_attention_desc *desc, int32_t sequence) {
  const int32_t *loc = desc->queries.query_start_loc;
  return loc ? (bny_query_range){loc[sequence], loc[sequence + 1] - loc[sequence]} : (bny_query_range){sequence, 1};
}

/* Returns a memory of keys: a part, or desc->kv if there are none. */
static inline const banyan_kv_part *bny_attention_part(const bny_attention_desc *desc, int32_t part) {
  return desc->parts ? &desc->parts[part] : &desc->kv;
}

/* Returns the keys that a sequence has in a part. Those of the shard are in desc->kv. */
int32_t bny_attention_keys(const banyan_kv_part *part, int32_t sequence);

/* Returns how many of the sequence's keys in this shard have positions below `position`. */
int32_t bny_attention_keys_below(const bny_attention_desc *desc, int32_t sequence, int64_t position);

/* Returns the position of a key of the sequence in this shard. */
int64_t bny_attention_position(const bny_attention_desc *desc, int32_t sequence, int32_t key);

/* Returns the pages of a sequence; NULL: keys are not paged. */
static inline const int32_t *bny_attention_pages(const banyan_kv_part *part, int32_t sequence) {
  const banyan_pages *pages = &part->pages;
  if (!pages->table) return NULL;
  return pages->table + (pages->indptr ? pages->indptr[sequence] : sequence * pages->table_stride);
}

/* Returns the mask of a sequence's keys in this shard; NULL: all count. */
static inline const uint8_t *bny_attention_mask(const bny_attention_desc *desc, int32_t sequence) {
  return desc->queries.key_mask ? desc->queries.key_mask + sequence * desc->queries.key_mask_stride : NULL;
}

/* Returns the bounds of the pages in desc->kv. */
static inline bny_bounds bny_attention_bounds(const bny_attention_desc *desc) {
  return (bny_bounds){&desc->prune,   &desc->kv,       desc->kv_heads,
                      desc->head_dim, desc->value_dim, desc->kv.pages.table ? desc->kv.pages.keys : desc->prune.keys};
}

/* Returns the same for a part, which has the `keys` keys of the shard from `first` on. */
bny_attention_sight bny_attention_part_sight(bny_attention_sight sight, int32_t first, int32_t keys);

/* Returns which of the sequence's keys in this shard are seen by query token `token` of the call, a token of
 * `sequence`. */
bny_attention_sight bny_attention_sight_of(const bny_attention_desc *desc, int32_t sequence, int32_t token);
