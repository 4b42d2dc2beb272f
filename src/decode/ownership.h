/* SPDX-License-Identifier: Apache-2.0
 * A checked rule of ownership, for the files that answer questions about it. */
#ifndef BNY_DECODE_OWNERSHIP_H
#define BNY_DECODE_OWNERSHIP_H

#include "banyan.h"
#include "decode/deal.h"

typedef struct bny_shares {
  banyan_ownership rule; /* block is at least 1 */
  int64_t divisor;       /* greatest common divisor of all weights */
  int64_t total;         /* sum of the divided weights */
  int64_t blocks;        /* RANGES: blocks of the longest sequence */
} bny_shares;

/* RANGES: the blocks [first, end) of a rank. */
typedef struct bny_span {
  int64_t first, end;
} bny_span;

banyan_status bny_ownership_read(const char *where, const banyan_ownership *given, bny_shares *out);
banyan_status bny_ownership_check_length(const char *where, const char *what, const bny_shares *s, int64_t value,
                                         int64_t last);
bny_span bny_ownership_span(const bny_shares *s, int32_t rank);

/* Writes the owner of a block, and the place of the block's first token. */
banyan_status bny_ownership_owner(const bny_shares *s, int64_t block, int32_t *rank, int64_t *place);

#endif
