/* SPDX-License-Identifier: Apache-2.0
 * A checked rule of ownership, and the turns in which ranks get blocks by weight. A round has as many blocks as the
 * weights add up to, after division by their common divisor. After any number of blocks, each rank is within one block
 * of its share. */
#pragma once

#include "banyan.h"

typedef struct bny_turns {
  int32_t nranks;
  const int32_t *weights; /* NULL: equal */
  int64_t divisor;        /* greatest common divisor of all weights */
  int64_t total;          /* sum of the divided weights: the blocks of a round */
} bny_turns;

static inline int64_t bny_turns_weight(const bny_turns *turns, int32_t rank) {
  return turns->weights ? turns->weights[rank] / turns->divisor : 1;
}

/* Write, within one round: the number of blocks that `rank` gets in the first `steps` steps; the step in which it gets
 * block `index`; and the rank that gets the block of a step, with its number of earlier blocks. Each can return
 * BANYAN_ERR_MEMORY. */
banyan_status bny_turns_before(const bny_turns *turns, int32_t rank, int64_t steps, int64_t *count);
banyan_status bny_turns_step(const bny_turns *turns, int32_t rank, int64_t index, int64_t *step);
banyan_status bny_turns_owner(const bny_turns *turns, int64_t step, int32_t *rank, int64_t *before);

/* Writes the steps of all blocks that `rank` has in a round, as many as its weight. */
banyan_status bny_turns_steps(const bny_turns *turns, int32_t rank, int32_t *steps);

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

typedef struct bny_shares {
  banyan_ownership rule; /* block is at least 1 */
  bny_turns turns;
  int64_t blocks; /* RANGES: blocks of the longest sequence */
} bny_shares;

/* RANGES: the blocks [first, end) of a rank. */
typedef struct bny_span {
  int64_t first, end;
} bny_span;

banyan_status bny_ownership_read(const char *where, const banyan_ownership *given, bny_shares *out);
banyan_status bny_ownership_check_length(const char *where, const char *what, const bny_shares *s, int64_t value,
                                         int64_t last);
bny_span bny_ownership_span(const bny_shares *s, int32_t rank);

/* Writes the owner of a block, and the position of the block's first token. */
banyan_status bny_ownership_owner(const bny_shares *s, int64_t block, int32_t *rank, int64_t *place);
