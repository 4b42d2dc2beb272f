/* SPDX-License-Identifier: Apache-2.0
 * Attention that leaves out pages which cannot matter, with a certificate. The bounds of a page limit its logits, so
 * the mass of the pages that are left out is known without reading them.
 *
 * Each rank leaves out at most epsilon of the mass that it has read itself, so all ranks together leave out at most
 * epsilon of the whole, and nothing is exchanged before. With top_pages, ranks choose pages together before they read.
 * A certificate follows the rows: sums that a combine adds up as it adds up values. */
#pragma once

#include "attention.h"
#include "banyan.h"

/* The values of a row of the certificate, each relative to 2^m: a lower bound of the mass that was read, and bounds of
 * the mass that was left out, of the length of the row's numerator, and of the mass that was left out times the lengths
 * of its values. */
enum { BNY_CERTIFICATE_VALUES = 4 };

/* Rows of [tokens][heads]: d is 1, or 0 without keys. */
typedef struct bny_certificate {
  float *values, *m, *d;
} bny_certificate;

/* The pages that one row block left out, by row. */
typedef struct bny_pruned {
  double mass[BNY_ATTENTION_HEADS_MAX];   /* bound of the mass, log2; -inf: none */
  double moment[BNY_ATTENTION_HEADS_MAX]; /* bound of its sum of mass times length, log2 */
  double error[BNY_ATTENTION_HEADS_MAX];  /* the factor by which the mass that was read may be too large, log2 */
  uint64_t segments;                      /* with epsilon 0: one bit for each segment that need not be read */
} bny_pruned;

static inline bool bny_prune_is_wanted(const banyan_prune *prune) {
  return prune->bounds || prune->epsilon != 0 || prune->top_pages != 0 || prune->error || prune->read ||
         prune->page_reads;
}

/* Returns true if pages with mass may be left out, so that there is something to certify. */
static inline bool bny_prune_is_lossy(const banyan_prune *prune) { return prune->epsilon > 0 || prune->top_pages > 0; }

/* The bounds of all pages of a shard, and the keys that they are of. */
typedef struct bny_bounds {
  const banyan_prune *prune;
  const banyan_kv_part *kv;
  int32_t kv_heads, head_dim, value_dim;
  int32_t page_keys;
} bny_bounds;

/* Returns the floats of bounds of a page and KV head. */
static inline int64_t bny_bounds_floats(const bny_bounds *bounds) {
  return 2 + bounds->page_keys * (2 + 2 * (((int64_t)bounds->head_dim + 7) / 8));
}

/* Returns how far row `index` of a block, (m, d, n), can be from that of all keys; or writes the values that a combine
 * needs. */
double bny_prune_error(const bny_pruned *pruned, int32_t index, float m, float d, const float *n, int32_t value_dim);
void bny_prune_certify(const bny_pruned *pruned, int32_t index, float m, float d, const float *n, int32_t value_dim,
                       const bny_certificate *to, int64_t row);

/* The error of a row, from its sum over ranks. */
float bny_prune_error_of(const float *values);

/* Updates the bounds of keys [first, keys) of a sequence, which has these pages; NULL: keys are not paged. */
void bny_bounds_update(const bny_bounds *of, int32_t sequence, const int32_t *pages, int32_t first, int32_t keys);
