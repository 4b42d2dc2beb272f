/* SPDX-License-Identifier: Apache-2.0
 * Findings about NICs: missing ones, their speeds, their ports and the GPUs that they serve. */
#include <stdio.h>
#include <string.h>

#include "topo/derive/derive.h"

enum { PAIRS_MAX = 1 << 16, NEAR_FACTOR = 4096 }; /* GPUs times NICs of a host that are compared pair by pair */

/* ---- missing NICs ------------------------------------------------------------------------------------------------ */

/* Returns the number of NICs that serve ranks of a host. Resets the elements of d->roots that it sets. */
static int32_t nics_serving(const bny_topo_derivation *d, int32_t host) {
  int32_t serving = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
      int32_t nic = d->levels->ranks[d->by_host[i]].nic;
      if (nic >= 0 && pass == 0) d->roots[nic] = -1;
      if (nic >= 0 && pass == 1 && d->roots[nic]++ < 0) serving++;
    }
  }
  return serving;
}

/* Returns a rating of a rank's nearest NICs; lower is better. It is NEAR_FACTOR times the path type, minus the number
 * of NICs with that path type. */
static double nearness(const bny_topo_derivation *d, int32_t host, int32_t rank) {
  int32_t nearest = BNY_TOPO_PATHS, count = 0;
  for (int32_t i = d->nic_first[host]; i < d->nic_first[host + 1]; i++) {
    int32_t path = (int32_t)bny_topo_path_between(d->topo, d->levels->ranks[rank].node, d->nics[i]);
    count = path < nearest ? 1 : count + (path == nearest);
    nearest = path < nearest ? path : nearest;
  }
  return (double)nearest * NEAR_FACTOR - (count < NEAR_FACTOR ? count : NEAR_FACTOR - 1);
}

/* Returns whether the NICs that serve a host's ranks have the same model and the same known speed. */
static bool are_alike(const bny_topo_derivation *d, int32_t host) {
  const bny_topo_rank *first = &d->levels->ranks[d->by_host[d->host_first[host]]];
  if (first->nic < 0) return false;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
    const char *a = d->topo->nodes[first->nic].model, *b = d->topo->nodes[rank->nic].model;
    if (rank->nic_gbytes_per_s <= 0 || (a == NULL) != (b == NULL) || (a && strcmp(a, b) != 0) ||
        rank->nic_gbytes_per_s < first->nic_gbytes_per_s || rank->nic_gbytes_per_s > first->nic_gbytes_per_s)
      return false;
  }
  return true;
}

/* Returns whether ranks and NICs of a host form pairs: each rank has its own NIC on the same path type, and no NIC
 * remains. */
static bool has_pairs(const bny_topo_derivation *d, int32_t host) {
  const bny_topo_rank *first = &d->levels->ranks[d->by_host[d->host_first[host]]];
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
    if (rank->nic_shared != 1 || rank->nic_path != first->nic_path) return false;
  }
  return bny_topo_nics_on(d, host) == bny_topo_ranks_on(d, host);
}

/* Finds GPUs with fewer near NICs than three quarters of the host's GPUs have below their host bridges. Returns false
 * if there is no such GPU. */
static bool gpus_without(bny_topo_finder *s, int32_t host) {
  const bny_topo_derivation *d = s->d;
  int32_t nranks = bny_topo_ranks_on(d, host), times, found = 0;
  if (nranks < 4 || nranks > PAIRS_MAX / bny_topo_nics_on(d, host) || has_pairs(d, host)) return false;
  double *near = d->values;
  for (int32_t i = 0; i < nranks; i++)
    near[i] = near[nranks + i] = nearness(d, host, d->by_host[d->host_first[host] + i]);
  double usual = bny_topo_usual(near, nranks, &times);
  double farthest = (are_alike(d, host) ? BNY_TOPO_PATH_PHB : BNY_TOPO_PATH_PXB) * (double)NEAR_FACTOR;
  for (int32_t i = 0; 4 * times >= 3 * nranks && usual < farthest && i < nranks; i++) {
    if (near[nranks + i] <= usual) continue;
    found++;
    bny_topo_find(s, d->levels->ranks[d->by_host[d->host_first[host] + i]].node,
                  "no NIC as near as those of the other GPUs, or fewer of them");
  }
  return found > 0;
}

/* Returns the number of NICs that serve ranks in most hosts; 0 if there is no such number. A model of a network needs a
 * larger majority, because its hosts differ more by design. */
static int32_t usual_nics(const bny_topo_derivation *d) {
  int32_t hosts = 0, times = 0;
  for (int32_t h = 0; h < d->nhosts; h++)
    if (bny_topo_ranks_on(d, h) > 0) d->values[hosts++] = nics_serving(d, h);
  int32_t usual = (int32_t)bny_topo_usual(d->values, hosts, &times);
  bool most = d->levels->rank_kind == BNY_TOPO_GPU ? 2 * times > hosts : 4 * times >= 3 * hosts;
  return hosts > 2 && most ? usual : 0;
}

static bool has_port_down(const bny_topo_derivation *d, int32_t host) { /* as found by an earlier row */
  for (int32_t n = 0; n < d->topo->nnodes; n++)
    if (d->host_of[n] == d->hosts[host] && d->topo->nodes[n].kind == BNY_TOPO_PORT &&
        bny_topo_is_found(d, "port-down", n))
      return true;
  return false;
}

void bny_topo_find_nic_missing(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  bool gpus = d->levels->rank_kind == BNY_TOPO_GPU;
  int32_t usual = gpus || d->levels->rank_kind == BNY_TOPO_NIC ? usual_nics(d) : 0;
  for (int32_t h = 0; h < d->nhosts; h++) {
    int32_t nranks = bny_topo_ranks_on(d, h);
    if (nranks == 0 || bny_topo_nics_on(d, h) == 0) continue;
    int32_t serving = nics_serving(d, h);
    if (gpus && gpus_without(s, h)) continue;
    /* The NIC of a lost GPU serves no rank. */
    if (serving == nranks && bny_topo_is_found(d, "gpu-lost", d->hosts[h])) continue;
    if (usual > serving && 2 * serving >= usual)
      bny_topo_find(s, d->hosts[h], "%d NIC%s, most hosts have %d", serving, bny_topo_plural(serving), usual);
    else if (gpus && nranks >= 4 && serving == nranks - 1 && are_alike(d, h) && !has_port_down(d, h))
      bny_topo_find(s, d->hosts[h], "%d NICs serve %d GPUs, so two share one", serving, nranks);
  }
}

/* Finds hosts where one NIC serves at least twice as many GPUs as most others, all with equal path types. Another NIC
 * at the same position may be missing. */
void bny_topo_find_nic_uneven(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t h = 0; h < d->nhosts && d->levels->rank_kind == BNY_TOPO_GPU; h++) {
    int32_t nranks = bny_topo_ranks_on(d, h), least = INT32_MAX, most = 0, few = 0, serving;
    if (nranks < 4 || bny_topo_nics_on(d, h) == 0 || (serving = nics_serving(d, h)) < 3 || !are_alike(d, h)) continue;
    bool like = !bny_topo_is_found(d, "nic-missing", d->hosts[h]) && !has_port_down(d, h);
    const bny_topo_rank *first = &d->levels->ranks[d->by_host[d->host_first[h]]];
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1] && like; i++) {
      const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
      like = rank->nic_path == first->nic_path && rank->nic_path < BNY_TOPO_PATH_SYS &&
             !bny_topo_is_found(d, "nic-missing", rank->node);
      least = rank->nic_shared < least ? rank->nic_shared : least;
      most = rank->nic_shared > most ? rank->nic_shared : most;
    }
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1] && like; i++)
      few += d->levels->ranks[d->by_host[i]].nic_shared == least;
    if (like && most >= 2 * least && 2 * few > serving * least)
      bny_topo_find(s, d->hosts[h], "a NIC serves %d GPUs, and most others serve %d", most, least);
  }
}

void bny_topo_find_nic_none(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t h = 0; h < d->nhosts && d->nhosts > 1; h++) {
    if (bny_topo_ranks_on(d, h) > 0 && bny_topo_nics_on(d, h) == 0)
      bny_topo_find(s, d->hosts[h], "no NIC is known there, and its %ss cannot reach other hosts at speed",
                    bny_topo_members_word(d));
  }
}

void bny_topo_find_nic_alone(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  if (d->nhosts == 1 && bny_topo_ranks_on(d, 0) > 0 && bny_topo_nics_on(d, 0) == 0)
    bny_topo_find(s, d->hosts[0], "no NIC is known, so it works alone");
}

/* ---- the NIC of each GPU ----------------------------------------------------------------------------------------- */

/* Returns whether the NUMA node or the package of a device is known. */
static bool knows_places(const bny_topo_derivation *d, int32_t node) {
  return bny_topo_ancestor(d->topo, node, BNY_TOPO_NUMA) >= 0 ||
         bny_topo_ancestor(d->topo, node, BNY_TOPO_PACKAGE) >= 0;
}

void bny_topo_find_nic_far(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t h = 0; h < d->nhosts && d->levels->rank_kind == BNY_TOPO_GPU; h++) {
    int32_t far = 0;
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++) {
      const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
      far += rank->nic_path == BNY_TOPO_PATH_SYS && knows_places(d, rank->node);
    }
    if (far > 0)
      bny_topo_find(s, d->hosts[h], "%d of %d GPUs reach a NIC only across NUMA nodes, over the link between CPUs", far,
                    bny_topo_ranks_on(d, h));
  }
}

void bny_topo_find_nic_shared(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t h = 0; h < d->nhosts; h++) {
    int32_t most = 0;
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++) {
      int32_t shared = d->levels->ranks[d->by_host[i]].nic_shared;
      most = shared > most ? shared : most;
    }
    if (most > 1)
      bny_topo_find(s, d->hosts[h], "up to %d %ss share a NIC, and each has that part of its speed between hosts", most,
                    bny_topo_members_word(d));
  }
}

/* ---- speeds ------------------------------------------------------------------------------------------------------ */

void bny_topo_find_nic_implausible(bny_topo_finder *s) {
  const bny_topo *topo = s->d->topo;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    if (link->kind != BNY_TOPO_LINK_NET || link->gbytes_per_s <= 0 || bny_topo_net_speed(topo, link) > 0) continue;
    int32_t nic = bny_topo_ancestor(topo, link->from, BNY_TOPO_NIC);
    bny_topo_find(s, nic >= 0 ? nic : bny_topo_ancestor(topo, link->to, BNY_TOPO_NIC),
                  "it is said to run at %.0f GB/s, which no NIC does", link->gbytes_per_s);
  }
}

/* Returns the usual speed of the NICs that serve ranks. *known counts the ranks whose NIC has a speed. */
static double usual_speed(const bny_topo_derivation *d, int32_t *known, int32_t *times) {
  const bny_topo_levels *levels = d->levels;
  *known = *times = 0;
  for (int32_t r = 0; r < levels->nranks; r++)
    if (levels->ranks[r].nic_gbytes_per_s > 0) d->values[(*known)++] = levels->ranks[r].nic_gbytes_per_s;
  return bny_topo_usual(d->values, *known, times);
}

/* Returns whether a rank is the first that its NIC serves. The caller clears d->roots before the first call. */
static bool is_first(const bny_topo_derivation *d, const bny_topo_rank *rank) {
  return rank->nic >= 0 && d->roots[rank->nic]++ == 0;
}

/* Sets d->roots to the number of ranks that each NIC serves. */
static void count_served(const bny_topo_derivation *d) {
  for (int32_t n = 0; n < d->topo->nnodes; n++) d->roots[n] = 0;
  for (int32_t r = 0; r < d->levels->nranks; r++) (void)is_first(d, &d->levels->ranks[r]);
}

/* Returns the speed that three quarters of a NIC's siblings have; 0 if there is none. Siblings have the same host,
 * model and name stem, and there must be at least four. */
static double siblings_speed(const bny_topo_derivation *d, int32_t nic) {
  enum { SIBLINGS_MAX = 256 };
  const bny_topo_node *node = &d->topo->nodes[nic];
  int32_t host = d->host_number[d->host_of[nic]], count = 0, times;
  double speeds[SIBLINGS_MAX];
  for (int32_t i = d->nic_first[host]; i < d->nic_first[host + 1] && count < SIBLINGS_MAX; i++) {
    const bny_topo_node *other = &d->topo->nodes[d->nics[i]];
    bool same_model =
        node->model && other->model ? strcmp(node->model, other->model) == 0 : node->model == other->model;
    if (same_model && bny_topo_same_stem(node->name, other->name)) speeds[count++] = d->nic[d->nics[i]].gbytes_per_s;
  }
  double usual = bny_topo_usual(speeds, count, &times);
  return count >= 4 && 4 * times >= 3 * count ? usual : 0;
}

void bny_topo_find_nic_slow(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  int32_t known, times;
  double of_ranks = usual_speed(d, &known, &times);
  count_served(d);
  for (int32_t i = 0; i < d->nnics; i++) {
    int32_t nic = d->nics[i];
    double speed = d->nic[nic].gbytes_per_s;
    double usual =
        d->roots[nic] > 0 && (2 * times > known || 2 * speed <= of_ranks) ? of_ranks : siblings_speed(d, nic);
    if (speed > 0 && speed < BNY_TOPO_ALIKE * usual)
      bny_topo_find(s, nic, "it runs at %.4g GB/s, other NICs at %.4g: what hosts exchange waits for it", speed, usual);
  }
}

/* Returns whether a NIC has a network link or a port, but no known speed. */
static bool is_unknown(const bny_topo_derivation *d, int32_t nic) {
  bool linked = false;
  if (d->nic[nic].gbytes_per_s > 0 || d->nic[nic].down > 0) return false;
  for (int32_t l = bny_topo_first_link(d->topo, nic); l >= 0; l = bny_topo_next_link(d->topo, nic, l)) {
    const bny_topo_link *link = &d->topo->links[l];
    linked = linked || link->kind == BNY_TOPO_LINK_NET;
    if (link->kind == BNY_TOPO_LINK_NET && link->gbytes_per_s > 0) return false; /* implausible */
  }
  return linked;
}

/* A NIC should have a known speed if it serves a GPU and other serving NICs have one, or if its siblings have one. A
 * file with ports of RDMA devices contains their speeds. */
void bny_topo_find_nic_speed(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  int32_t known, times;
  usual_speed(s->d, &known, &times);
  count_served(d);
  for (int32_t i = 0; i < d->nnics && d->levels->rank_kind != BNY_TOPO_NIC; i++) {
    int32_t nic = d->nics[i];
    bool serves = d->roots[nic] > 0;
    if (!is_unknown(d, nic)) continue;
    if ((serves && 2 * known > d->levels->nranks) || siblings_speed(d, nic) > 0)
      bny_topo_find(s, nic, "it has no speed, and other NICs have one");
    else if (serves && bny_topo_is_rdma(d->topo->nodes[nic].name))
      bny_topo_find(s, nic, "it has no speed");
  }
}

void bny_topo_find_nic_narrow(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t n = 0; n < d->topo->nnodes; n++) d->roots[n] = 0;
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    const bny_topo_rank *rank = &d->levels->ranks[r];
    if (!is_first(d, rank) || rank->nic_gbytes_per_s <= 0) continue;
    bny_topo_source source = BNY_TOPO_MEASURED;
    double way = bny_topo_pci_way(d->topo, rank->nic, &source);
    if (way > 0 && way < 0.75 * rank->nic_gbytes_per_s)
      bny_topo_find(s, rank->nic,
                    "%.4g GB/s to the network behind a PCI link of %.4g, unless that link was idle when "
                    "it was read",
                    rank->nic_gbytes_per_s, way);
  }
}

/* ---- ports that are down ----------------------------------------------------------------------------------------- */

/* Returns whether a NIC that is down would serve a GPU of its host if it were up. This holds if two GPUs share another
 * NIC that is not faster. */
static bool is_missed(const bny_topo_derivation *d, int32_t nic, double rated) {
  int32_t host = d->host_of[nic] < 0 ? -1 : d->host_number[d->host_of[nic]];
  for (int32_t i = host < 0 ? 0 : d->host_first[host]; host >= 0 && i < d->host_first[host + 1]; i++) {
    const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
    if (rank->nic_shared == 2 && bny_topo_ranks_on(d, host) == nics_serving(d, host) + 1 &&
        rated >= BNY_TOPO_ALIKE * rank->nic_gbytes_per_s)
      return true;
  }
  return false;
}

/* Reports the ports, and the NICs without ports, that are down. `serving` selects those that a GPU needs, or the
 * others. */
static void ports_down(bny_topo_finder *s, bool serving) {
  const bny_topo_derivation *d = s->d;
  int32_t *first = d->keys; /* by NIC: the first rank that it serves */
  for (int32_t n = 0; n < d->topo->nnodes; n++) first[n] = -1;
  for (int32_t r = d->levels->nranks - 1; r >= 0; r--)
    if (d->levels->ranks[r].nic >= 0) first[d->levels->ranks[r].nic] = r;
  for (int32_t n = 0; n < d->topo->nnodes; n++) {
    int32_t nic = bny_topo_port_down(d->topo, n) ? bny_topo_ancestor(d->topo, n, BNY_TOPO_NIC) : -1;
    if (nic < 0) continue;
    int32_t served = first[nic] >= 0 ? d->levels->ranks[first[nic]].nic_shared : 0;
    double speed = bny_topo_port_rated(d->topo, n);
    char text[BNY_TOPO_LABEL_BYTES], rated[48] = "";
    if (speed > 0) snprintf(rated, sizeof rated, " (%.4g GB/s if it were up)", speed);
    bool others = d->nic[nic].gbytes_per_s > 0;
    bool of_gpus = d->levels->rank_kind == BNY_TOPO_GPU && !others;
    bool missed = of_gpus && served == 0 && speed > 0 && is_missed(d, nic, speed);
    if (serving != (missed || (of_gpus && served > 0))) continue;
    if (others)
      bny_topo_find(s, n, "it is down%s, and the NIC has %.4g GB/s over its other ports", rated,
                    d->nic[nic].gbytes_per_s);
    else if (missed)
      bny_topo_find(s, n, "it is down%s, so two GPUs share another NIC", rated);
    else if (served == 0)
      bny_topo_find(s, n, "it is down%s, and serves no %s", rated, bny_topo_members_word(d));
    else
      bny_topo_find(s, n, "it is down%s: %s%s, which its NIC serves, reach%s other hosts only over what serves others",
                    rated, bny_topo_find_label(d, d->levels->ranks[first[nic]].node, text),
                    served > 2    ? " and others"
                    : served == 2 ? " and another"
                                  : "",
                    served > 1 ? "" : "es");
  }
}

void bny_topo_find_port_down(bny_topo_finder *s) { ports_down(s, true); }

void bny_topo_find_port_unused(bny_topo_finder *s) { ports_down(s, false); }
