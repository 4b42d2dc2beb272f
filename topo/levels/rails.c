/* SPDX-License-Identifier: Apache-2.0
 * Assigns each rank the NIC that serves it, and derives rails.
 *
 * Within a host, each rank gets one of the NICs that are best for it (nic.c). Among several, it gets the NIC that
 * serves the fewest ranks so far, then the first in the model. Ranks with the fewest candidates come first, because
 * other ranks can move to another NIC. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "topo/levels/derive.h"

enum { CELLS_MAX = 1 << 20 }; /* ranks times NICs in one host; above this limit NICs are assigned round-robin */

double bny_topo_net_speed(const bny_topo *topo, const bny_topo_link *link) {
  static const double implausible_gbytes_per_s = 1000;
  bool of_nic =
      bny_topo_ancestor(topo, link->from, BNY_TOPO_NIC) >= 0 || bny_topo_ancestor(topo, link->to, BNY_TOPO_NIC) >= 0;
  return of_nic && link->gbytes_per_s > implausible_gbytes_per_s ? 0 : link->gbytes_per_s;
}

/* Returns whether link l leads to the network. A NIC's links to its own ports do not. */
static bool is_way_out(const bny_topo *topo, int32_t node, int32_t l) {
  int32_t other = bny_topo_other_end(topo, node, l);
  return topo->links[l].kind == BNY_TOPO_LINK_NET &&
         (topo->nodes[node].kind != BNY_TOPO_NIC || topo->nodes[other].kind != BNY_TOPO_PORT);
}

double bny_topo_port_rated(const bny_topo *topo, int32_t node) {
  double rated = 0;
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l))
    if (is_way_out(topo, node, l)) rated = fmax(rated, topo->links[l].rated_gbytes_per_s);
  return rated;
}

/* Returns whether the model of a port ends in an inactive state, which probes write there (topo/probe/rdma.c). If all
 * ports of a kind are down, no rating is known, and this is the only evidence. */
static bool says_down(const char *model) {
  static const char *const states[] = {", down", ", initialising", ", armed", ", in trouble"};
  const char *last = model ? strrchr(model, ',') : NULL;
  for (size_t i = 0; last && i < sizeof states / sizeof *states; i++)
    if (strcmp(last, states[i]) == 0) return true;
  return false;
}

bool bny_topo_port_down(const bny_topo *topo, int32_t node) {
  bny_topo_kind kind = topo->nodes[node].kind;
  if (kind != BNY_TOPO_PORT && kind != BNY_TOPO_NIC) return false;
  bool dead = kind == BNY_TOPO_PORT && says_down(topo->nodes[node].model);
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    if (!is_way_out(topo, node, l)) continue;
    if (topo->links[l].gbytes_per_s > 0) return false;
    dead = dead || bny_topo_link_dead(&topo->links[l]);
  }
  return dead;
}

/* Sums the bandwidth of each NIC over its ports, and unites the leaf switches that each NIC is on. */
static void ports_sum(bny_topo_derivation *d) {
  const bny_topo *topo = d->topo;
  for (int32_t n = 0; n < topo->nnodes; n++) d->leaf_roots[n] = n;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t nic = bny_topo_nic_of(topo, n);
    double slowest = 0;
    for (int32_t l = bny_topo_first_link(topo, n); nic >= 0 && l >= 0; l = bny_topo_next_link(topo, n, l)) {
      const bny_topo_link *link = &topo->links[l];
      int32_t other = bny_topo_other_end(topo, n, l);
      if (!is_way_out(topo, n, l)) continue;
      bny_topo_sum *sum = &d->nic[nic];
      double speed = bny_topo_net_speed(topo, link);
      if (speed > 0) slowest = slowest > 0 && slowest < speed ? slowest : speed;
      sum->latency_us = link->latency_us > sum->latency_us ? link->latency_us : sum->latency_us;
      sum->source = link->source < sum->source ? link->source : sum->source;
      if (topo->nodes[other].kind == BNY_TOPO_SWITCH) {
        if (d->leaf[nic] >= 0) bny_topo_unite(d->leaf_roots, d->leaf[nic], other);
        d->leaf[nic] = other;
      }
    }
    if (nic < 0) continue;
    d->nic[nic].gbytes_per_s += slowest;
    d->nic[nic].down += bny_topo_port_down(topo, n);
  }
  for (int32_t i = 0; i < d->nnics; i++) {
    int32_t *leaf = &d->leaf[d->nics[i]];
    *leaf = *leaf < 0 ? -1 : bny_topo_root(d->leaf_roots, *leaf);
  }
}

/* ---- one host ---------------------------------------------------------------------------------------------------- */

typedef struct choice {
  int32_t candidates, rank;
} choice;

typedef struct host_work {
  choice *choices;
  unsigned char *paths; /* rank by NIC */
  bool *candidate;      /* rank by NIC */
  int32_t *load;        /* by NIC */
} host_work;

static int choice_order(const void *a, const void *b) { return bny_topo_order(a, b, 2); }

static void candidates_find(const bny_topo_derivation *d, const int32_t *ranks, int32_t nranks, const int32_t *nics,
                            int32_t nnics, host_work *work) {
  for (int32_t i = 0; i < nranks; i++) {
    size_t row = (size_t)i * (size_t)nnics;
    work->choices[i] = (choice){.rank = i,
                                .candidates = bny_topo_nics_best(d, d->levels->ranks[ranks[i]].node, nics, nnics,
                                                                 &work->paths[row], &work->candidate[row])};
  }
  qsort(work->choices, (size_t)nranks, sizeof *work->choices, choice_order);
}

static void nic_take(const bny_topo_derivation *d, int32_t rank, int32_t nic, bny_topo_path path) {
  bny_topo_rank *taker = &d->levels->ranks[rank];
  taker->nic = nic;
  taker->nic_path = path;
  taker->nic_gbytes_per_s = d->nic[nic].gbytes_per_s;
}

static bool host_serve(bny_topo_derivation *d, int32_t host) {
  const int32_t *ranks = &d->by_host[d->host_first[host]], *nics = &d->nics[d->nic_first[host]];
  int32_t nranks = bny_topo_ranks_on(d, host), nnics = bny_topo_nics_on(d, host);
  if (nranks == 0 || nnics == 0) return true;
  bny_topo_nics_class(d, nics, nnics);
  if (nnics > CELLS_MAX / nranks) {
    for (int32_t i = 0; i < nranks; i++)
      nic_take(d, ranks[i], nics[i % nnics],
               bny_topo_path_between(d->topo, d->levels->ranks[ranks[i]].node, nics[i % nnics]));
    return true;
  }
  size_t cells = (size_t)nranks * (size_t)nnics;
  host_work work = {.choices = malloc((size_t)nranks * sizeof *work.choices),
                    .paths = malloc(cells),
                    .candidate = malloc(cells * sizeof *work.candidate),
                    .load = calloc((size_t)nnics, sizeof *work.load)};
  bool good = work.choices && work.paths && work.candidate && work.load;
  if (good) candidates_find(d, ranks, nranks, nics, nnics, &work);
  for (int32_t c = 0; good && c < nranks; c++) {
    int32_t i = work.choices[c].rank, best = -1;
    for (int32_t j = 0; j < nnics; j++)
      if (work.candidate[i * nnics + j] && (best < 0 || work.load[j] < work.load[best])) best = j;
    if (best < 0) continue; /* no NIC may serve */
    work.load[best]++;
    nic_take(d, ranks[i], nics[best], (bny_topo_path)work.paths[i * nnics + best]);
  }
  free(work.choices);
  free(work.paths);
  free(work.candidate);
  free(work.load);
  return good;
}

/* Sets shares and rails. NICs are numbered in the order of the first rank that each serves. */
static void host_count(bny_topo_derivation *d, int32_t host, int32_t *rail_of, int32_t *shared) {
  bny_topo_rank *ranks = d->levels->ranks;
  int32_t rails = 0;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    int32_t nic = ranks[d->by_host[i]].nic;
    if (nic >= 0 && shared[nic]++ == 0) rail_of[nic] = rails++;
  }
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    bny_topo_rank *rank = &ranks[d->by_host[i]];
    rank->nic_shared = rank->nic >= 0 ? shared[rank->nic] : 0;
    rank->rail = rank->nic >= 0 ? rail_of[rank->nic] : -1;
  }
}

bool bny_topo_derive_nics(bny_topo_derivation *d) {
  ports_sum(d);
  bool good = true;
  for (int32_t h = 0; h < d->nhosts && good; h++) good = host_serve(d, h);
  int32_t *shared = calloc((size_t)d->topo->nnodes + 1, sizeof *shared);
  for (int32_t h = 0; h < d->nhosts && good && shared; h++) host_count(d, h, d->roots, shared);
  good = good && shared;
  free(shared);
  return good;
}

/* ---- rails ------------------------------------------------------------------------------------------------------- */

typedef struct vote {
  int32_t leaf, rail, host;
} vote;

static int vote_order(const void *a, const void *b) { return bny_topo_order(a, b, 3); }

/* Finds the rail that each leaf switch carries, into rail_of_leaf by node; -1: none. It is the rail of at least three
 * quarters of the switch's hosts. The switch must have more than two hosts, and at most one rail per host on
 * average. */
static void leaves_vote(const vote *votes, int32_t nvotes, int32_t *rail_of_leaf) {
  for (int32_t i = 0; i < nvotes;) {
    int32_t leaf = votes[i].leaf, all = 0, best = -1, most = 0;
    while (i < nvotes && votes[i].leaf == leaf) {
      int32_t rail = votes[i].rail, hosts = 0, last = -1;
      for (; i < nvotes && votes[i].leaf == leaf && votes[i].rail == rail; i++) {
        hosts += votes[i].host != last;
        last = votes[i].host;
      }
      all += hosts;
      if (hosts > most) most = hosts, best = rail;
    }
    rail_of_leaf[leaf] = all > 2 && 4 * most >= 3 * all ? best : -1;
  }
}

/* Handles a host whose NICs are cabled to the leaf switches of other rails. The host gets the rails of the switches, if
 * its NICs then have different rails. */
static void host_cross(bny_topo_derivation *d, int32_t host, const int32_t *rail_of_leaf, int32_t *nic_of_rail) {
  bny_topo_rank *ranks = d->levels->ranks;
  bool crossed = false, clash = false;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    int32_t rank = d->by_host[i], leaf = ranks[rank].nic >= 0 ? d->leaf[ranks[rank].nic] : -1;
    int32_t carried = leaf >= 0 ? rail_of_leaf[leaf] : -1;
    d->crossed[rank] = carried >= 0 && carried != ranks[rank].rail ? carried : -1;
    crossed = crossed || d->crossed[rank] >= 0;
  }
  for (int pass = 0; pass < 2 && crossed; pass++) {
    for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
      const bny_topo_rank *rank = &ranks[d->by_host[i]];
      int32_t rail = d->crossed[d->by_host[i]] >= 0 ? d->crossed[d->by_host[i]] : rank->rail;
      if (rail < 0) continue;
      if (pass == 0)
        nic_of_rail[rail] = rank->nic;
      else
        clash = clash || nic_of_rail[rail] != rank->nic;
    }
  }
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1] && !clash; i++)
    if (d->crossed[d->by_host[i]] >= 0) ranks[d->by_host[i]].rail = d->crossed[d->by_host[i]];
}

/* If the group spans several hosts, its longest path is the network. The speed of a rank is its share of its NIC. */
void bny_topo_net_look(const bny_topo_derivation *d, const bny_topo_level *level, bny_topo_group *group) {
  const bny_topo_rank *ranks = d->levels->ranks;
  const int32_t *members = &level->members[group->first];
  double least = 0, most = 0;
  group->all_to_all = true;
  for (int32_t i = 0; i < group->count; i++) {
    const bny_topo_rank *rank = &ranks[members[i]];
    double share = rank->nic_shared > 0 ? rank->nic_gbytes_per_s / rank->nic_shared : 0;
    least = i == 0 || share < least ? share : least;
    most = share > most ? share : most;
    if (rank->nic >= 0) {
      const bny_topo_sum *nic = &d->nic[rank->nic];
      group->latency_us = nic->latency_us > group->latency_us ? nic->latency_us : group->latency_us;
      group->source = nic->source < group->source ? nic->source : group->source;
    }
    if (rank->host != ranks[members[0]].host) group->path = BNY_TOPO_PATH_NET;
  }
  for (int32_t i = 1; i < group->count && group->path != BNY_TOPO_PATH_NET; i++) {
    bny_topo_path path = bny_topo_path_between(d->topo, ranks[members[0]].node, ranks[members[i]].node);
    group->path = path > group->path ? path : group->path;
  }
  group->gbytes_per_s = least;
  group->uniform = least >= 0.99 * most;
}

bool bny_topo_derive_rails(bny_topo_derivation *d) {
  bny_topo_levels *levels = d->levels;
  vote *votes = malloc(((size_t)levels->nranks + 1) * sizeof *votes);
  int32_t *rail_of_leaf = malloc(((size_t)d->topo->nnodes + 1) * sizeof *rail_of_leaf);
  int32_t *nic_of_rail = malloc(((size_t)levels->nranks + 1) * sizeof *nic_of_rail);
  bool good = votes && rail_of_leaf && nic_of_rail;
  int32_t nvotes = 0, hosts_with = 0;
  for (int32_t r = 0; r < levels->nranks && good; r++) {
    const bny_topo_rank *rank = &levels->ranks[r];
    d->crossed[r] = -1;
    if (rank->nic >= 0 && d->leaf[rank->nic] >= 0) votes[nvotes++] = (vote){d->leaf[rank->nic], rank->rail, rank->host};
  }
  if (good && nvotes > 0) {
    qsort(votes, (size_t)nvotes, sizeof *votes, vote_order);
    leaves_vote(votes, nvotes, rail_of_leaf);
  }
  for (int32_t h = 0; h < d->nhosts && good; h++) {
    if (nvotes > 0) host_cross(d, h, rail_of_leaf, nic_of_rail);
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++) {
      if (levels->ranks[d->by_host[i]].rail == 0) {
        hosts_with++;
        break;
      }
    }
  }
  if (good && hosts_with > 1) {
    for (int32_t r = 0; r < levels->nranks; r++) d->keys[r] = levels->ranks[r].rail;
    bny_topo_level *level = bny_topo_level_add(d, BNY_TOPO_LEVEL_RAIL, levels->nranks);
    good = level != NULL;
    for (int32_t g = 0; good && g < level->ngroups; g++) bny_topo_net_look(d, level, &level->groups[g]);
  }
  free(votes);
  free(rail_of_leaf);
  free(nic_of_rail);
  return good;
}
