/* SPDX-License-Identifier: Apache-2.0
 * Partials for tests: memory in a random convention, and its merge by the oracle. It shares no code with the
 * library. */
#pragma once

#include "tests/support/oracle.h"
#include "tests/support/world.h"

/* The memory of one rank's partials. */
typedef struct sheet {
  banyan_partial partial;
  int32_t tokens, heads, value_dim;
  unsigned char *memory; /* contains values, lse and sum, with gaps */
  size_t bytes;
} sheet;

/* Kinds of inputs. */
typedef enum sheet_mood {
  SHEET_PLAIN,
  SHEET_HUGE,   /* logits of +-1e4 */
  SHEET_TINY,   /* denormal values and sums */
  SHEET_LONE,   /* only one rank has keys */
  SHEET_SPARSE, /* most rows are empty, some on all ranks; some ranks have no keys at all */
  SHEET_LARGE,  /* logits to 2^23 */
  SHEET_MASKED, /* finite logits that represent masks, such as -1e30 */
  SHEET_SUMS,   /* sums of 2^-90 to 2^90 */
  SHEET_VALUES, /* values of 2^-60 to 2^60, for which a wire of f16 is too narrow */
  SHEET_MOODS
} sheet_mood;

/* If true, one sheet of three has 8-bit values, mostly with scales. */
extern bool sheet_eight_bits;

/* Make memory in random conventions. Outputs hold a pattern everywhere. */
sheet sheet_input(world_random *random, sheet_mood mood, int32_t rank, int32_t nranks, int32_t tokens, int32_t heads,
                  int32_t value_dim);
sheet sheet_output(world_random *random, sheet_mood mood, int32_t tokens, int32_t heads, int32_t value_dim);
/* Makes a sheet of this convention, with random strides. */
sheet sheet_of(world_random *random, banyan_partial convention, int32_t tokens, int32_t heads, int32_t value_dim);
/* Makes a sheet of other rows with the convention of `like`. */
sheet sheet_output_like(const sheet *like, int32_t tokens, int32_t heads);

/* Writes rows into any sheet that has statistics. */
void sheet_fill(sheet *sheet, world_random *random, sheet_mood mood, int32_t rank, int32_t nranks);
sheet sheet_copy(const sheet *from);

/* Merges all ranks' sheets into [tokens * heads] rows. */
oracle_row *sheet_merge(const sheet *sheets, int32_t nranks);

/* Compares rows [token0, ...) x [head0, ...) of the reference with all rows of `out`, which were rounded to the wire
 * format so many times. At the first row that differs, it returns false and the reason. */
bool sheet_matches(const sheet *out, const oracle_row *reference, int32_t heads, int32_t token0, int32_t head0,
                   banyan_dtype wire, int32_t rounds, char *why, size_t bytes);

/* Returns true if row (at, ah) of a and row (bt, bh) of b, of the same convention, have the same bits. */
bool sheet_same_bits(const sheet *a, int32_t at, int32_t ah, const sheet *b, int32_t bt, int32_t bh);

/* Returns true if only the rows of an output were written. */
bool sheet_gaps_are_untouched(const sheet *out);

/* Finds the range of part `index` as banyan_split() documents, with independent code. */
void sheet_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number);

/* Finds the rows of a combine that a rank receives, as banyan_split() documents, with independent code. */
typedef struct sheet_part {
  int32_t token0, tokens, head0, heads;
} sheet_part;
sheet_part sheet_part_of(const banyan_combine_desc *desc, int32_t nranks, int32_t rank);
