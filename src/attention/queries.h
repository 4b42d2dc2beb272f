/* SPDX-License-Identifier: Apache-2.0
 * The query tokens of a call of attention, its keys, and which keys a query sees. It converts banyan_queries and page
 * lists to numbers of tokens and keys. All of it assumes a checked description. */
#pragma once

#include "attention.h"
#include "banyan.h"
#include "op.h"

/* Returns the address of an element; NULL if there is no memory, as where no key is read. */
static inline void *bny_attention_moved(const void *base, int64_t elements, banyan_dtype dtype) {
  return base ? (char *)(uintptr_t)base + elements * (int64_t)bny_dtype_bytes(dtype) : NULL;
}

/* Returns the rows of q, in tokens: as many as the output has. */
static inline int32_t bny_attention_tokens(const banyan_attention_desc *desc) {
  return desc->queries ? desc->queries->tokens : desc->batch;
}

/* The query tokens [first, first + count) of a sequence. */
typedef struct bny_query_range {
  int32_t first, count;
} bny_query_range;

static inline bny_query_range bny_attention_queries(const banyan_attention_desc *desc, int32_t sequence) {
  const int32_t *loc = desc->queries ? desc->queries->query_start_loc : NULL;
  return loc ? (bny_query_range){loc[sequence], loc[sequence + 1] - loc[sequence]} : (bny_query_range){sequence, 1};
}

/* Returns the first token of the first sequence. Earlier tokens belong to no sequence. */
static inline int32_t bny_attention_first(const banyan_attention_desc *desc) {
  return desc->queries && desc->queries->query_start_loc ? desc->queries->query_start_loc[0] : 0;
}

/* Returns the first token after the last sequence. */
static inline int32_t bny_attention_padding(const banyan_attention_desc *desc) {
  const int32_t *loc = desc->queries ? desc->queries->query_start_loc : NULL;
  return loc ? loc[desc->batch] : desc->batch;
}

/* Returns a part of the keys. Without parts desc->kv is the only one. */
static inline int32_t bny_attention_parts(const banyan_attention_desc *desc) {
  return desc->parts ? (int32_t)desc->part_count : 1;
}

static inline const banyan_kv_part *bny_attention_part(const banyan_attention_desc *desc, int32_t part) {
  return desc->parts ? &desc->parts[part] : &desc->kv;
}

/* Returns the keys that a sequence has in a part. Those of the shard are in desc->kv. */
int32_t bny_attention_keys(const banyan_kv_part *part, int32_t sequence);

/* Returns how many of the sequence's keys in this shard have positions below `position`. */
int32_t bny_attention_keys_below(const banyan_attention_desc *desc, int32_t sequence, int64_t position);

/* Returns the position of a key of the sequence in this shard. */
int64_t bny_attention_position(const banyan_attention_desc *desc, int32_t sequence, int32_t key);

/* Returns the pages of a sequence; NULL: keys are not paged. */
static inline const int32_t *bny_attention_pages(const banyan_kv_part *part, int32_t sequence) {
  const banyan_pages *pages = &part->pages;
  if (!pages->table) return NULL;
  return pages->table + (pages->indptr ? pages->indptr[sequence] : sequence * pages->table_stride);
}

/* Returns the mask of a sequence's keys in this shard; NULL: all count. */
static inline const uint8_t *bny_attention_mask(const banyan_attention_desc *desc, int32_t sequence) {
  if (!desc->queries || !desc->queries->key_mask) return NULL;
  return desc->queries->key_mask + sequence * desc->queries->key_mask_stride;
}

/* Returns true if there are queries that do not see all keys. */
static inline bool bny_attention_hides_keys(const banyan_attention_desc *desc) {
  return desc->queries && desc->queries->query_start;
}

/* Returns the same for a part, which has the `keys` keys of the shard from `first` on. */
bny_attention_sight bny_attention_part_sight(bny_attention_sight sight, int32_t first, int32_t keys);

/* Returns which of the sequence's keys in this shard are seen by query token `token` of the call, a token of
 * `sequence`. */
bny_attention_sight bny_attention_sight_of(const banyan_attention_desc *desc, int32_t sequence, int32_t token);
