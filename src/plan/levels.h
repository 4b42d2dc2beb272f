/* SPDX-License-Identifier: Apache-2.0
 * Levels state which ranks are close to one another. They are facts for planning, equal on every rank. Level 0 divides
 * the ranks into groups, the *islands*. Level k groups the groups of level k - 1, and the last level is one group of
 * all. A link cost is that of a message between two members of one group of a level.
 *
 * Carriers are the ranks of an island that exchange data with other islands: the ranks with their own NIC, or all ranks
 * if the island has no NIC. `lanes` is the largest number of carriers of an island. Data that leaves islands is cut
 * into that many pieces, one for each lane (rail). Carrier i of an island's n, in the order of their ranks, takes lanes
 * bny_slice_split(lanes, n, i). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "banyan.h"

enum { BNY_LEVELS_MAX = 8, BNY_LEVEL_NAME_BYTES = 16 };

/* The cost of the links of one level, used for prediction only. A message of n bytes takes alpha + n * beta. */
typedef struct bny_link_cost {
#define BNY_COST(field) double field;
#include "plan/link_cost.def"
} bny_link_cost;

/* Extends a hash by a link cost. */
uint64_t bny_link_cost_hash(uint64_t hash, const bny_link_cost *cost);

static inline double bny_link_message_ns(const bny_link_cost *link) {
  return link->message_ns > 0 ? link->message_ns : link->alpha_ns / 4;
}

typedef struct bny_level {
  char name[BNY_LEVEL_NAME_BYTES]; /* "island", "host" (a node), "fabric" */
  bny_link_cost link;              /* between members */
  int32_t ngroups;
  int32_t *group_of;  /* by member: rank at level 0, group of the level below otherwise */
  int32_t *first;     /* by group, ngroups + 1 of them: range of members[] */
  int32_t *members;   /* ascending within a group */
  int32_t *index;     /* by member: its index in its group */
  int32_t most;       /* members of the largest group */
  int32_t least;      /* ranks of the smallest group */
  int32_t neighbours; /* ranks whose messages to the next rank take its links; rank 0 is next to the last */
  int32_t nshapes;
  struct bny_group_shape *shapes; /* the distinct shapes of its groups */
} bny_level;

/* The facts of a group on which its plans depend. Above level 0 every member is a carrier. */
typedef struct bny_group_shape {
  int32_t members, carriers;
} bny_group_shape;

typedef struct bny_levels {
  int32_t nranks, nlevels; /* at least 1 */
  bny_level levels[BNY_LEVELS_MAX];
  int32_t *nested;            /* the ranks ordered so that groups of every level are contiguous */
  int32_t *number;            /* by rank: its index in that order */
  bool *carrier;              /* by rank */
  int32_t *carriers;          /* island after island: the ranks that are carriers */
  int32_t *carrier_first;     /* by island, like levels[0].first */
  int32_t lanes;              /* carriers of the island with the most */
  struct bny_links *network;  /* the links that messages cross */
  struct bny_levels *leaders; /* the same groups with one carrier per island; NULL: each island already has one */
  bool aligned;               /* each group is an aligned block of 2^k ranks; the last may be shorter */
  uint64_t hash;              /* covers all of it */
} bny_levels;

/* The input of bny_levels_make() for one level. */
typedef struct bny_level_facts {
  const char *name;
  bny_link_cost link;
  const int32_t *group_of; /* by rank, any numbers; each group of the previous level lies in one group of this level */
} bny_level_facts;

/* Makes levels from `facts`, inner to outer. If the last level is not one group, a level of one group with `outer`'s
 * link is added. Levels with the same groups as those before are dropped. `has_nic` is by rank; NULL: all ranks have
 * one. */
banyan_status bny_levels_make(int32_t nranks, const bny_level_facts *facts, int32_t nfacts,
                              const bny_level_facts *outer, const bool *has_nic, bny_levels **levels);
void bny_levels_free(bny_levels *levels); /* NULL is allowed */

/* Returns whether the network of the levels has links that several ranks may use. */
bool bny_levels_share_links(const bny_levels *levels);

/* Replaces the network, which the levels own from then on. */
void bny_levels_set_network(bny_levels *levels, struct bny_links *network);

/* Parses "4,8": groups of 4 ranks, in groups of 8, in one group of all. The first link costs `link`. Each further level
 * costs 8 times the alpha and message_ns and 4 times the beta. This serves tests and simulations. */
banyan_status bny_levels_parse(int32_t nranks, const char *sizes, const bny_link_cost *link, bny_levels **levels);

/* The level whose link carries a message from a to b: the first in which both are in one group. */
static inline int32_t bny_levels_between(const bny_levels *levels, int32_t a, int32_t b) {
  int32_t level = 0;
  for (; level < levels->nlevels - 1; level++) {
    a = levels->levels[level].group_of[a];
    b = levels->levels[level].group_of[b];
    if (a == b) break;
  }
  return level;
}

int32_t bny_levels_group(const bny_levels *levels, int32_t level, int32_t rank);

int32_t bny_levels_carriers(const bny_levels *levels, int32_t island);
int32_t bny_levels_carrier(const bny_levels *levels, int32_t island, int32_t lane);

/* Returns the part of bny_slice_split(count, parts, ..) that holds `index`. */
int32_t bny_levels_part_of(int32_t count, int32_t parts, int32_t index);
