/* SPDX-License-Identifier: Apache-2.0
 * What is wrong with a machine, or only worth knowing, each with what follows from it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/derive.h"

enum { OF_ONE_SORT_MAX = 32, TEXT_BYTES = 400, LABEL_BYTES = 120 };

static const double alike = 0.95; /* a speed below this part of another is slower */

/* Findings of one sort; those beyond a few are only counted. */
typedef struct sort {
  bny_topo_derivation *d;
  const char *what; /* of those that were not listed */
  int32_t found;
  bool no_memory;
} sort;

static void put(sort *s, bny_topo_severity severity, int32_t node, const char *text) {
  bny_topo_levels *levels = s->d->levels;
  if (levels->nfindings == levels->findings_capacity) {
    int32_t wanted = levels->findings_capacity ? 2 * levels->findings_capacity : 16;
    bny_topo_finding *grown = realloc(levels->findings, (size_t)wanted * sizeof *grown);
    s->no_memory = s->no_memory || !grown;
    if (!grown) return;
    levels->findings = grown;
    levels->findings_capacity = wanted;
  }
  char *copy = strdup(text);
  s->no_memory = s->no_memory || !copy;
  if (copy) levels->findings[levels->nfindings++] = (bny_topo_finding){severity, node, copy};
}

static void find(sort *s, bny_topo_severity severity, int32_t node, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void find(sort *s, bny_topo_severity severity, int32_t node, const char *format, ...) {
  char text[TEXT_BYTES];
  if (s->found++ >= OF_ONE_SORT_MAX) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  put(s, severity, node, text);
}

static bool done(sort *s) {
  if (s->found > OF_ONE_SORT_MAX) {
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "and %d more of this sort: %s", s->found - OF_ONE_SORT_MAX, s->what);
    put(s, BNY_TOPO_WARNING, -1, text);
  }
  return !s->no_memory;
}

/* "host3 GPU2", or "GPU2" where there is one host. A port is known by its NIC. */
static const char *label(const bny_topo_derivation *d, int32_t node, char text[LABEL_BYTES]) {
  const bny_topo *topo = d->topo;
  int32_t host = d->host_of[node], nic = topo->nodes[node].kind == BNY_TOPO_PORT ? topo->nodes[node].parent : -1;
  bool named = d->nhosts > 1 && host >= 0 && host != node;
  snprintf(text, LABEL_BYTES, "%s%s%.40s%s%.30s", named ? topo->nodes[host].name : "", named ? " " : "",
           nic >= 0 ? topo->nodes[nic].name : topo->nodes[node].name, nic >= 0 ? " port " : "",
           nic >= 0 ? topo->nodes[node].name : "");
  return text;
}

static const char *plural(int32_t count) { return count == 1 ? "" : "s"; }

static const char *members_word(const bny_topo_derivation *d) {
  return d->levels->rank_kind == BNY_TOPO_GPU ? "GPU" : "rank";
}

/* ---- NVLinks ----------------------------------------------------------------------------------------------------- */

static const char *links_word(const bny_topo_derivation *d, int32_t node) {
  for (int32_t l = bny_topo_first_link(d->topo, node); l >= 0; l = bny_topo_next_link(d->topo, node, l)) {
    if (d->topo->links[l].kind == BNY_TOPO_LINK_XGMI) return "xGMI link";
  }
  return "NVLink";
}

/* Members of an island or domain that have fewer links than another. */
static void fewer_in_group(sort *s, const bny_topo_level *level, const bny_topo_group *group, const char *word) {
  const bny_topo_rank *ranks = s->d->levels->ranks;
  const int32_t *members = &level->members[group->first];
  char text[LABEL_BYTES];
  int32_t most = 0;
  for (int32_t i = 0; i < group->count; i++) most = ranks[members[i]].nvlinks > most ? ranks[members[i]].nvlinks : most;
  for (int32_t i = 0; i < group->count && group->count > 1; i++) {
    const bny_topo_rank *rank = &ranks[members[i]];
    if (rank->nvlinks < most)
      find(s, BNY_TOPO_WARNING, rank->node, "%s has %d of %d %ss: the whole %s runs at its pace",
           label(s->d, rank->node, text), rank->nvlinks, most, links_word(s->d, rank->node), word);
  }
}

/* A GPU alone where most of its host's are joined. */
static void left_alone(sort *s, const bny_topo_level *islands, int32_t host) {
  const bny_topo_derivation *d = s->d;
  int32_t joined = 0, alone = 0;
  char text[LABEL_BYTES];
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
      const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
      bool single = islands->groups[islands->group_of[d->by_host[i]]].count == 1 && rank->nvlinks == 0;
      if (pass == 0 && single)
        alone++;
      else if (pass == 0)
        joined++;
      else if (single && alone < joined)
        find(s, BNY_TOPO_WARNING, rank->node,
             "%s has no NVLink that works, %d GPUs of its host have: what it shares with them goes over PCIe, and a "
             "collective of the whole host runs at that pace",
             label(d, rank->node, text), joined);
    }
  }
}

static bool nvlinks_fewer(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "GPUs with fewer NVLinks than others"};
  const bny_topo_level *islands = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_ISLAND);
  const bny_topo_level *domains = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_DOMAIN);
  const bny_topo_level *joined = domains ? domains : islands;
  if (!joined) return true;
  for (int32_t g = 0; g < joined->ngroups; g++)
    fewer_in_group(&s, joined, &joined->groups[g], domains || joined->groups[g].all_to_all ? "domain" : "island");
  for (int32_t h = 0; h < d->nhosts; h++) left_alone(&s, islands, h);
  return done(&s);
}

static bool peers_refused(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "NVLinks without peer access"};
  char from[LABEL_BYTES], to[LABEL_BYTES];
  for (int32_t l = 0; l < d->topo->nlinks; l++) {
    const bny_topo_link *link = &d->topo->links[l];
    if ((link->kind == BNY_TOPO_LINK_NVLINK || link->kind == BNY_TOPO_LINK_XGMI) && bny_topo_link_refused(link))
      find(&s, BNY_TOPO_FAULT, link->from,
           "%s and %s have %d %s%s but no peer access: what they exchange goes over PCIe or the host's memory",
           label(d, link->from, from), label(d, link->to, to), link->count, links_word(d, link->from),
           plural(link->count));
  }
  return done(&s);
}

/* Two GPUs that an island joins, though not directly. */
static bool islands_partial(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "islands whose GPUs are not linked each to each"};
  const bny_topo_level *islands = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_ISLAND);
  for (int32_t g = 0; islands && g < islands->ngroups; g++) {
    const bny_topo_group *group = &islands->groups[g];
    int32_t first = d->levels->ranks[islands->members[group->first]].node;
    char text[LABEL_BYTES];
    if (group->count > 1 && !group->all_to_all)
      find(&s, BNY_TOPO_INFO, first,
           "%s and %d other GPUs are joined by %ss, but not each to each: some pairs are as far as %s, and rings or "
           "trees along the links are faster than exchanges between all",
           label(d, first, text), group->count - 1, links_word(d, first), bny_topo_path_name(group->path));
  }
  return done(&s);
}

/* ---- links that are slower than they could be -------------------------------------------------------------------- */

static bool links_below_rating(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "links trained below their rating"};
  char from[LABEL_BYTES], to[LABEL_BYTES];
  for (int32_t l = 0; l < d->topo->nlinks; l++) {
    const bny_topo_link *link = &d->topo->links[l];
    if (link->gbytes_per_s <= 0 || link->gbytes_per_s >= alike * link->rated_gbytes_per_s) continue;
    find(&s, BNY_TOPO_WARNING, link->from,
         "the %s link of %s to %s runs at %.4g GB/s, it is rated %.4g: all that crosses it takes %.1f times as long",
         bny_topo_link_name(link->kind), label(d, link->from, from), label(d, link->to, to), link->gbytes_per_s,
         link->rated_gbytes_per_s, link->rated_gbytes_per_s / link->gbytes_per_s);
  }
  return done(&s);
}

static int speed_order(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* The most frequent, of equals the fastest; sorts. */
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

/* Ports whose speed was not counted: see bny_topo_net_speed. */
static bool nics_absurd(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "NICs with speeds that none has"};
  char text[LABEL_BYTES];
  for (int32_t l = 0; l < d->topo->nlinks; l++) {
    const bny_topo_link *link = &d->topo->links[l];
    if (link->kind != BNY_TOPO_LINK_NET || link->gbytes_per_s <= 0 || bny_topo_net_speed(d->topo, link) > 0) continue;
    int32_t nic = bny_topo_ancestor(d->topo, link->from, BNY_TOPO_NIC);
    if (nic < 0) nic = bny_topo_ancestor(d->topo, link->to, BNY_TOPO_NIC);
    find(&s, BNY_TOPO_WARNING, nic, "%s is said to run at %.4g GB/s, which no NIC does: its speed is not known",
         label(d, nic, text), link->gbytes_per_s);
  }
  return done(&s);
}

/* NICs that serve ranks: against one another, and against the PCI link that they hang on. */
static bool nics_slower(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "slow NICs"};
  double *speeds = malloc(((size_t)d->levels->nranks + 1) * sizeof *speeds);
  if (!speeds) return false;
  int32_t known = 0;
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    if (d->levels->ranks[r].nic_gbytes_per_s > 0) speeds[known++] = d->levels->ranks[r].nic_gbytes_per_s;
  }
  double usual = known ? usual_speed(speeds, known) : 0;
  free(speeds);
  for (int32_t n = 0; n < d->topo->nnodes; n++) d->roots[n] = 0; /* which NICs were looked at */
  for (int32_t h = 0; h < d->nhosts; h++) {
    int32_t narrow = 0, first = -1;
    char text[LABEL_BYTES];
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++) {
      const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
      if (rank->nic < 0 || rank->nic_gbytes_per_s <= 0 || d->roots[rank->nic]++) continue;
      double way = bny_topo_pci_way(d->topo, rank->nic);
      if (rank->nic_gbytes_per_s < alike * usual)
        find(&s, BNY_TOPO_WARNING, rank->nic,
             "%s runs at %.4g GB/s, other NICs at %.4g: what is exchanged between hosts waits for it",
             label(d, rank->nic, text), rank->nic_gbytes_per_s, usual);
      if (way > 0 && way < 0.75 * rank->nic_gbytes_per_s && narrow++ == 0) first = d->by_host[i];
    }
    if (narrow > 0) {
      const bny_topo_rank *rank = &d->levels->ranks[first];
      find(&s, BNY_TOPO_WARNING, rank->nic,
           "%s has %.4g GB/s to the network behind a PCI link of %.4g: it cannot be filled, unless that "
           "link was idle when it was read (%d NIC%s of its host)",
           label(d, rank->nic, text), rank->nic_gbytes_per_s, bny_topo_pci_way(d->topo, rank->nic), narrow,
           plural(narrow));
    }
  }
  return done(&s);
}

/* ---- which NIC --------------------------------------------------------------------------------------------------- */

static bool knows_places(const bny_topo_derivation *d, int32_t node) { /* its NUMA node or package */
  return bny_topo_ancestor(d->topo, node, BNY_TOPO_NUMA) >= 0 ||
         bny_topo_ancestor(d->topo, node, BNY_TOPO_PACKAGE) >= 0;
}

/* Hosts of which the same is to be said: told once, of the first. */
typedef struct hosts_alike {
  int32_t count, first;
} hosts_alike;

static void host_note(hosts_alike *hosts, int32_t host) {
  if (hosts->count++ == 0) hosts->first = host;
}

/* "host3", or "host3 and 7 other hosts". */
static const char *hosts_label(const bny_topo_derivation *d, const hosts_alike *hosts, char text[LABEL_BYTES]) {
  char host[LABEL_BYTES];
  label(d, d->hosts[hosts->first], host);
  if (hosts->count > 1)
    snprintf(text, LABEL_BYTES, "%.60s and %d other host%s", host, hosts->count - 1, plural(hosts->count - 1));
  else
    snprintf(text, LABEL_BYTES, "%.60s", host);
  return text;
}

/* Of a host's ranks: how many have no NIC nearer than another NUMA node, and how many share one at most. */
static void host_nics(const bny_topo_derivation *d, int32_t host, int32_t *far, int32_t *shared) {
  *far = *shared = 0;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
    *shared = rank->nic_shared > *shared ? rank->nic_shared : *shared;
    *far += rank->nic_path == BNY_TOPO_PATH_SYS && knows_places(d, rank->node) && d->levels->rank_kind == BNY_TOPO_GPU;
  }
}

static bool nics_missing(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "hosts whose NICs are missing, far or shared"};
  hosts_alike without = {0}, with_far = {0}, with_shared = {0};
  int32_t far = 0, shared = 0, far_most = 0, shared_most = 0;
  char text[LABEL_BYTES];
  for (int32_t h = 0; h < d->nhosts; h++) {
    if (d->host_first[h + 1] == d->host_first[h]) continue;
    if (d->nic_first[h + 1] == d->nic_first[h]) {
      host_note(&without, h);
      continue;
    }
    host_nics(d, h, &far, &shared);
    if (far > 0) host_note(&with_far, h);
    if (shared > 1) host_note(&with_shared, h);
    far_most = far > far_most ? far : far_most;
    shared_most = shared > shared_most ? shared : shared_most;
  }
  if (without.count > 0 && d->nhosts > 1)
    find(&s, BNY_TOPO_FAULT, d->hosts[without.first],
         "%s: no NIC is known there, and %ss on them cannot reach those of other hosts at speed",
         hosts_label(d, &without, text), members_word(d));
  else if (without.count > 0)
    find(&s, BNY_TOPO_INFO, d->hosts[without.first], "%s has no NIC that is known: it works alone",
         hosts_label(d, &without, text));
  if (with_far.count > 0)
    find(&s, BNY_TOPO_WARNING, d->hosts[with_far.first],
         "%s: up to %d GPU%s of a host reach no NIC but across NUMA nodes, and what they send to other hosts crosses "
         "the link "
         "between CPUs",
         hosts_label(d, &with_far, text), far_most, plural(far_most));
  if (with_shared.count > 0)
    find(&s, BNY_TOPO_INFO, d->hosts[with_shared.first],
         "%s: up to %d %ss share a NIC, each then has that part of its speed between hosts",
         hosts_label(d, &with_shared, text), shared_most, members_word(d));
  return done(&s);
}

static bool nics_cabled(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "NICs that are not cabled as others are"};
  bool fabric = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_LEAF) != NULL;
  char text[LABEL_BYTES], nic[LABEL_BYTES];
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    const bny_topo_rank *rank = &d->levels->ranks[r];
    if (rank->nic < 0) continue;
    char serves[LABEL_BYTES + 16] = "";
    if (rank->nic != rank->node) snprintf(serves, sizeof serves, ", which serves %s,", label(d, rank->node, text));
    if (fabric && d->leaf[rank->nic] < 0)
      find(&s, BNY_TOPO_WARNING, rank->nic, "%s%s is on no switch: its port is down or its cable elsewhere",
           label(d, rank->nic, nic), serves);
    if (d->crossed[r] >= 0)
      find(&s, BNY_TOPO_WARNING, rank->nic, "%s%s is on the leaf switch of rail %d: %s", label(d, rank->nic, nic),
           serves, d->crossed[r],
           d->crossed[r] == rank->rail ? "cables are crossed, the rail was taken from the switch"
                                       : "what it exchanges within its own rail crosses the spine");
  }
  return done(&s);
}

/* ---- hosts ------------------------------------------------------------------------------------------------------- */

static bool below_switch(const bny_topo *topo, int32_t node) {
  for (node = topo->nodes[node].parent; node >= 0; node = topo->nodes[node].parent) {
    if (topo->nodes[node].kind == BNY_TOPO_PCI && !topo->nodes[node].host_bridge) return true;
  }
  return false;
}

static bool is_coherent(const bny_topo *topo, int32_t node) { /* with its CPU: such a GPU needs no switch */
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    if (topo->links[l].kind == BNY_TOPO_LINK_C2C) return true;
  }
  return false;
}

/* Whether this device has a root port of its own: it is on another bus than the one of the host bridge above it, whose
 * name, "pci0000:80" or "0000:[80-8f]", tells. A real machine without switches looks so, and hides nothing. */
static bool has_root_port(const bny_topo *topo, int32_t node) {
  const bny_topo_node *device = &topo->nodes[node], *above = &topo->nodes[device->parent];
  unsigned domain, bus, root_domain, root_bus;
  if (above->kind != BNY_TOPO_PCI || !above->host_bridge || !device->bus_id ||
      sscanf(device->bus_id, "%8x:%2x:", &domain, &bus) != 2)
    return false;
  bool named = sscanf(above->name, "pci%8x:%2x", &root_domain, &root_bus) == 2 ||
               sscanf(above->name, "%8x:[%2x-", &root_domain, &root_bus) == 2;
  return named && (domain != root_domain || bus != root_bus);
}

/* No PCI switch between several GPUs and several NICs that hang in one place: what virtual machines show. */
static bool is_flat(const bny_topo_derivation *d, int32_t host) {
  const bny_topo *topo = d->topo;
  int32_t ngpus = d->host_first[host + 1] - d->host_first[host], nnics = d->nic_first[host + 1] - d->nic_first[host];
  int64_t beside = 0;
  if (ngpus < 4 || nnics < 2 || d->levels->rank_kind != BNY_TOPO_GPU) return false;
  for (int32_t i = d->nic_first[host]; i < d->nic_first[host + 1]; i++) {
    if (below_switch(topo, d->nics[i])) return false;
    d->roots[topo->nodes[d->nics[i]].parent] = 0;
  }
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    int32_t node = d->levels->ranks[d->by_host[i]].node;
    if (below_switch(topo, node) || is_coherent(topo, node) || has_root_port(topo, node)) return false;
    d->roots[topo->nodes[node].parent] = 0;
  }
  for (int32_t i = d->nic_first[host]; i < d->nic_first[host + 1]; i++) d->roots[topo->nodes[d->nics[i]].parent]++;
  for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
    int32_t parent = topo->nodes[d->levels->ranks[d->by_host[i]].node].parent;
    beside += topo->nodes[parent].kind != BNY_TOPO_HOST ? d->roots[parent] : 0;
  }
  return beside >= 2 * (int64_t)ngpus; /* each GPU, on the average, beside two NICs */
}

static bool flattened(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "hosts whose PCI switches are hidden"};
  hosts_alike flat = {0};
  char text[LABEL_BYTES];
  for (int32_t h = 0; h < d->nhosts; h++) {
    if (is_flat(d, h)) host_note(&flat, h);
  }
  if (flat.count > 0)
    find(&s, BNY_TOPO_WARNING, d->hosts[flat.first],
         "%s: no PCI switch between %d GPUs and %d NICs, as in a virtual machine that hides them: which NIC is near "
         "which GPU "
         "was taken from their order, and data between them may go through the CPU",
         hosts_label(d, &flat, text), d->host_first[flat.first + 1] - d->host_first[flat.first],
         d->nic_first[flat.first + 1] - d->nic_first[flat.first]);
  return done(&s);
}

static bool hosts_uneven(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "uneven hosts"};
  int32_t least = -1, most = 0;
  for (int32_t h = 0; h < d->nhosts; h++) {
    int32_t count = d->host_first[h + 1] - d->host_first[h];
    if (count == 0) continue;
    least = least < 0 || count < least ? count : least;
    most = count > most ? count : most;
  }
  if (least >= 0 && least < most)
    find(&s, BNY_TOPO_INFO, -1, "hosts have from %d to %d %ss: rails from %d on join fewer hosts", least, most,
         members_word(d), least);
  return done(&s);
}

static bool generations(bny_topo_derivation *d) {
  sort s = {.d = d, .what = "generations"};
  int32_t low = -1, high = -1, odd = -1;
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    int32_t node = d->levels->ranks[r].node, compute = d->topo->nodes[node].compute;
    if (compute < 0) continue;
    odd = low >= 0 && odd < 0 && compute != low ? node : odd;
    low = low < 0 || compute < low ? compute : low;
    high = compute > high ? compute : high;
  }
  if (low != high)
    find(&s, BNY_TOPO_WARNING, odd,
         "GPUs are of different kinds, from %d to %d by compute capability: the slowest sets the pace", low, high);
  if (d->levels->rank_kind != BNY_TOPO_GPU && d->levels->nranks > 0)
    find(&s, BNY_TOPO_INFO, -1, "no GPU is known: ranks are placed on %ss",
         d->levels->rank_kind == BNY_TOPO_NUMA  ? "NUMA node"
         : d->levels->rank_kind == BNY_TOPO_NIC ? "NIC"
                                                : bny_topo_kind_name(d->levels->rank_kind));
  return done(&s);
}

/* Faults, warnings, then the rest, each in the order that they were found. */
static bool by_severity(bny_topo_levels *levels) {
  bny_topo_finding *sorted = malloc(((size_t)levels->nfindings + 1) * sizeof *sorted);
  if (!sorted) return false;
  int32_t count = 0;
  for (int severity = BNY_TOPO_FAULT; severity >= BNY_TOPO_INFO; severity--) {
    for (int32_t i = 0; i < levels->nfindings; i++) {
      if ((int)levels->findings[i].severity == severity) sorted[count++] = levels->findings[i];
    }
  }
  free(levels->findings);
  levels->findings = sorted;
  levels->findings_capacity = levels->nfindings + 1;
  return true;
}

bool bny_topo_derive_findings(bny_topo_derivation *d) {
  return peers_refused(d) && nvlinks_fewer(d) && links_below_rating(d) && nics_absurd(d) && nics_slower(d) &&
         nics_cabled(d) && nics_missing(d) && flattened(d) && generations(d) && islands_partial(d) && hosts_uneven(d) &&
         by_severity(d->levels);
}
