/* SPDX-License-Identifier: Apache-2.0
 * Findings about the network: trunks and uplinks of switches, and cables. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "topo/derive/derive.h"

static bool is_trunk(const bny_topo_derivation *d, const bny_topo_link *link) {
  return bny_topo_in_network(d->topo, link) && link->count > 0;
}

static int32_t higher_tier(const bny_topo_derivation *d, const bny_topo_link *link) {
  int32_t from = d->tier[link->from], to = d->tier[link->to];
  return from > to ? from : to;
}

/* Trunks to the same tier are siblings. If there are only two, the slower one is reported. */
void bny_topo_find_trunk_slow(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  char to[BNY_TOPO_LABEL_BYTES];
  int32_t highest = 0;
  for (int32_t n = 0; n < d->topo->nnodes; n++) highest = d->tier[n] > highest ? d->tier[n] : highest;
  for (int32_t tier = 0; tier <= highest; tier++) {
    int32_t count = 0, times;
    for (int32_t l = 0; l < d->topo->nlinks; l++) {
      const bny_topo_link *link = &d->topo->links[l];
      if (is_trunk(d, link) && higher_tier(d, link) == tier && link->gbytes_per_s > 0)
        d->values[count++] = link->gbytes_per_s / link->count;
    }
    double usual = bny_topo_usual(d->values, count, &times);
    for (int32_t l = 0; l < d->topo->nlinks && (2 * times > count || count == 2); l++) {
      const bny_topo_link *link = &d->topo->links[l];
      if (is_trunk(d, link) && higher_tier(d, link) == tier && link->gbytes_per_s > 0 &&
          link->gbytes_per_s / link->count < BNY_TOPO_ALIKE * usual)
        bny_topo_find(s, link->from, "its %d link%s to %s run%s at %.4g GB/s each%s, those of its siblings at %.4g",
                      link->count, bny_topo_plural(link->count), bny_topo_find_label(d, link->to, to),
                      link->count == 1 ? "s" : "", link->gbytes_per_s / link->count,
                      link->count > 1 ? " on average" : "", usual);
    }
  }
}

/* Counts the links of a switch to the tier above, and to any other switch. */
static int32_t uplinks_of(const bny_topo_derivation *d, int32_t node) {
  int32_t count = 0;
  for (int32_t l = bny_topo_first_link(d->topo, node); l >= 0; l = bny_topo_next_link(d->topo, node, l))
    if (is_trunk(d, &d->topo->links[l]) && d->tier[bny_topo_other_end(d->topo, node, l)] == d->tier[node] + 1)
      count += d->topo->links[l].count;
  return count;
}

/* Returns the switch of the tier above to which a switch has the fewest links. *links receives their number. */
static int32_t weakest_above(const bny_topo_derivation *d, int32_t node, int32_t *links) {
  int32_t weakest = -1;
  for (int32_t n = 0; n < d->topo->nnodes; n++) {
    int32_t count = 0;
    if (d->tier[n] != d->tier[node] + 1) continue;
    for (int32_t l = bny_topo_first_link(d->topo, node); l >= 0; l = bny_topo_next_link(d->topo, node, l))
      count += bny_topo_other_end(d->topo, node, l) == n ? d->topo->links[l].count : 0;
    if (weakest < 0 || count < *links) weakest = n, *links = count;
  }
  return weakest;
}

/* Finds parts of a network that share neither a link nor a host, and have switches above leaf switches. Rail planes are
 * not separate parts, because they share all hosts. */
static void parts_find(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  const bny_topo *topo = d->topo;
  int32_t *roots = d->roots, parts = 0, first = -1;
  for (int32_t n = 0; n < topo->nnodes; n++) roots[n] = n;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    int32_t ends[2] = {link->from, link->to};
    if (link->kind != BNY_TOPO_LINK_NET) continue;
    for (int e = 0; e < 2; e++) /* a host connects all of its NICs */
      if (d->host_of[ends[e]] >= 0) ends[e] = d->host_of[ends[e]];
    bny_topo_unite(roots, ends[0], ends[1]);
  }
  for (int32_t n = 0; n < topo->nnodes; n++) {
    if (d->tier[n] < 2) continue;
    int32_t root = bny_topo_root(roots, n);
    bool known = false;
    for (int32_t other = 0; other < n && !known; other++)
      known = d->tier[other] >= 2 && bny_topo_root(roots, other) == root;
    first = first < 0 ? n : first;
    parts += !known;
    if (!known && parts > 1)
      bny_topo_find(s, n, "no link joins its part of the network to that of %s, and no host is in both",
                    topo->nodes[first].name);
  }
}

void bny_topo_find_uplink_missing(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  int32_t highest = 0;
  for (int32_t n = 0; n < d->topo->nnodes; n++) highest = d->tier[n] > highest ? d->tier[n] : highest;
  for (int32_t tier = 1; tier < highest; tier++) {
    int32_t count = 0, times;
    for (int32_t n = 0; n < d->topo->nnodes; n++)
      if (d->tier[n] == tier) d->values[count++] = uplinks_of(d, n);
    int32_t usual = (int32_t)bny_topo_usual(d->values, count, &times);
    bool most = 2 * times > count || count == 2;
    int32_t some = count > 0 ? (int32_t)d->values[count - 1] : 0; /* the maximum, because the values are sorted */
    for (int32_t n = 0; n < d->topo->nnodes; n++) {
      int32_t up = d->tier[n] == tier ? uplinks_of(d, n) : some;
      bool none = up == 0 && some > 0; /* needs no majority */
      if (!none && (up >= usual || !most)) continue;
      int32_t links = 0, above = weakest_above(d, n, &links);
      char text[BNY_TOPO_LABEL_BYTES];
      bny_topo_find(s, n, "%d uplink%s, its siblings have %d: the fewest, %d, go to %s", up, bny_topo_plural(up),
                    most && usual > 0 ? usual : some, links,
                    above >= 0 ? bny_topo_find_label(d, above, text) : "no switch");
    }
  }
  parts_find(s);
}

/* ---- switches that are gone -------------------------------------------------------------------------------------- */

/* Counts the links of a switch to NICs and to the tier below. */
static int32_t downlinks_of(const bny_topo_derivation *d, int32_t node) {
  int32_t count = 0;
  for (int32_t l = bny_topo_first_link(d->topo, node); l >= 0; l = bny_topo_next_link(d->topo, node, l)) {
    const bny_topo_link *link = &d->topo->links[l];
    bny_topo_kind kind = d->topo->nodes[bny_topo_other_end(d->topo, node, l)].kind;
    bool below = is_trunk(d, link) && d->tier[bny_topo_other_end(d->topo, node, l)] == d->tier[node] - 1;
    if (link->kind == BNY_TOPO_LINK_NET && (kind == BNY_TOPO_PORT || kind == BNY_TOPO_NIC || below))
      count += link->count > 0 ? link->count : 1;
  }
  return count;
}

/* Finds a single switch that joins the entire tier below. Each switch there has several uplinks to it, but fewer
 * uplinks than downlinks. Such networks are built with more upper switches, so one may be missing. */
static void alone_find(bny_topo_finder *s, int32_t tier) {
  const bny_topo_derivation *d = s->d;
  int32_t above = -1, tops = 0, leaves = 0, least = INT32_MAX;
  bool fewer = true;
  for (int32_t n = 0; n < d->topo->nnodes; n++) {
    if (d->tier[n] == tier + 1) above = n, tops++;
    if (d->tier[n] != tier) continue;
    int32_t up = uplinks_of(d, n);
    leaves++;
    least = up < least ? up : least;
    fewer = fewer && up < downlinks_of(d, n);
  }
  if (tops == 1 && leaves > 1 && least > 1 && fewer)
    bny_topo_find(s, above, "all %d switches of the tier below meet in it alone, over %d links or more each", leaves,
                  least);
}

/* Returns the number in a name that equals another name except for one number; -1 if the names differ elsewhere.
 * *before receives the number of characters before it. */
static long number_unlike(const char *name, const char *other, size_t *before) {
  size_t same = 0;
  while (name[same] != '\0' && name[same] == other[same]) same++;
  while (same > 0 && name[same - 1] >= '0' && name[same - 1] <= '9') same--;
  size_t digits = strspn(name + same, "0123456789"), others = strspn(other + same, "0123456789");
  bool alike = digits > 0 && digits < 8 && others > 0 && strcmp(name + same + digits, other + same + others) == 0;
  *before = same;
  return alike ? strtol(name + same, NULL, 10) : -1;
}

/* Finds one number that is missing between those in the names of a tier's switches. */
static void gap_find(bny_topo_finder *s, int32_t tier) {
  const bny_topo_derivation *d = s->d;
  int32_t first = -1, count = 1;
  size_t place = 0, before;
  long low = LONG_MAX, high = -1, sum = 0;
  for (int32_t n = 0; n < d->topo->nnodes; n++) {
    if (d->tier[n] != tier) continue;
    if (first < 0) {
      first = n;
      continue;
    }
    const char *names[2] = {d->topo->nodes[first].name, d->topo->nodes[n].name};
    for (int i = count > 1; i < 2; i++) { /* the number of the first name is found once, in the first comparison */
      long number = number_unlike(names[i], names[!i], &before);
      if (number < 0 || (count > 1 && before != place)) return;
      place = before;
      low = number < low ? number : low;
      high = number > high ? number : high;
      sum += number;
    }
    count++;
  }
  if (count <= 2 || high - low != count) return;
  long missing = (low + high) * (high - low + 1) / 2 - sum;
  if (missing > low && missing < high)
    bny_topo_find(s, first, "it and %d other switches of its tier are numbered from %ld to %ld, and %ld is missing",
                  count - 1, low, high, missing);
}

void bny_topo_find_spine_alone(bny_topo_finder *s) {
  int32_t highest = 0;
  for (int32_t n = 0; n < s->d->topo->nnodes; n++) highest = s->d->tier[n] > highest ? s->d->tier[n] : highest;
  for (int32_t tier = 1; tier < highest; tier++) {
    alone_find(s, tier);
    gap_find(s, tier + 1);
  }
}

void bny_topo_find_cable_one_sided(bny_topo_finder *s) {
  int32_t at = 0;
  for (const bny_topo_note *note; (note = bny_topo_find_note(s->d->topo, BNY_TOPO_NOTE_ONE_SIDED, &at)) != NULL;)
    if (s->d->topo->nodes[note->node].kind != BNY_TOPO_GPU) bny_topo_find(s, note->node, "%s", note->text);
}

/* Returns whether a NIC has a network link that leads anywhere but to its own ports. */
static bool is_linked(const bny_topo_derivation *d, int32_t nic) {
  bool linked = false;
  for (int32_t n = nic; n < d->topo->nnodes && !linked; n++) {
    if (n != nic && d->topo->nodes[n].parent != nic) continue;
    for (int32_t l = bny_topo_first_link(d->topo, n); l >= 0; l = bny_topo_next_link(d->topo, n, l))
      linked = linked || d->topo->links[l].kind == BNY_TOPO_LINK_NET;
  }
  return linked;
}

void bny_topo_find_nic_uncabled(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  bool fabric = bny_topo_level_of(d->levels, BNY_TOPO_LEVEL_LEAF) != NULL;
  char text[BNY_TOPO_LABEL_BYTES];
  for (int32_t r = 0; r < d->levels->nranks; r++) {
    const bny_topo_rank *rank = &d->levels->ranks[r];
    if (rank->nic < 0 || d->leaf[rank->nic] >= 0 || d->nic[rank->nic].down > 0 ||
        bny_topo_is_noted(d->topo, BNY_TOPO_NOTE_ONE_SIDED, rank->nic)) /* another finding reports it */
      continue;
    if (fabric && rank->nic != rank->node)
      bny_topo_find(s, rank->nic, "it serves %s and is on no switch", bny_topo_find_label(d, rank->node, text));
    else if (fabric || (d->levels->rank_kind == BNY_TOPO_NIC && !is_linked(d, rank->nic)))
      bny_topo_find(s, rank->nic, "it is on no switch");
  }
}

/* A host with one NIC has no order of cables that could be wrong. */
void bny_topo_find_cable_crossed(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t h = 0; h < d->nhosts; h++) {
    int32_t crossed = 0, first = -1, count = bny_topo_nics_on(d, h);
    for (int32_t i = d->host_first[h]; i < d->host_first[h + 1]; i++)
      if (d->crossed[d->by_host[i]] >= 0 && crossed++ == 0) first = d->by_host[i];
    if (crossed == 0 || count < 2) continue;
    const bny_topo_rank *rank = &d->levels->ranks[first];
    bny_topo_find(s, rank->nic, "it is on the leaf switch of rail %d, as %d NIC%s of its host %s crossed, and %s",
                  d->crossed[first], crossed, bny_topo_plural(crossed), crossed == 1 ? "is" : "are",
                  d->crossed[first] == rank->rail ? "the rail was taken from the switch"
                                                  : "what it exchanges within its own rail crosses the spine");
  }
}
