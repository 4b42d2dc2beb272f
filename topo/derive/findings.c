/* SPDX-License-Identifier: Apache-2.0
 * Findings: faults, warnings and notes about a machine, each with its consequence. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/derive/findings.h"

enum { OF_ONE_SORT_MAX = 32, TEXT_BYTES = 400 };

static void put(bny_topo_finder *s, bny_topo_severity severity, int32_t node, const char *text) {
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

void bny_topo_find(bny_topo_finder *s, bny_topo_severity severity, int32_t node, const char *format, ...) {
  char text[TEXT_BYTES];
  if (s->found++ >= OF_ONE_SORT_MAX) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  put(s, severity, node, text);
}

bool bny_topo_find_end(bny_topo_finder *s) {
  if (s->found > OF_ONE_SORT_MAX) {
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "and %d more of this sort: %s", s->found - OF_ONE_SORT_MAX, s->what);
    put(s, BNY_TOPO_WARNING, -1, text);
  }
  return !s->no_memory;
}

const char *bny_topo_find_label(const bny_topo_derivation *d, int32_t node, char text[BNY_TOPO_LABEL_BYTES]) {
  const bny_topo *topo = d->topo;
  int32_t host = d->host_of[node], nic = topo->nodes[node].kind == BNY_TOPO_PORT ? topo->nodes[node].parent : -1;
  bool named = d->nhosts > 1 && host >= 0 && host != node;
  snprintf(text, BNY_TOPO_LABEL_BYTES, "%s%s%.40s%s%.30s", named ? topo->nodes[host].name : "", named ? " " : "",
           nic >= 0 ? topo->nodes[nic].name : topo->nodes[node].name, nic >= 0 ? " port " : "",
           nic >= 0 ? topo->nodes[node].name : "");
  return text;
}

const char *bny_topo_plural(int32_t count) { return count == 1 ? "" : "s"; }

const char *bny_topo_members_word(const bny_topo_derivation *d) {
  return d->levels->rank_kind == BNY_TOPO_GPU ? "GPU" : "rank";
}

void bny_topo_hosts_note(bny_topo_hosts_alike *hosts, int32_t host) {
  if (hosts->count++ == 0) hosts->first = host;
}

const char *bny_topo_hosts_label(const bny_topo_derivation *d, const bny_topo_hosts_alike *hosts,
                                 char text[BNY_TOPO_LABEL_BYTES]) {
  char host[BNY_TOPO_LABEL_BYTES];
  bny_topo_find_label(d, d->hosts[hosts->first], host);
  if (hosts->count > 1)
    snprintf(text, BNY_TOPO_LABEL_BYTES, "%.60s and %d other host%s", host, hosts->count - 1,
             bny_topo_plural(hosts->count - 1));
  else
    snprintf(text, BNY_TOPO_LABEL_BYTES, "%.60s", host);
  return text;
}

/* ---- NVLinks ----------------------------------------------------------------------------------------------------- */

static const char *links_word(const bny_topo_derivation *d, int32_t node) {
  for (int32_t l = bny_topo_first_link(d->topo, node); l >= 0; l = bny_topo_next_link(d->topo, node, l)) {
    if (d->topo->links[l].kind == BNY_TOPO_LINK_XGMI) return "xGMI link";
  }
  return "NVLink";
}

/* Reports members of an island or domain that have fewer links than another. */
static void fewer_in_group(bny_topo_finder *s, const bny_topo_level *level, const bny_topo_group *group,
                           const char *word) {
  const bny_topo_rank *ranks = s->d->levels->ranks;
  const int32_t *members = &level->members[group->first];
  char text[BNY_TOPO_LABEL_BYTES];
  int32_t most = 0;
  for (int32_t i = 0; i < group->count; i++) most = ranks[members[i]].nvlinks > most ? ranks[members[i]].nvlinks : most;
  for (int32_t i = 0; i < group->count && group->count > 1; i++) {
    const bny_topo_rank *rank = &ranks[members[i]];
    if (rank->nvlinks < most)
      bny_topo_find(s, BNY_TOPO_WARNING, rank->node, "%s has %d of %d %ss: the whole %s runs at its pace",
                    bny_topo_find_label(s->d, rank->node, text), rank->nvlinks, most, links_word(s->d, rank->node),
                    word);
  }
}

/* Reports a GPU without links on a host where most GPUs are linked. */
static void left_alone(bny_topo_finder *s, const bny_topo_level *islands, int32_t host) {
  const bny_topo_derivation *d = s->d;
  int32_t joined = 0, alone = 0;
  char text[BNY_TOPO_LABEL_BYTES];
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t i = d->host_first[host]; i < d->host_first[host + 1]; i++) {
      const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
      bool single = islands->groups[islands->group_of[d->by_host[i]]].count == 1 && rank->nvlinks == 0;
      if (pass == 0 && single)
        alone++;
      else if (pass == 0)
        joined++;
      else if (single && alone < joined)
        bny_topo_find(
            s, BNY_TOPO_WARNING, rank->node,
            "%s has no NVLink that works, %d GPUs of its host have: what it shares with them goes over PCIe, and a "
            "collective of the whole host runs at that pace",
            bny_topo_find_label(d, rank->node, text), joined);
    }
  }
}

static bool nvlinks_fewer(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "GPUs with fewer NVLinks than others"};
  const bny_topo_level *islands = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_ISLAND);
  const bny_topo_level *domains = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_DOMAIN);
  const bny_topo_level *joined = domains ? domains : islands;
  if (!joined) return true;
  for (int32_t g = 0; g < joined->ngroups; g++)
    fewer_in_group(&s, joined, &joined->groups[g], domains || joined->groups[g].all_to_all ? "domain" : "island");
  for (int32_t h = 0; h < d->nhosts; h++) left_alone(&s, islands, h);
  return bny_topo_find_end(&s);
}

static bool peers_refused(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "NVLinks without peer access"};
  char from[BNY_TOPO_LABEL_BYTES], to[BNY_TOPO_LABEL_BYTES];
  for (int32_t l = 0; l < d->topo->nlinks; l++) {
    const bny_topo_link *link = &d->topo->links[l];
    if ((link->kind == BNY_TOPO_LINK_NVLINK || link->kind == BNY_TOPO_LINK_XGMI) && bny_topo_link_dead(link))
      bny_topo_find(&s, BNY_TOPO_FAULT, link->from,
                    "%s and %s have %d %s%s but no peer access: what they exchange goes over PCIe or the host's memory",
                    bny_topo_find_label(d, link->from, from), bny_topo_find_label(d, link->to, to), link->count,
                    links_word(d, link->from), bny_topo_plural(link->count));
  }
  return bny_topo_find_end(&s);
}

/* Reports islands in which some pairs of GPUs have no direct link. */
static bool islands_partial(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "islands whose GPUs are not linked each to each"};
  const bny_topo_level *islands = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_ISLAND);
  for (int32_t g = 0; islands && g < islands->ngroups; g++) {
    const bny_topo_group *group = &islands->groups[g];
    int32_t first = d->levels->ranks[islands->members[group->first]].node;
    char text[BNY_TOPO_LABEL_BYTES];
    if (group->count > 1 && !group->all_to_all)
      bny_topo_find(
          &s, BNY_TOPO_INFO, first,
          "%s and %d other GPUs are joined by %ss, but not each to each: some pairs are as far as %s, and rings or "
          "trees along the links are faster than exchanges between all",
          bny_topo_find_label(d, first, text), group->count - 1, links_word(d, first), bny_topo_path_name(group->path));
  }
  return bny_topo_find_end(&s);
}

/* ---- links that are slower than they could be -------------------------------------------------------------------- */

static bool links_below_rating(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "links trained below their rating"};
  char from[BNY_TOPO_LABEL_BYTES], to[BNY_TOPO_LABEL_BYTES];
  for (int32_t l = 0; l < d->topo->nlinks; l++) {
    const bny_topo_link *link = &d->topo->links[l];
    if (link->gbytes_per_s <= 0 || link->gbytes_per_s >= BNY_TOPO_ALIKE * link->rated_gbytes_per_s) continue;
    bny_topo_find(
        &s, BNY_TOPO_WARNING, link->from,
        "the %s link of %s to %s runs at %.4g GB/s, it is rated %.4g: all that crosses it takes %.1f times as long",
        bny_topo_link_name(link->kind), bny_topo_find_label(d, link->from, from), bny_topo_find_label(d, link->to, to),
        link->gbytes_per_s, link->rated_gbytes_per_s, link->rated_gbytes_per_s / link->gbytes_per_s);
  }
  return bny_topo_find_end(&s);
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

/* Returns whether this device has a root port of its own. It then is on another bus than the host bridge above it,
 * whose bus is in its name ("pci0000:80" or "0000:[80-8f]"). A real machine without switches has this and hides
 * nothing. */
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

/* Returns whether GPUs and NICs share one parent without a PCI switch, as in virtual machines. */
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
  return beside >= 2 * (int64_t)ngpus; /* on average, each GPU is beside two NICs */
}

static bool flattened(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "hosts whose PCI switches are hidden"};
  bny_topo_hosts_alike flat = {0};
  char text[BNY_TOPO_LABEL_BYTES];
  for (int32_t h = 0; h < d->nhosts; h++) {
    if (is_flat(d, h)) bny_topo_hosts_note(&flat, h);
  }
  if (flat.count > 0)
    bny_topo_find(
        &s, BNY_TOPO_WARNING, d->hosts[flat.first],
        "%s: no PCI switch between %d GPUs and %d NICs, as in a virtual machine that hides them: which NIC is near "
        "which GPU "
        "was taken from their order, and data between them may go through the CPU",
        bny_topo_hosts_label(d, &flat, text), d->host_first[flat.first + 1] - d->host_first[flat.first],
        d->nic_first[flat.first + 1] - d->nic_first[flat.first]);
  return bny_topo_find_end(&s);
}

static bool hosts_uneven(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "uneven hosts"};
  int32_t least = -1, most = 0;
  for (int32_t h = 0; h < d->nhosts; h++) {
    int32_t count = d->host_first[h + 1] - d->host_first[h];
    if (count == 0) continue;
    least = least < 0 || count < least ? count : least;
    most = count > most ? count : most;
  }
  if (least >= 0 && least < most)
    bny_topo_find(&s, BNY_TOPO_INFO, -1, "hosts have from %d to %d %ss: rails from %d on join fewer hosts", least, most,
                  bny_topo_members_word(d), least);
  return bny_topo_find_end(&s);
}

static bool generations(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "generations"};
  int32_t low = -1, high = -1, odd = -1;
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    int32_t node = d->levels->ranks[r].node, compute = d->topo->nodes[node].compute;
    if (compute < 0) continue;
    odd = low >= 0 && odd < 0 && compute != low ? node : odd;
    low = low < 0 || compute < low ? compute : low;
    high = compute > high ? compute : high;
  }
  if (low != high)
    bny_topo_find(&s, BNY_TOPO_WARNING, odd,
                  "GPUs are of different kinds, from %d to %d by compute capability: the slowest sets the pace", low,
                  high);
  if (d->levels->rank_kind != BNY_TOPO_GPU && d->levels->nranks > 0)
    bny_topo_find(&s, BNY_TOPO_INFO, -1, "no GPU is known: ranks are placed on %ss",
                  d->levels->rank_kind == BNY_TOPO_NUMA  ? "NUMA node"
                  : d->levels->rank_kind == BNY_TOPO_NIC ? "NIC"
                                                         : bny_topo_kind_name(d->levels->rank_kind));
  return bny_topo_find_end(&s);
}

static bool notes_pass(bny_topo_derivation *d) {
  bny_topo_finder s = {.d = d, .what = "facts that the input contradicts"};
  for (int32_t n = 0; n < d->topo->nnotes; n++)
    bny_topo_find(&s, BNY_TOPO_WARNING, d->topo->notes[n].node, "%s", d->topo->notes[n].text);
  return bny_topo_find_end(&s);
}

/* Sorts faults first, then warnings, then notes; the order is otherwise kept. */
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
  return notes_pass(d) && peers_refused(d) && nvlinks_fewer(d) && links_below_rating(d) && bny_topo_find_nics(d) &&
         flattened(d) && generations(d) && islands_partial(d) && hosts_uneven(d) && by_severity(d->levels);
}
