/* SPDX-License-Identifier: Apache-2.0
 * Divides the cores of a machine among its ranks by bipartite matching. In each round every rank gets one more core. If
 * necessary a rank takes one from another, which takes a replacement, and so on along a path. Cores that the same ranks
 * may use are then divided again, so that each of these ranks has neighbouring cores. */
#include "comm/facts.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum { CORES = 8 * BNY_CPU_BYTES };

typedef struct division {
  const bny_facts **mates; /* the ranks of the machine, in order */
  int32_t nmates;
  int32_t ncores;       /* up to the last one that a mate may use */
  int32_t owner[CORES]; /* index in mates; -1: none */
  bool seen[CORES];     /* by the current search, or by one that failed, because later ones would fail there too */
  int32_t alike[CORES], owners[CORES]; /* scratch */
} division;

static bool may_use(const division *all, int32_t mate, int32_t core) {
  return all->mates[mate]->cpus[core / 8] >> core % 8 & 1;
}

/* Returns the next core that this rank may use, or ncores or more if there is none. */
static int32_t next_core(const division *all, int32_t mate, int32_t core) {
  while (core < all->ncores && !may_use(all, mate, core)) core += all->mates[mate]->cpus[core / 8] ? 1 : 8 - core % 8;
  return core;
}

/* Gives a rank one more core, without a loss for any other. */
static bool give_one(division *all, int32_t mate) {
  for (int32_t core = next_core(all, mate, 0); core < all->ncores; core = next_core(all, mate, core + 1)) {
    if (all->owner[core] >= 0) continue;
    all->owner[core] = mate;
    return true;
  }
  for (int32_t core = next_core(all, mate, 0); core < all->ncores; core = next_core(all, mate, core + 1)) {
    if (all->seen[core]) continue;
    all->seen[core] = true;
    if (all->owner[core] == mate || !give_one(all, all->owner[core])) continue;
    all->owner[core] = mate;
    return true;
  }
  return false;
}

static void give_all(division *all) {
  bool given = true;
  for (int32_t core = 0; core < all->ncores; core++) all->owner[core] = -1;
  while (given) {
    given = false;
    for (int32_t mate = 0; mate < all->nmates; mate++) {
      bool seen[CORES];
      memcpy(seen, all->seen, (size_t)all->ncores * sizeof *seen);
      if (!give_one(all, mate)) continue;
      memcpy(all->seen, seen, (size_t)all->ncores * sizeof *seen);
      given = true;
    }
  }
}

static bool are_alike(const division *all, int32_t a, int32_t b) {
  for (int32_t mate = 0; mate < all->nmates; mate++)
    if (may_use(all, mate, a) != may_use(all, mate, b)) return false;
  return true;
}

/* Sorts the owners of all cores that the same ranks may use. */
static void sort_alike(division *all, int32_t first) {
  int32_t count = 0;
  for (int32_t core = first; core < all->ncores; core++) {
    int32_t at = count, owner = all->owner[core];
    if (owner < 0 || all->seen[core] || !are_alike(all, first, core)) continue;
    for (; at > 0 && all->owners[at - 1] > owner; at--) all->owners[at] = all->owners[at - 1];
    all->owners[at] = owner;
    all->alike[count++] = core;
    all->seen[core] = true;
  }
  for (int32_t i = 0; i < count; i++) all->owner[all->alike[i]] = all->owners[i];
}

static void take_share(const division *all, int32_t mate, bny_pool_cpus *own) {
  int32_t may = 0;
  for (int32_t core = 0; core < all->ncores; core++) {
    may += may_use(all, mate, core);
    if (all->owner[core] != mate) continue;
    own->mask[core / 8] |= (unsigned char)(1 << core % 8);
    own->count++;
  }
  if (own->count > 0 || may == 0) return;
  int32_t core = next_core(all, mate, 0);
  for (int32_t i = mate % may; i > 0; i--) core = next_core(all, mate, core + 1);
  own->mask[core / 8] |= (unsigned char)(1 << core % 8);
  own->count = 1;
}

static void divide(division *all, int32_t mate, bny_pool_cpus *own) {
  give_all(all);
  memset(all->seen, 0, sizeof all->seen);
  for (int32_t core = 0; core < all->ncores; core++)
    if (all->owner[core] >= 0 && !all->seen[core]) sort_alike(all, core);
  take_share(all, mate, own);
}

banyan_status bny_cores_divide(const bny_facts *all, int32_t nranks, int32_t rank, bny_pool_cpus *own) {
  division *made = calloc(1, sizeof *made);
  const bny_facts **mates = calloc((size_t)nranks, sizeof *mates);
  int32_t mate = 0;
  if (!made || !mates) {
    free(made), free(mates);
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to divide the cores of %d ranks", rank, nranks);
  }
  made->mates = mates;
  for (int32_t i = 0; i < nranks; i++) {
    if (!bny_facts_same_machine(&all[i], &all[rank])) continue;
    if (i == rank) mate = made->nmates;
    mates[made->nmates++] = &all[i];
    for (int32_t byte = made->ncores / 8; byte < BNY_CPU_BYTES; byte++)
      if (all[i].cpus[byte]) made->ncores = 8 * (byte + 1);
  }
  *own = (bny_pool_cpus){0};
  divide(made, mate, own);
  free(made), free(mates);
  return BANYAN_OK;
}
