/* SPDX-License-Identifier: Apache-2.0
 *
 * What algorithms over levels share: requests of their parts, and the flat algorithm that is cheapest for one. */
#ifndef BNY_PLAN_COMPOSE_H
#define BNY_PLAN_COMPOSE_H

#include "plan/builder.h"

/* A combine of `box` by `nranks` ranks that reach one another over `level`: to all of them (NONE), to one (ROOT), or,
 * with pieces, to each its parts along heads or tokens. */
bny_request bny_compose_request(const bny_request *whole, int32_t level, int32_t nranks, const bny_slice *box,
                                banyan_scatter scatter);

/* The cheapest flat algorithm for a part, and what it costs (NULL: not asked); never NULL itself: oneshot serves every
 * combine. `choices`, where given, remembers. */
const bny_algorithm *bny_compose_choose(const bny_request *part, struct bny_choices *choices, bny_estimate *estimate);

/* Choices for parts of one request; parts of all ranks that are alike share one. Begin with zeros. */
typedef struct bny_choice {
  uint64_t key;
  const bny_algorithm *algorithm;
  bny_estimate estimate;
} bny_choice;

typedef struct bny_choices {
  int32_t count;
  bny_choice made[32];
} bny_choices;

/* Whether a box is better cut along heads than along tokens into `count` parts. */
bool bny_compose_by_heads(const bny_slice *box, int32_t count);

/* Pieces into which what leaves a group of `level` is cut: lanes, above that members. */
int32_t bny_compose_pieces(const bny_levels *levels, int32_t level);

/* Of `count` pieces, those of one of `carriers` carriers. */
typedef struct bny_lane_range {
  int32_t first, last; /* [first, last) */
} bny_lane_range;

bny_lane_range bny_compose_lanes(int32_t count, int32_t carriers, int32_t carrier);

/* Under HEADS and TOKENS: all owners of rows of the box are among these ranks. */
bny_lane_range bny_compose_owners(const bny_request *request);

/* The rank that stands for a group of `level` for the piece that has number lanes[k] at level k <= level. */
int32_t bny_compose_stand_in(const bny_levels *levels, int32_t level, int32_t group, const int32_t *lanes);

/* The lanes by which groups stand for `owner`: in its own groups they lead to itself, or to a carrier of its island. */
void bny_compose_lanes_of(const bny_levels *levels, int32_t owner, int32_t lanes[BNY_LEVELS_MAX]);

/* Of `owners` owners, for how many one rank may stand at most. */
int64_t bny_compose_units_most(const bny_levels *levels, int64_t owners);

/* The slices that a flat algorithm delivers on rank `rank` of a part, in its own order; *count of them. Memory of the
 * builder. */
const bny_slice *bny_compose_tiles(bny_builder *builder, const bny_request *part, const bny_algorithm *algorithm,
                                   int32_t rank, int32_t *count);

#endif
