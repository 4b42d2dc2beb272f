/* SPDX-License-Identifier: Apache-2.0
 * Adds a level from keys, finds and names levels, and frees them. levels.h defines the levels. */
#include "topo/levels/levels.h"

#include <stdlib.h>
#include <string.h>

#include "topo/levels/derive.h"

static const char *const level_names[BNY_TOPO_LEVEL_KINDS] = {"package", "island", "host",  "domain",
                                                              "rail",    "leaf",   "spine", "core"};

const char *bny_topo_level_name(bny_topo_level_kind kind) {
  return (unsigned)kind < BNY_TOPO_LEVEL_KINDS ? level_names[kind] : "?";
}

const bny_topo_level *bny_topo_level_of(const bny_topo_levels *levels, bny_topo_level_kind kind) {
  for (int32_t i = 0; i < levels->nlevels; i++)
    if (levels->levels[i].kind == kind) return &levels->levels[i];
  return NULL;
}

void bny_topo_levels_free(bny_topo_levels *levels) {
  if (!levels) return;
  for (int32_t i = 0; i < levels->nlevels; i++) {
    free(levels->levels[i].groups);
    free(levels->levels[i].members);
    free(levels->levels[i].group_of);
  }
  free(levels->ranks);
  free(levels);
}

int32_t bny_topo_root(int32_t *roots, int32_t node) {
  while (roots[node] != node) {
    roots[node] = roots[roots[node]];
    node = roots[node];
  }
  return node;
}

void bny_topo_unite(int32_t *roots, int32_t a, int32_t b) {
  a = bny_topo_root(roots, a);
  b = bny_topo_root(roots, b);
  if (a < b)
    roots[b] = a;
  else
    roots[a] = b;
}

/* ---- a level from keys ------------------------------------------------------------------------------------------- */

/* Numbers groups in the order of their first members. */
static void groups_fill(bny_topo_level *level, const int32_t *keys, int32_t nranks, int32_t *group_of_key) {
  for (int32_t r = 0; r < nranks; r++) {
    int32_t key = keys[r];
    if (key < 0) {
      level->group_of[r] = -1;
      continue;
    }
    if (group_of_key[key] < 0) {
      level->groups[level->ngroups] = (bny_topo_group){
          .node = -1, .path = BNY_TOPO_PATH_SELF, .all_to_all = true, .uniform = true, .source = BNY_TOPO_MEASURED};
      group_of_key[key] = level->ngroups++;
    }
    level->group_of[r] = group_of_key[key];
    level->groups[level->group_of[r]].count++;
    level->nmembers++;
  }
  int32_t first = 0;
  for (int32_t g = 0; g < level->ngroups; g++) {
    level->groups[g].first = first;
    first += level->groups[g].count;
    level->groups[g].count = 0;
  }
  for (int32_t r = 0; r < nranks; r++) {
    if (level->group_of[r] < 0) continue;
    bny_topo_group *group = &level->groups[level->group_of[r]];
    level->members[group->first + group->count++] = r;
  }
}

bny_topo_level *bny_topo_level_add(bny_topo_derivation *d, bny_topo_level_kind kind, int32_t nkeys) {
  size_t nranks = (size_t)d->levels->nranks;
  bny_topo_level *level = &d->levels->levels[d->levels->nlevels];
  *level = (bny_topo_level){.kind = kind,
                            .groups = malloc((nranks + 1) * sizeof *level->groups),
                            .members = malloc((nranks + 1) * sizeof *level->members),
                            .group_of = malloc((nranks + 1) * sizeof *level->group_of)};
  d->levels->nlevels++;
  int32_t *group_of_key = malloc(((size_t)nkeys + 1) * sizeof *group_of_key);
  if (!level->groups || !level->members || !level->group_of || !group_of_key) {
    free(group_of_key);
    return NULL;
  }
  for (int32_t key = 0; key < nkeys; key++) group_of_key[key] = -1;
  groups_fill(level, d->keys, d->levels->nranks, group_of_key);
  free(group_of_key);
  return level;
}
