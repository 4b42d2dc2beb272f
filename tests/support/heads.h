/* SPDX-License-Identifier: Apache-2.0
 * Problems of all-gathers of heads: shapes that all ranks share, a layout for each rank, and the exact bytes that
 * memory must hold afterwards. */
#pragma once

#include "tests/support/world.h"

/* The layout of a tensor [tokens][heads][dim] in `bytes` of memory. Strides are in bytes. */
typedef struct heads_layout {
  size_t bytes, offset;
  int64_t token_stride, head_stride;
  bool said; /* strides are explicit; otherwise it is contiguous, and the call's strides are 0 */
} heads_layout;

typedef struct heads_problem {
  banyan_heads_desc desc; /* without `valid` and `stream` */
  int32_t counts[WORLD_RANKS_MAX];
  int32_t rank, nranks;
  int32_t first, number; /* heads of this rank */
  size_t element_bytes, row_bytes;
  heads_layout mine, all;
  bool in_place; /* `mine` is a part of `all` */
} heads_problem;

/* Makes the problem of `rank`. Ranks with the same seed get one shape, and their own layouts. */
void heads_make(heads_problem *made, uint64_t seed, int32_t rank, int32_t nranks, int32_t tokens_most);

/* Fill both memories for a run: `mine` with this rank's heads of `tokens`, and everything else with a pattern. With
 * in_place, the memory of `mine` is not used. */
void heads_fill(const heads_problem *of, int32_t tokens, int run, unsigned char *mine, unsigned char *all);

/* Returns true if `all` holds the heads of all ranks for `tokens`, and the pattern elsewhere. Otherwise writes why. */
bool heads_hold(const heads_problem *of, int32_t tokens, int run, const unsigned char *all, char *why, size_t bytes);

/* Returns the arguments of a call for memories at these addresses. */
const void *heads_mine(const heads_problem *of, const unsigned char *mine, const unsigned char *all);
void *heads_all(const heads_problem *of, unsigned char *all);
