/* SPDX-License-Identifier: Apache-2.0
 *
 * Partials of tests: memory in a random convention, and a merge in double precision that reads what banyan.h says such
 * memory means. Shares no code with the library. */
#ifndef BNY_TESTS_SHEET_H
#define BNY_TESTS_SHEET_H

#include "world.h"

/* Memory of a test: freed together; shared with processes on wish. */
typedef struct sheet_pool {
  bool shared;
  struct sheet_block *blocks;
} sheet_pool;

void *sheet_pool_take(sheet_pool *pool, size_t bytes); /* zeroed */
void sheet_pool_free(sheet_pool *pool);

/* The partials of one rank in memory. */
typedef struct sheet {
  banyan_partial partial;
  int32_t tokens, heads, value_dim;
  unsigned char *memory; /* values, lse and sum lie in it, with gaps */
  size_t bytes;
} sheet;

/* What inputs are like. */
typedef enum sheet_mood {
  SHEET_PLAIN,
  SHEET_HUGE,     /* logits of +-1e4 */
  SHEET_TINY,     /* values and sums that are denormal */
  SHEET_LONE,     /* one rank holds everything */
  SHEET_SPARSE,   /* most rows are empty, some on all ranks; some ranks have no keys at all */
  SHEET_MOODS
} sheet_mood;

/* Random conventions, with memory for them. Outputs hold a pattern everywhere. */
sheet sheet_input(sheet_pool *pool, world_random *random, sheet_mood mood, int32_t rank, int32_t nranks, int32_t tokens,
                  int32_t heads, int32_t value_dim);
sheet sheet_output(sheet_pool *pool, world_random *random, sheet_mood mood, int32_t tokens, int32_t heads,
                   int32_t value_dim);
/* The convention of `like`, for another range of rows. */
sheet sheet_output_like(sheet_pool *pool, const sheet *like, int32_t tokens, int32_t heads);

/* Writes rows into any sheet that has statistics. */
void sheet_fill(sheet *sheet, world_random *random, sheet_mood mood, int32_t rank, int32_t nranks);
/* The same, with memory of its own. */
sheet sheet_copy(sheet_pool *pool, const sheet *from);

/* A row merged over ranks in double precision. */
typedef struct sheet_row {
  bool empty;
  double lse;   /* natural */
  double scale; /* weighted mean of |o|_2 of the ranks: what errors are relative to */
  double peak;  /* largest |o|_2 of a rank */
  double values[];
} sheet_row;

/* [tokens * heads], each sheet_row_bytes() apart; from the sheets of all ranks. */
size_t sheet_row_bytes(int32_t value_dim);
void *sheet_merge(sheet_pool *pool, const sheet *sheets, int32_t nranks);

/* Bounds: `rounds` times a row goes through the wire format. */
typedef struct sheet_bounds {
  int32_t nranks;
  int32_t rounds;
  banyan_dtype wire;
} sheet_bounds;

/* Compares rows [token0, ...) x [head0, ...) of the reference with all of `out`. false, and why, at the first that differs. */
bool sheet_matches(const sheet *out, const void *reference, int32_t heads, int32_t token0, int32_t head0,
                   const sheet_bounds *bounds, char *why, size_t bytes);

/* True if row (at, ah) of a and row (bt, bh) of b, of like conventions, have the same bits. */
bool sheet_same_bits(const sheet *a, int32_t at, int32_t ah, const sheet *b, int32_t bt, int32_t bh);

/* True if nothing of an output was written but its rows. */
bool sheet_gaps_are_untouched(const sheet *out);

/* sum over r of count things dealt to parts: as banyan_split() documents, written anew. */
void sheet_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number);

#endif
