/* SPDX-License-Identifier: Apache-2.0
 *
 * Levels: who is near to whom, as facts for planning, identical on every rank. Level 0 parts the ranks into groups, the
 * *islands*; level k parts the groups of level k - 1; the last level is one group of all. A link cost says what a
 * message between two members of one group of a level costs.
 *
 * Carriers are the ranks of an island that take part in what goes beyond it: those with a NIC of their own, or all of
 * an island that has none. `lanes` is the largest number of carriers of an island. What leaves islands is cut into as
 * many pieces, one for each lane (rail): of n carriers, in the order of their ranks, carrier i takes lanes
 * bny_slice_split(lanes, n, i). */
#ifndef BNY_PLAN_LEVELS_H
#define BNY_PLAN_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

#include "banyan.h"

enum { BNY_LEVELS_MAX = 8, BNY_LEVEL_NAME_BYTES = 16 };

/* What the links of one level cost, for prediction alone. Time of a message of n bytes: alpha + n * beta. */
typedef struct bny_link_cost {
  double alpha_ns;          /* signal to seen, an empty message */
  double message_ns;        /* to see one more that is on its way beside the first; 0: a quarter of alpha */
  double beta_ns_per_byte;  /* reading what a peer wrote */
  double shared_ns_per_byte; /* of one link for all ranks of an island, whose bytes add up; 0: each has its own */
  double gamma_ns_per_byte; /* encoding, merging or finishing a byte of wire form */
  double ranks_per_core;    /* > 1: ranks take turns; every wait costs a switch */
  double switch_ns;
} bny_link_cost;

static inline double bny_link_message_ns(const bny_link_cost *link) {
  return link->message_ns > 0 ? link->message_ns : link->alpha_ns / 4;
}

typedef struct bny_level {
  char name[BNY_LEVEL_NAME_BYTES]; /* "island", "host", "fabric" */
  bny_link_cost link;              /* between members */
  int32_t ngroups;
  int32_t *group_of; /* by member: rank at level 0, group of the level below otherwise */
  int32_t *first;    /* by group, ngroups + 1 of them: range of members[] */
  int32_t *members;  /* ascending within a group */
  int32_t *place;    /* by member: its place in its group */
  int32_t most;      /* members of a group at most */
  int32_t nshapes;
  struct bny_group_shape *shapes; /* the distinct ones among the groups */
} bny_level;

/* A group as far as plans of different groups differ. Above level 0 every member carries. */
typedef struct bny_group_shape {
  int32_t members, carriers;
} bny_group_shape;

typedef struct bny_levels {
  int32_t nranks, nlevels; /* at least 1 */
  bny_level levels[BNY_LEVELS_MAX];
  int32_t *nested;        /* ranks in an order in which groups of every level are one after another */
  int32_t *number;        /* by rank: its place in that order */
  bool *carrier;          /* by rank */
  int32_t *carriers;      /* islands one after another: the ranks that carry */
  int32_t *carrier_first; /* by island, as levels[0].first */
  int32_t lanes;          /* carriers of an island at most */
  struct bny_levels *leaders; /* the same groups with one carrier in each island; NULL: these are so */
  bool aligned; /* each group is an aligned block of a power of two of ranks, or the last one and shorter */
  uint64_t hash; /* of all of it */
} bny_levels;

/* What bny_levels_make() is told of one level. */
typedef struct bny_level_facts {
  const char *name;
  bny_link_cost link;
  const int32_t *group_of; /* by rank, any numbers; a group of the level before lies in one of this */
} bny_level_facts;

/* From inner to outer; what is left over after the last is joined in a level of one group with `outer`'s link, unless
 * the last level is one group already. Levels that part nothing (groups like those before) are dropped. has_nic by
 * rank; NULL: all have. */
banyan_status bny_levels_make(int32_t nranks, const bny_level_facts *facts, int32_t nfacts,
                              const bny_level_facts *outer, const bool *has_nic, bny_levels **levels);
void bny_levels_free(bny_levels *levels); /* NULL is allowed */

/* "4,8": groups of 4 ranks, in groups of 8, in one of all; the first link costs `link`, each further level 8 times its
 * alpha (and what one more message takes) and 4 times its beta. For tests and simulations. */
banyan_status bny_levels_parse(int32_t nranks, const char *sizes, const bny_link_cost *link, bny_levels **levels);

/* The level whose link a message from a to b takes: the first in which they are of one group. */
int32_t bny_levels_between(const bny_levels *levels, int32_t a, int32_t b);

/* The group of `rank` at a level. */
int32_t bny_levels_group(const bny_levels *levels, int32_t level, int32_t rank);

/* Ranks of islands: how many carry, and the carrier of a lane. */
int32_t bny_levels_carriers(const bny_levels *levels, int32_t island);
int32_t bny_levels_carrier(const bny_levels *levels, int32_t island, int32_t lane);

/* Which of `parts` parts of bny_slice_split(count, parts, ..) holds `index`. */
int32_t bny_levels_part_of(int32_t count, int32_t parts, int32_t index);

#endif
