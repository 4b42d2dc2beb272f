/* SPDX-License-Identifier: Apache-2.0
 * The case to plan: ranks and the levels between them, and a collective with its shape. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan/plan.h"
#include "locality/locality.h"
#include "tools/common/util.h"

enum { PLAN_RANKS_MAX = 16384, PLAN_TEXT_BYTES = 256 };

typedef struct plan_ranks {
  char title[PLAN_TEXT_BYTES];
  int32_t nranks;
  bny_levels *levels;
  bny_locality_notes notes; /* none without a topology */
  bny_locality *localities; /* by rank; NULL without a topology */
} plan_ranks;

/* Ranks come from a topology (a file, a description or this machine), or only from numbers. `here` means that the
 * topology is that of this machine, and BANYAN_COSTS applies. `sizes` is a text for bny_levels_parse(), or NULL. Ranks
 * share `cores` cores; 0: each has its own. */
bool plan_ranks_of(const bny_topo *topo, const bny_topo_levels *derived, const char *title, bool here,
                   plan_ranks *ranks, tool_error *error);
bool plan_ranks_load(const char *from, plan_ranks *ranks, tool_error *error);
bool plan_ranks_machine(plan_ranks *ranks, tool_error *error);
bool plan_ranks_plain(int32_t nranks, int32_t cores, const char *sizes, plan_ranks *ranks, tool_error *error);
void plan_ranks_release(plan_ranks *ranks);

/* Returns the name of a level's links: "nvlink", "network". Without a topology it is "memory" at level 0 and "-"
 * above. */
const char *plan_ranks_link(const plan_ranks *ranks, int32_t level);

typedef struct plan_shape {
  bny_collective collective;
  int32_t tokens, heads, value_dim; /* combine */
  banyan_dtype wire;
  banyan_scatter scatter;
  banyan_order order;
  size_t bytes;          /* gather, shift, broadcast: of each rank's message */
  int32_t root;          /* combine with ROOT, broadcast */
  int32_t distance;      /* shift */
  const char *algorithm; /* NULL: by predicted cost */
  size_t outbox_bytes;   /* 0: no limit */
} plan_shape;

/* Returns the bytes on the wire that one rank contributes; for heads, those of all ranks. */
size_t plan_shape_bytes(const plan_shape *shape);

/* Returns the same collective with at least this payload, in complete tokens, and with fewer heads if not all are
 * needed. */
plan_shape plan_shape_resized(const plan_shape *shape, size_t bytes);

/* "combine of 4 tokens x 32 heads x 128 values, f32, scatter none: 66,560 bytes per rank" */
void plan_shape_print(const plan_shape *shape, char text[PLAN_TEXT_BYTES]);

/* Returns the request for plans. */
bny_request plan_request_make(const plan_ranks *ranks, const plan_shape *shape);

/* Write "931,840", "6.5 KiB" or "12.3 us" to text[PLAN_NUMBER_BYTES] and return it. */
enum { PLAN_NUMBER_BYTES = 32 };
const char *plan_text_bytes(double bytes, char text[PLAN_NUMBER_BYTES]);
const char *plan_text_time(double ns, char text[PLAN_NUMBER_BYTES]);
