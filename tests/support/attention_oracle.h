/* SPDX-License-Identifier: Apache-2.0
 * Attention in double precision, computed only from the description of a call. It supports pages and page lists, parts,
 * several queries, trees, windows, masks, caps, sinks, q in two parts, scales and FlashMLA rows. It uses no code of the
 * library. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "banyan.h"
#include "tests/support/oracle.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ATTENTION_DIM_MAX = 576 };

/* The sums of one row over its visible keys, with p = exp(logit - max). */
typedef struct attention_row {
  double max, sum;                  /* sum 0: no key and no sink; NaN: a logit is NaN */
  double values[ATTENTION_DIM_MAX]; /* p v */
  double weight[ATTENTION_DIM_MAX]; /* p |v|, to which errors are proportional */
  double length;                    /* p times the length of v */
  double products;                  /* the largest sum of |scale q k| of a key */
} attention_row;

void attention_oracle(const banyan_attention_desc *desc, int32_t token, int32_t head, attention_row *row);

/* Returns true if query token `token` sees key `t` of sequence `b`. */
bool attention_oracle_sees(const banyan_attention_desc *desc, int32_t b, int32_t token, int32_t t);

/* Adds the keys of one more shard, and its sinks, to a row that was computed or cleared. */
void attention_oracle_clear(attention_row *row);
void attention_oracle_add(const banyan_attention_desc *desc, int32_t token, int32_t head, attention_row *row);

/* Returns how far a normalised row with lse in base e is from the reference, in units of `bound` of its weight; above 1
 * is wrong. */
double attention_row_error(const attention_row *row, int32_t value_dim, const float *values, float lse, double bound);

/* Returns true if a row with a certificate is right: its values are off by at most `error`, and its lse lacks at most
 * `missing`. The error of attention itself is added: `bound` of its weight and `least`, and half of it for the lse. */
bool attention_row_certified(const attention_row *row, int32_t value_dim, const float *values, float lse, float error,
                             double bound, double least, double missing);

/* Converts the row to the form that oracle_compare() expects. */
oracle_row attention_oracle_row(const attention_row *row, int32_t value_dim);

/* Describes contiguous memory: q [batch][heads][head_dim], k [batch][kv_heads][keys][head_dim], and v likewise. */
banyan_attention_desc attention_desc_of(int32_t batch, int32_t heads, int32_t kv_heads, int32_t keys, int32_t head_dim,
                                        int32_t value_dim, banyan_dtype q_dtype, banyan_dtype kv_dtype, const void *q,
                                        const void *k, const void *v, const int32_t *seq_lens);

/* Clears the fields of keys that only parts have. */
void attention_clear_keys(banyan_attention_desc *desc);

#ifdef __cplusplus
}
#endif
