/* SPDX-License-Identifier: Apache-2.0
 * A checked rule of ownership. Under BLOCKS a round has as many blocks as the weights add up to, after division by
 * their common divisor. */
#pragma once

#include "banyan.h"

typedef struct bny_shares {
  banyan_ownership rule; /* block is at least 1 */
  int64_t divisor;       /* greatest common divisor of all weights */
  int64_t total;         /* sum of the divided weights: BLOCKS: the blocks of a round */
  int64_t blocks;        /* RANGES: blocks of the longest sequence */
} bny_shares;

static inline int64_t bny_ownership_weight(const bny_shares *s, int32_t rank) {
  return s->rule.weights ? s->rule.weights[rank] / s->divisor : 1;
}

/* RANGES: the blocks [first, end) of a rank. */
typedef struct bny_span {
  int64_t first, end;
} bny_span;

banyan_status bny_ownership_read(const char *where, const banyan_ownership *given, bny_shares *out);
banyan_status bny_ownership_check_length(const char *where, const char *what, const bny_shares *s, int64_t value,
                                         int64_t last);
bny_span bny_ownership_span(const bny_shares *s, int32_t rank);

/* Returns the owner of a block, and writes the position of the block's first token. */
int32_t bny_ownership_owner(const bny_shares *s, int64_t block, int64_t *position);
