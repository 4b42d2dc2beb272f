/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounds of pages: where the caller keeps them, and how elements are read for them. */
#ifndef BNY_DECODE_BOUNDS_H
#define BNY_DECODE_BOUNDS_H

#include "decode/prune.h"
#include "decode/queries.h"

static inline int32_t bny_bounds_keys(const banyan_attention_desc *desc) {
  return desc->pages.table ? desc->pages.keys : desc->prune.keys;
}

/* The bounds of a page and KV head: BNY_BOUNDS_REACH, the largest length that a product with a query meets;
 * BNY_BOUNDS_VALUE, the length of the longest value; then maxima and minima, or codes: the scale of each key, the
 * length of what codes lose of each key, and the codes as in bny_code_keys, with room for a multiple of 8 elements. */
enum { BNY_BOUNDS_REACH, BNY_BOUNDS_VALUE, BNY_BOUNDS_HEAD };

static inline int32_t bny_bounds_codes(int32_t head_dim) { return (head_dim + 7) / 8 * 8; }

/* Returns the bounds of page `page` of a sequence. */
static inline float *bny_bounds_at(const banyan_attention_desc *desc, int32_t sequence, int32_t page, int32_t kv_head) {
  const int32_t *pages = bny_decode_pages(desc, sequence);
  int64_t number = pages ? pages[page] : (int64_t)sequence * desc->prune.batch_pages + page;
  return desc->prune.bounds + (number * desc->kv_heads + kv_head) * bny_prune_floats(desc);
}

/* Converts elements to f32, times a scale, as kernels do. */
void bny_bounds_read(const void *from, banyan_dtype dtype, int32_t count, float scale, float *to);

#endif
