/* SPDX-License-Identifier: Apache-2.0
 * Findings about NICs: their speeds, ports that are down, their place on PCI and their cables. */
#include <stdio.h>
#include <stdlib.h>

#include "topo/derive/findings.h"

/* ---- speeds ------------------------------------------------------------------------------------------------------ */

static int speed_order(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* Returns the most frequent speed, the fastest of several. Sorts `speeds`. */
static double usual_speed(double *speeds, int32_t count) {
  double usual = 0;
  int32_t most = 0;
  qsort(speeds, (size_t)count, sizeof *speeds, speed_order);
  for (int32_t i = 0; i < count;) {
    int32_t start = i;
    while (i < count && speeds[i] <= speeds[start]) i++;
    if (i - start >= most) most = i - start, usual = speeds[start];
  }
  return usual;
}

/* Reports ports whose speed bny_topo_net_speed() rejects as implausible. */
static bool nics_absurd(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "NICs with speeds that none has"};
  char text[BNY_TOPO_LABEL_BYTES];
  for (int32_t l = 0; l < d->topo->nlinks; l++) {
    const bny_topo_link *link = &d->topo->links[l];
    if (link->kind != BNY_TOPO_LINK_NET || link->gbytes_per_s <= 0 || bny_topo_net_speed(d->topo, link) > 0) continue;
    int32_t nic = bny_topo_ancestor(d->topo, link->from, BNY_TOPO_NIC);
    if (nic < 0) nic = bny_topo_ancestor(d->topo, link->to, BNY_TOPO_NIC);
    bny_topo_find(&s, BNY_TOPO_WARNING, nic,
                  "%s is said to run at %.4g GB/s, which no NIC does: its speed is not known",
                  bny_topo_find_label(d, nic, text), link->gbytes_per_s);
  }
  return bny_topo_find_end(&s);
}

/* Compares the NICs that serve ranks with one another, and with the PCI link that each is on. */
static bool nics_slower(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "slow NICs"};
  double *speeds = malloc(((size_t)d->levels->nranks + 1) * sizeof *speeds);
  if (!speeds) return false;
  int32_t known = 0;
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    if (d->levels->ranks[r].nic_gbytes_per_s > 0) speeds[known++] = d->levels->ranks[r].nic_gbytes_per_s;
  }
  double usual = known ? usual_speed(speeds, known) : 0;
  free(speeds);
  for (int32_t n = 0; n < d->topo->nnodes; n++) d->roots[n] = 0; /* NICs already examined */
  for (int32_t h = 0; h < d->nhosts; h++) {
    int32_t narrow = 0, first = -1;
    char text[BNY_TOPO_LABEL_BYTES];
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++) {
      const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
      if (rank->nic < 0 || rank->nic_gbytes_per_s <= 0 || d->roots[rank->nic]++) continue;
      double way = bny_topo_pci_way(d->topo, rank->nic);
      if (rank->nic_gbytes_per_s < BNY_TOPO_ALIKE * usual)
        bny_topo_find(&s, BNY_TOPO_WARNING, rank->nic,
                      "%s runs at %.4g GB/s, other NICs at %.4g: what is exchanged between hosts waits for it",
                      bny_topo_find_label(d, rank->nic, text), rank->nic_gbytes_per_s, usual);
      if (way > 0 && way < 0.75 * rank->nic_gbytes_per_s && narrow++ == 0) first = d->by_host[i];
    }
    if (narrow > 0) {
      const bny_topo_rank *rank = &d->levels->ranks[first];
      bny_topo_find(&s, BNY_TOPO_WARNING, rank->nic,
                    "%s has %.4g GB/s to the network behind a PCI link of %.4g: it cannot be filled, unless that "
                    "link was idle when it was read (%d NIC%s of its host)",
                    bny_topo_find_label(d, rank->nic, text), rank->nic_gbytes_per_s,
                    bny_topo_pci_way(d->topo, rank->nic), narrow, bny_topo_plural(narrow));
    }
  }
  return bny_topo_find_end(&s);
}

/* ---- ports that are down ----------------------------------------------------------------------------------------- */

/* Reports one port, or a NIC without ports. `first` is the first rank that the NIC serves, or -1. */
static void port_down(bny_topo_finder *s, int32_t node, int32_t nic, int32_t first) {
  const bny_topo_derivation *d = s->d;
  int32_t served = first >= 0 ? d->levels->ranks[first].nic_shared : 0;
  char port[BNY_TOPO_LABEL_BYTES], text[BNY_TOPO_LABEL_BYTES], rated[48] = "";
  double speed = bny_topo_port_rated(d->topo, node);
  if (speed > 0) snprintf(rated, sizeof rated, " (%.4g GB/s if it were up)", speed);
  bny_topo_find_label(d, node, port);
  if (d->nic[nic].gbytes_per_s > 0)
    bny_topo_find(s, BNY_TOPO_INFO, node, "%s is down%s: the NIC has %.4g GB/s over its other ports", port, rated,
                  d->nic[nic].gbytes_per_s);
  else if (served == 0)
    bny_topo_find(s, BNY_TOPO_INFO, node, "%s is down%s: it serves no %s", port, rated, bny_topo_members_word(d));
  else
    bny_topo_find(s, d->levels->rank_kind == BNY_TOPO_GPU ? BNY_TOPO_FAULT : BNY_TOPO_WARNING, node,
                  "%s is down%s: %s%s, which its NIC serves, reach%s other hosts only over what serves others", port,
                  rated, bny_topo_find_label(d, d->levels->ranks[first].node, text),
                  served > 2    ? " and others"
                  : served == 2 ? " and another"
                                : "",
                  served > 1 ? "" : "es");
}

static bool ports_down(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "ports that are down"};
  int32_t *first = d->roots; /* by NIC: the first rank that it serves */
  for (int32_t n = 0; n < d->topo->nnodes; n++) first[n] = -1;
  for (int32_t r = d->levels->nranks - 1; r >= 0; r--) {
    if (d->levels->ranks[r].nic >= 0) first[d->levels->ranks[r].nic] = r;
  }
  for (int32_t n = 0; n < d->topo->nnodes; n++) {
    int32_t nic = bny_topo_port_down(d->topo, n) ? bny_topo_ancestor(d->topo, n, BNY_TOPO_NIC) : -1;
    if (nic >= 0) port_down(&s, n, nic, first[nic]);
  }
  return bny_topo_find_end(&s);
}

/* ---- which NIC --------------------------------------------------------------------------------------------------- */

static bool knows_places(const bny_topo_derivation *d, int32_t node) { /* its NUMA node or package */
  return bny_topo_ancestor(d->topo, node, BNY_TOPO_NUMA) >= 0 ||
         bny_topo_ancestor(d->topo, node, BNY_TOPO_PACKAGE) >= 0;
}

/* Counts a host's ranks whose nearest NIC is on another NUMA node. Also finds the most ranks that share one NIC. */
static void host_nics(const bny_topo_derivation *d, int32_t host, int32_t *far, int32_t *shared) {
  *far = *shared = 0;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
    *shared = rank->nic_shared > *shared ? rank->nic_shared : *shared;
    *far += rank->nic_path == BNY_TOPO_PATH_SYS && knows_places(d, rank->node) && d->levels->rank_kind == BNY_TOPO_GPU;
  }
}

static bool nics_missing(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "hosts whose NICs are missing, far or shared"};
  bny_topo_hosts_alike without = {0}, with_far = {0}, with_shared = {0};
  int32_t far = 0, shared = 0, far_most = 0, shared_most = 0;
  char text[BNY_TOPO_LABEL_BYTES];
  for (int32_t h = 0; h < d->nhosts; h++) {
    if (d->host_first[h + 1] == d->host_first[h]) continue;
    if (d->nic_first[h + 1] == d->nic_first[h]) {
      bny_topo_hosts_note(&without, h);
      continue;
    }
    host_nics(d, h, &far, &shared);
    if (far > 0) bny_topo_hosts_note(&with_far, h);
    if (shared > 1) bny_topo_hosts_note(&with_shared, h);
    far_most = far > far_most ? far : far_most;
    shared_most = shared > shared_most ? shared : shared_most;
  }
  if (without.count > 0 && d->nhosts > 1)
    bny_topo_find(&s, BNY_TOPO_FAULT, d->hosts[without.first],
                  "%s: no NIC is known there, and %ss on them cannot reach those of other hosts at speed",
                  bny_topo_hosts_label(d, &without, text), bny_topo_members_word(d));
  else if (without.count > 0)
    bny_topo_find(&s, BNY_TOPO_INFO, d->hosts[without.first], "%s has no NIC that is known: it works alone",
                  bny_topo_hosts_label(d, &without, text));
  if (with_far.count > 0)
    bny_topo_find(
        &s, BNY_TOPO_WARNING, d->hosts[with_far.first],
        "%s: up to %d GPU%s of a host reach no NIC but across NUMA nodes, and what they send to other hosts crosses "
        "the link "
        "between CPUs",
        bny_topo_hosts_label(d, &with_far, text), far_most, bny_topo_plural(far_most));
  if (with_shared.count > 0)
    bny_topo_find(&s, BNY_TOPO_INFO, d->hosts[with_shared.first],
                  "%s: up to %d %ss share a NIC, each then has that part of its speed between hosts",
                  bny_topo_hosts_label(d, &with_shared, text), shared_most, bny_topo_members_word(d));
  return bny_topo_find_end(&s);
}

static bool nics_cabled(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "NICs that are not cabled as others are"};
  bool fabric = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_LEAF) != NULL;
  char text[BNY_TOPO_LABEL_BYTES], nic[BNY_TOPO_LABEL_BYTES];
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    const bny_topo_rank *rank = &d->levels->ranks[r];
    if (rank->nic < 0) continue;
    char serves[BNY_TOPO_LABEL_BYTES + 16] = "";
    if (rank->nic != rank->node)
      snprintf(serves, sizeof serves, ", which serves %s,", bny_topo_find_label(d, rank->node, text));
    if (fabric && d->leaf[rank->nic] < 0)
      bny_topo_find(&s, BNY_TOPO_WARNING, rank->nic, "%s%s is on no switch: its port is down or its cable elsewhere",
                    bny_topo_find_label(d, rank->nic, nic), serves);
    if (d->crossed[r] >= 0)
      bny_topo_find(&s, BNY_TOPO_WARNING, rank->nic, "%s%s is on the leaf switch of rail %d: %s",
                    bny_topo_find_label(d, rank->nic, nic), serves, d->crossed[r],
                    d->crossed[r] == rank->rail ? "cables are crossed, the rail was taken from the switch"
                                                : "what it exchanges within its own rail crosses the spine");
  }
  return bny_topo_find_end(&s);
}

bool bny_topo_find_nics(bny_topo_derivation *d) {
  return ports_down(d) && nics_absurd(d) && nics_slower(d) && nics_cabled(d) && nics_missing(d);
}
