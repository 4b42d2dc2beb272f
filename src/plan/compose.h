/* SPDX-License-Identifier: Apache-2.0
 * The common part of algorithms over levels: requests for parts of a plan, and the cheapest flat algorithm for one
 * part. */
#pragma once

#include "plan/builder.h"

/* A combine of `box` by `nranks` ranks that reach one another over `level`. The result goes to all (NONE), to one
 * (ROOT), or, with pieces, each rank gets its parts along heads or tokens. */
bny_request bny_compose_request(const bny_request *whole, int32_t level, int32_t nranks, const bny_slice *box,
                                banyan_scatter scatter);

/* Returns the cheapest flat algorithm for a part, and its cost (NULL: not wanted). It is never NULL, because oneshot
 * serves every combine. `choices` caches answers; it may be NULL. */
const bny_algorithm *bny_compose_choose(const bny_request *part, struct bny_choices *choices, bny_estimate *estimate);

/* A cache of choices for parts of one request: equal parts share one entry on all ranks. It begins as zeros. Trees keep
 * the estimate of their shape. */
typedef struct bny_choice {
  uint64_t key;
  const bny_algorithm *algorithm;
  bny_estimate estimate;
} bny_choice;

typedef struct bny_choices {
  int32_t count;
  bny_choice made[32];
} bny_choices;

/* Returns the entry of a request and a name, or NULL; adds one while there is room. `choices` may be NULL. */
const bny_choice *bny_choices_find(const bny_choices *choices, uint64_t key);
void bny_choices_add(bny_choices *choices, const bny_choice *made);

/* Returns why a combine over levels does not serve a request, for scatters with or without owners. NULL: it does. */
const char *bny_compose_reject(const bny_request *request, bool by_owner);

/* Adds `times` times `more` to an estimate, without roundings and memory. */
void bny_compose_add(bny_estimate *sum, const bny_estimate *more, double times);

/* Returns whether a box is better cut along heads than along tokens into `count` parts. */
bool bny_compose_by_heads(const bny_slice *box, int32_t count);

/* The pieces of data that leaves a group of `level`: lanes, and above that members. */
int32_t bny_compose_pieces(const bny_levels *levels, int32_t level);

/* The range of `count` pieces that one of `carriers` carriers sends. */
typedef struct bny_lane_range {
  int32_t first, last; /* [first, last) */
} bny_lane_range;

bny_lane_range bny_compose_lanes(int32_t count, int32_t carriers, int32_t carrier);

/* Under HEADS and TOKENS: a range of ranks that includes all owners of rows of the box. */
bny_lane_range bny_compose_owners(const bny_request *request);

/* The rank that represents a group of `level` for the piece with number lanes[k] at each level k <= level. */
int32_t bny_compose_stand_in(const bny_levels *levels, int32_t level, int32_t group, const int32_t *lanes);

/* The lanes by which groups represent `owner`. In its own groups they lead to the owner itself, or to a carrier of its
 * island. */
void bny_compose_lanes_of(const bny_levels *levels, int32_t owner, int32_t lanes[BNY_LEVELS_MAX]);

/* The largest number of `owners` owners that one rank may represent. */
int64_t bny_compose_units_most(const bny_levels *levels, int64_t owners);

/* The *count slices that a flat algorithm delivers on rank `rank` of a part, in its own order. The builder owns the
 * memory. */
const bny_slice *bny_compose_tiles(bny_builder *builder, const bny_request *part, const bny_algorithm *algorithm,
                                   int32_t rank, int32_t *count);
