/* SPDX-License-Identifier: Apache-2.0
 * Makes levels from facts or from a text such as "4,8", and answers which group a rank is in. */
#include "plan/levels.h"

#include <stdlib.h>
#include <string.h>

#include "plan/network.h"
#include "plan/plan.h"
#include "base/hash.h"
#include "base/status.h"

void bny_levels_free(bny_levels *levels) {
  if (!levels) return;
  for (int32_t k = 0; k < levels->nlevels; k++) {
    free(levels->levels[k].group_of);
    free(levels->levels[k].first);
    free(levels->levels[k].members);
    free(levels->levels[k].index);
    free(levels->levels[k].shapes);
  }
  free(levels->nested);
  free(levels->number);
  free(levels->carrier);
  free(levels->carriers);
  free(levels->carrier_first);
  bny_links_free(levels->network);
  bny_levels_free(levels->leaders);
  free(levels);
}

bool bny_levels_share_links(const bny_levels *levels) { return levels->network && levels->network->nlinks > 0; }

static banyan_status no_memory(void) { return bny_fail(BANYAN_ERR_MEMORY, "plan: no memory for levels"); }

int32_t bny_levels_part_of(int32_t count, int32_t parts, int32_t index) {
  int32_t each = count / parts, larger = count % parts;
  if (index < larger * (each + 1)) return index / (each + 1);
  return larger + (index - larger * (each + 1)) / each;
}

int32_t bny_levels_group(const bny_levels *levels, int32_t level, int32_t rank) {
  int32_t group = rank;
  for (int32_t k = 0; k <= level; k++) group = levels->levels[k].group_of[group];
  return group;
}

int32_t bny_levels_carriers(const bny_levels *levels, int32_t island) {
  return levels->carrier_first[island + 1] - levels->carrier_first[island];
}

int32_t bny_levels_carrier(const bny_levels *levels, int32_t island, int32_t lane) {
  int32_t part = bny_levels_part_of(levels->lanes, bny_levels_carriers(levels, island), lane);
  return levels->carriers[levels->carrier_first[island] + part];
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

typedef struct numbered {
  int32_t number, member;
} numbered;

static int by_number(const void *a, const void *b) {
  const numbered *left = a, *right = b;
  if (left->number != right->number) return left->number < right->number ? -1 : 1;
  return left->member < right->member ? -1 : left->member > right->member;
}

static int by_member(const void *a, const void *b) {
  const numbered *left = a, *right = b;
  return left->member < right->member ? -1 : left->member > right->member;
}

/* Groups `count` members by numbers[]. Groups are numbered in the order of their first members. Returns false without
 * memory. */
static bool level_fill(bny_level *level, const int32_t *numbers, int32_t count) {
  numbered *sorted = malloc((size_t)count * sizeof *sorted), *firsts = malloc((size_t)count * sizeof *firsts);
  level->group_of = malloc((size_t)count * sizeof *level->group_of);
  level->first = malloc(((size_t)count + 1) * sizeof *level->first);
  level->members = malloc((size_t)count * sizeof *level->members);
  level->index = malloc((size_t)count * sizeof *level->index);
  bool good = sorted && firsts && level->group_of && level->first && level->members && level->index;
  for (int32_t i = 0; good && i < count; i++) sorted[i] = (numbered){numbers[i], i};
  if (good) qsort(sorted, (size_t)count, sizeof *sorted, by_number);
  level->ngroups = 0;
  for (int32_t i = 0; good && i < count; i++)
    if (i == 0 || sorted[i].number != sorted[i - 1].number)
      firsts[level->ngroups++] = (numbered){.number = i, .member = sorted[i].member};
  if (good) qsort(firsts, (size_t)level->ngroups, sizeof *firsts, by_member);
  level->most = 0;
  int32_t filled = 0;
  for (int32_t g = 0; good && g < level->ngroups; g++) {
    level->first[g] = filled;
    for (int32_t i = firsts[g].number; i < count && sorted[i].number == sorted[firsts[g].number].number; i++) {
      level->index[sorted[i].member] = filled - level->first[g];
      level->members[filled++] = sorted[i].member;
      level->group_of[sorted[i].member] = g;
    }
    int32_t size = filled - level->first[g];
    level->most = size > level->most ? size : level->most;
  }
  if (good) level->first[level->ngroups] = filled;
  free(sorted);
  free(firsts);
  return good;
}

/* Adds a level from numbers by rank. A level with the same groups as the last is dropped. */
static banyan_status level_add(bny_levels *levels, const bny_level_facts *facts, int32_t *numbers) {
  bny_level *level = &levels->levels[levels->nlevels];
  int32_t count = levels->nlevels == 0 ? levels->nranks : levels->levels[levels->nlevels - 1].ngroups;
  bool *known = calloc((size_t)count, sizeof *known);
  banyan_status status = known ? BANYAN_OK : no_memory();
  for (int32_t rank = 0; levels->nlevels > 0 && rank < levels->nranks && status == BANYAN_OK; rank++) {
    int32_t below = bny_levels_group(levels, levels->nlevels - 1, rank), number = facts->group_of[rank];
    if (known[below] && numbers[below] != number)
      status = bny_fail(BANYAN_ERR_ARGUMENT, "plan: a group of level %s is not within one of level %s (rank %d)",
                        levels->levels[levels->nlevels - 1].name, facts->name, rank);
    known[below] = true;
    numbers[below] = number;
  }
  free(known);
  if (status != BANYAN_OK) return status;
  *level = (bny_level){.link = facts->link};
  strncpy(level->name, facts->name, sizeof level->name - 1);
  levels->nlevels++; /* bny_levels_free() frees it from here on */
  if (!level_fill(level, levels->nlevels == 1 ? facts->group_of : numbers, count)) return no_memory();
  bool parts_nothing = level->ngroups == count && level->ngroups > 1;
  if (parts_nothing) {
    free(level->group_of);
    free(level->first);
    free(level->members);
    free(level->index);
    *level = (bny_level){.ngroups = 0};
    levels->nlevels--;
  }
  return BANYAN_OK;
}

/* Adds a level of one group of all, unless there is one. */
static banyan_status level_add_all(bny_levels *levels, const bny_level_facts *outer, int32_t *numbers) {
  if (levels->nlevels > 0 && levels->levels[levels->nlevels - 1].ngroups == 1) return BANYAN_OK;
  if (levels->nlevels == BNY_LEVELS_MAX)
    return bny_fail(BANYAN_ERR_ARGUMENT, "plan: more than %d levels", BNY_LEVELS_MAX - 1);
  int32_t *zeros = calloc((size_t)levels->nranks, sizeof *zeros);
  if (!zeros) return no_memory();
  bny_level_facts all = {.name = outer->name, .link = outer->link, .group_of = zeros};
  banyan_status status = level_add(levels, &all, numbers);
  free(zeros);
  return status;
}

/* Groups are contiguous in the nested order. */
static int32_t smallest(const bny_levels *levels, int32_t level) {
  int32_t least = levels->nranks, first = 0;
  for (int32_t i = 1; i <= levels->nranks; i++) {
    bool same = i < levels->nranks && bny_levels_group(levels, level, levels->nested[i]) ==
                                          bny_levels_group(levels, level, levels->nested[first]);
    if (same) continue;
    least = i - first < least ? i - first : least;
    first = i;
  }
  return least;
}

/* From the outermost level inwards, each group is replaced by its members. */
static banyan_status nest(bny_levels *levels) {
  size_t bytes = (size_t)levels->nranks * sizeof *levels->nested;
  levels->nested = malloc(bytes);
  levels->number = malloc(bytes);
  if (!levels->nested || !levels->number) return no_memory();
  int32_t count = 1, *groups = levels->number; /* used as scratch */
  levels->nested[0] = 0;
  for (int32_t k = levels->nlevels - 1; k >= 0; k--) {
    const bny_level *level = &levels->levels[k];
    int32_t filled = 0;
    memcpy(groups, levels->nested, (size_t)count * sizeof *groups);
    for (int32_t g = 0; g < count; g++)
      for (int32_t i = level->first[groups[g]]; i < level->first[groups[g] + 1]; i++)
        levels->nested[filled++] = level->members[i];
    count = filled;
  }
  for (int32_t index = 0; index < levels->nranks; index++) levels->number[levels->nested[index]] = index;
  for (int32_t k = 0; k < levels->nlevels; k++) levels->levels[k].least = smallest(levels, k);
  return BANYAN_OK;
}

static banyan_status carriers_find(bny_levels *levels, const bool *has_nic) {
  const bny_level *islands = &levels->levels[0];
  size_t nranks = (size_t)levels->nranks;
  levels->carrier = calloc(nranks, sizeof *levels->carrier);
  levels->carriers = malloc(nranks * sizeof *levels->carriers);
  levels->carrier_first = malloc(((size_t)islands->ngroups + 1) * sizeof *levels->carrier_first);
  if (!levels->carrier || !levels->carriers || !levels->carrier_first) return no_memory();
  int32_t filled = 0;
  for (int32_t g = 0; g < islands->ngroups; g++) {
    bool any = false;
    levels->carrier_first[g] = filled;
    for (int32_t i = islands->first[g]; i < islands->first[g + 1]; i++)
      any = any || !has_nic || has_nic[islands->members[i]];
    for (int32_t i = islands->first[g]; i < islands->first[g + 1]; i++) {
      int32_t rank = islands->members[i];
      levels->carrier[rank] = !any || !has_nic || has_nic[rank];
      if (levels->carrier[rank]) levels->carriers[filled++] = rank;
    }
    int32_t carriers = filled - levels->carrier_first[g];
    levels->lanes = carriers > levels->lanes ? carriers : levels->lanes;
  }
  levels->carrier_first[islands->ngroups] = filled;
  return BANYAN_OK;
}

static int by_shape(const void *a, const void *b) {
  const bny_group_shape *left = a, *right = b;
  if (left->members != right->members) return left->members < right->members ? -1 : 1;
  return left->carriers < right->carriers ? -1 : left->carriers > right->carriers;
}

static banyan_status shapes_find(bny_levels *levels) {
  for (int32_t k = 0; k < levels->nlevels; k++) {
    bny_level *level = &levels->levels[k];
    level->shapes = malloc((size_t)level->ngroups * sizeof *level->shapes);
    if (!level->shapes) return no_memory();
    for (int32_t g = 0; g < level->ngroups; g++) {
      int32_t members = level->first[g + 1] - level->first[g];
      level->shapes[g] = (bny_group_shape){members, k == 0 ? bny_levels_carriers(levels, g) : members};
    }
    qsort(level->shapes, (size_t)level->ngroups, sizeof *level->shapes, by_shape);
    for (int32_t g = 0; g < level->ngroups; g++)
      if (g == 0 || by_shape(&level->shapes[g], &level->shapes[level->nshapes - 1]) != 0)
        level->shapes[level->nshapes++] = level->shapes[g];
  }
  return BANYAN_OK;
}

/* Returns true if the tree over members of groups is the canonical tree over ranks: members are consecutive, and all
 * groups except the last hold the same power of two of them. */
static bool level_is_aligned(const bny_level *level) {
  int32_t size = level->first[1] - level->first[0], last = level->ngroups - 1;
  if (level->ngroups > 1 && (size & (size - 1)) != 0) return false;
  for (int32_t g = 0; g <= last; g++) {
    int32_t count = level->first[g + 1] - level->first[g];
    if (g < last ? count != size : count > size) return false;
    for (int32_t i = level->first[g]; i < level->first[g + 1]; i++)
      if (level->members[i] != g * size + (i - level->first[g])) return false;
  }
  return true;
}

static uint64_t hash_of(const bny_levels *levels) {
  uint64_t hash = bny_hash_add(BNY_HASH_START, (uint64_t)levels->nranks);
  for (int32_t k = 0; k < levels->nlevels; k++) {
    const bny_level *level = &levels->levels[k];
    int32_t count = k == 0 ? levels->nranks : levels->levels[k - 1].ngroups;
    for (int32_t i = 0; i < count; i++) hash = bny_hash_add(hash, (uint64_t)level->group_of[i]);
    hash = bny_link_cost_hash(hash, &level->link);
  }
  for (int32_t rank = 0; rank < levels->nranks; rank++) hash = bny_hash_add(hash, levels->carrier[rank]);
  return hash;
}

static banyan_status make(int32_t nranks, const bny_level_facts *facts, int32_t nfacts, const bny_level_facts *outer,
                          const bool *has_nic, bny_levels **levels) {
  bny_levels *made = calloc(1, sizeof *made);
  int32_t *numbers = malloc((size_t)nranks * sizeof *numbers);
  banyan_status status = made && numbers ? BANYAN_OK : no_memory();
  if (made) made->nranks = nranks;
  for (int32_t i = 0; i < nfacts && status == BANYAN_OK; i++) {
    if (made->nlevels > 0 && made->levels[made->nlevels - 1].ngroups == 1) break;
    status = made->nlevels < BNY_LEVELS_MAX
                 ? level_add(made, &facts[i], numbers)
                 : bny_fail(BANYAN_ERR_ARGUMENT, "plan: more than %d levels", BNY_LEVELS_MAX - 1);
  }
  if (status == BANYAN_OK) status = level_add_all(made, outer, numbers);
  if (status == BANYAN_OK) status = nest(made);
  if (status == BANYAN_OK) status = carriers_find(made, has_nic);
  if (status == BANYAN_OK) status = shapes_find(made);
  free(numbers);
  if (status != BANYAN_OK) {
    bny_levels_free(made);
    return status;
  }
  for (int32_t r = 0; r < nranks; r++) made->levels[bny_levels_between(made, r, (r + 1) % nranks)].neighbours++;
  made->aligned = true;
  for (int32_t k = 0; k < made->nlevels; k++) made->aligned = made->aligned && level_is_aligned(&made->levels[k]);
  made->hash = hash_of(made);
  *levels = made;
  return BANYAN_OK;
}

/* The leader of each island is its first carrier. */
static banyan_status leaders_make(bny_levels *levels, const bny_level_facts *facts, int32_t nfacts,
                                  const bny_level_facts *outer) {
  if (levels->lanes == 1) return BANYAN_OK;
  bool *leads = calloc((size_t)levels->nranks, sizeof *leads);
  if (!leads) return no_memory();
  for (int32_t island = 0; island < levels->levels[0].ngroups; island++)
    leads[bny_levels_carrier(levels, island, 0)] = true;
  banyan_status status = make(levels->nranks, facts, nfacts, outer, leads, &levels->leaders);
  free(leads);
  return status;
}

banyan_status bny_levels_make(int32_t nranks, const bny_level_facts *facts, int32_t nfacts,
                              const bny_level_facts *outer, const bool *has_nic, bny_levels **levels) {
  if (nranks < 1) return bny_fail(BANYAN_ERR_ARGUMENT, "plan: levels of %d ranks", nranks);
  bny_levels *made = NULL;
  banyan_status status = make(nranks, facts, nfacts, outer, has_nic, &made);
  if (status == BANYAN_OK) status = leaders_make(made, facts, nfacts, outer);
  bny_links *network = status == BANYAN_OK ? bny_links_of_levels(made) : NULL;
  if (status == BANYAN_OK && !network) status = no_memory();
  if (status != BANYAN_OK) {
    bny_levels_free(made);
    return status;
  }
  bny_levels_set_network(made, network);
  *levels = made;
  return BANYAN_OK;
}

void bny_levels_set_network(bny_levels *levels, bny_links *network) {
  bny_links_free(levels->network);
  levels->network = network;
  bny_links_compare(levels);
  levels->hash = bny_links_hash(hash_of(levels), network, levels->nranks);
}

banyan_status bny_levels_parse(int32_t nranks, const char *sizes, const bny_link_cost *link, bny_levels **levels) {
  static const char *const names[] = {"level 0", "level 1", "level 2", "level 3", "level 4", "level 5", "level 6"};
  bny_level_facts facts[BNY_LEVELS_MAX - 1];
  int32_t *groups = malloc((size_t)nranks * (BNY_LEVELS_MAX - 1) * sizeof *groups), count = 0;
  banyan_status status = groups ? BANYAN_OK : no_memory();
  bny_link_cost cost = *link;
  long last = 1;
  for (const char *rest = sizes; status == BANYAN_OK && rest;) {
    char *end;
    long size = strtol(rest, &end, 10);
    if (end == rest || size < 1 || size > INT32_MAX || size % last != 0 || (*end && *end != ',') ||
        count == BNY_LEVELS_MAX - 1) {
      status =
          bny_fail(BANYAN_ERR_ARGUMENT,
                   "levels \"%s\": up to %d sizes of groups of ranks, such as \"4,8\", each a multiple of the last",
                   sizes, BNY_LEVELS_MAX - 1);
      break;
    }
    last = size;
    int32_t *group_of = groups + (size_t)count * (size_t)nranks;
    for (int32_t rank = 0; rank < nranks; rank++) group_of[rank] = (int32_t)(rank / size);
    facts[count] = (bny_level_facts){.name = names[count], .link = cost, .group_of = group_of};
    cost.alpha_ns *= 8;
    cost.message_ns *= 8;
    cost.beta_ns_per_byte *= 4;
    count++;
    rest = *end ? end + 1 : NULL;
  }
  bny_level_facts outer = {.name = "all", .link = cost};
  if (status == BANYAN_OK) {
    status = bny_levels_make(nranks, facts, count, &outer, NULL, levels);
    if (status != BANYAN_OK) bny_fail(status, "levels \"%s\": %s", sizes, banyan_last_error());
  }
  free(groups);
  return status;
}
