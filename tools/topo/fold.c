/* SPDX-License-Identifier: Apache-2.0
 * Groups nodes that look alike, so that a view has one line for all of them. */
#include "tools/topo/topo.h"

#include <stdlib.h>
#include <string.h>

#include "topo/model/speed.h"

/* ---- facts ------------------------------------------------------------------------------------------------------- */

enum { DEPTH = 64 }; /* bound on levels of the tree */

void topo_slower(double *speed, bool *assumed, const bny_topo_link *link) {
  if (link->gbytes_per_s > 0 && (*speed <= 0 || link->gbytes_per_s < *speed)) {
    *speed = link->gbytes_per_s;
    *assumed = link->source == BNY_TOPO_ASSUMED;
  }
}

/* Finds the slowest PCI link on the path to the next shown node above. */
static void way_up(const topo_fold *fold, int32_t node, topo_facts *facts) {
  const bny_topo *topo = fold->topo;
  int32_t end = fold->above[node];
  int depth = 0;
  for (int32_t n = node; n >= 0 && n != end && depth < DEPTH; n = topo->nodes[n].parent, depth++) {
    int32_t l = bny_topo_link_up(topo, n, BNY_TOPO_LINK_PCI);
    if (l >= 0) topo_slower(&facts->up, &facts->up_assumed, &topo->links[l]);
  }
}

/* Returns whether an earlier NVLink of this node has the same other end. The search is bounded. */
static bool seen_before(const bny_topo *topo, int32_t node, int32_t link) {
  int32_t other = bny_topo_other_end(topo, node, link), looked = 0;
  for (int32_t l = bny_topo_first_link(topo, node); l != link && looked < 128; l = bny_topo_next_link(topo, node, l)) {
    if (bny_topo_joins_gpus(&topo->links[l]) && bny_topo_other_end(topo, node, l) == other) return true;
    looked++;
  }
  return false;
}

static void add_nvlink(const bny_topo *topo, int32_t node, int32_t l, topo_facts *facts) {
  const bny_topo_link *link = &topo->links[l];
  int32_t other = bny_topo_other_end(topo, node, l);
  int32_t compute = topo->nodes[topo->nodes[node].kind == BNY_TOPO_GPU ? node : other].compute;
  facts->links += link->count;
  facts->xgmi = link->kind == BNY_TOPO_LINK_XGMI;
  if (!seen_before(topo, node, l)) {
    facts->switches += topo->nodes[other].kind == BNY_TOPO_SWITCH;
    facts->peers += topo->nodes[other].kind != BNY_TOPO_SWITCH;
  }
  if (link->gbytes_per_s > 0) {
    facts->links_speed += link->gbytes_per_s;
    facts->links_assumed = facts->links_assumed || link->source == BNY_TOPO_ASSUMED;
  } else if (link->rated_gbytes_per_s > 0) {
    facts->links_refused = true;
  } else {
    facts->links_speed += link->count * (facts->xgmi ? bny_topo_speed_xgmi(compute) : bny_topo_speed_nvlink(compute));
    facts->links_assumed = true;
  }
}

/* Adds the network speed of one port, or of a NIC without ports. */
static void add_port(const bny_topo *topo, int32_t node, topo_facts *facts) {
  double speed = 0;
  bool assumed = false, any = false;
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    int32_t other = bny_topo_other_end(topo, node, l);
    if (topo->links[l].kind != BNY_TOPO_LINK_NET || topo->nodes[other].parent == node) continue;
    topo_slower(&speed, &assumed, &topo->links[l]);
    any = true;
    facts->leaf = topo->nodes[other].kind == BNY_TOPO_SWITCH ? other : facts->leaf;
  }
  facts->ports += any || topo->nodes[node].kind == BNY_TOPO_PORT;
  facts->ports_down += bny_topo_port_down(topo, node);
  facts->net += speed;
  facts->net_assumed = facts->net_assumed || assumed;
}

/* Adds a switch's link to a port below, or to another switch. */
static void add_cable(const bny_topo *topo, int32_t node, int32_t l, topo_facts *facts) {
  const bny_topo_link *link = &topo->links[l];
  if (topo->nodes[bny_topo_other_end(topo, node, l)].kind == BNY_TOPO_SWITCH) {
    facts->beside += link->count;
    facts->beside_speed += link->gbytes_per_s;
  } else {
    facts->below++;
    topo_slower(&facts->net, &facts->net_assumed, link);
  }
}

topo_facts topo_fold_facts(const topo_fold *fold, int32_t node) {
  const bny_topo *topo = fold->topo;
  bny_topo_kind kind = topo->nodes[node].kind;
  topo_facts facts = {.leaf = -1};
  way_up(fold, node, &facts);
  int32_t device = bny_topo_device(topo, node); /* a partition shares the links of its device */
  for (int32_t l = bny_topo_first_link(topo, device); l >= 0; l = bny_topo_next_link(topo, device, l)) {
    const bny_topo_link *link = &topo->links[l];
    if (bny_topo_other_end(topo, device, l) == device) continue;
    if (bny_topo_joins_gpus(link))
      add_nvlink(topo, device, l, &facts);
    else if (link->kind == BNY_TOPO_LINK_C2C && kind == BNY_TOPO_GPU)
      topo_slower(&facts.coherent, &facts.coherent_assumed, link);
    else if (link->kind == BNY_TOPO_LINK_NET && kind == BNY_TOPO_SWITCH)
      add_cable(topo, node, l, &facts);
  }
  if (kind == BNY_TOPO_NIC) {
    add_port(topo, node, &facts);
    for (int32_t port = fold->port[node]; port >= 0; port = fold->next[port]) add_port(topo, port, &facts);
  }
  return facts;
}

double topo_fold_uplink(const topo_fold *fold, int32_t n, bool *assumed) {
  const bny_topo *topo = fold->topo;
  double sum = 0;
  *assumed = false;
  for (int32_t l = bny_topo_first_link(topo, n); l >= 0; l = bny_topo_next_link(topo, n, l)) {
    if (topo->links[l].kind != BNY_TOPO_LINK_NET || fold->tier[bny_topo_other_end(topo, n, l)] <= fold->tier[n])
      continue;
    sum += topo->links[l].gbytes_per_s;
    *assumed = *assumed || topo->links[l].source == BNY_TOPO_ASSUMED;
  }
  return sum;
}

/* ---- visible nodes ----------------------------------------------------------------------------------------------- */

/* Finds the shown nodes. It visits nodes from last to first, because children come after parents. */
static void find_shown(topo_fold *fold) {
  const bny_topo *topo = fold->topo;
  int32_t *below = tool_new((size_t)topo->nnodes, sizeof *below); /* shown directly below, if this one is hidden */
  int32_t *numas = tool_new((size_t)topo->nnodes, sizeof *numas);
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t parent = topo->nodes[n].parent;
    numas[parent < 0 ? topo->nnodes : parent] += topo->nodes[n].kind == BNY_TOPO_NUMA;
  }
  for (int32_t n = topo->nnodes - 1; n >= 0; n--) {
    const bny_topo_node *node = &topo->nodes[n];
    bool only = node->kind == BNY_TOPO_NUMA && node->parent >= 0 && numas[node->parent] == 1 &&
                topo->nodes[node->parent].kind == BNY_TOPO_PACKAGE;
    fold->shown[n] =
        node->kind != BNY_TOPO_PORT && !only && (node->kind != BNY_TOPO_PCI || (!node->host_bridge && below[n] > 1));
    bool elsewhere = node->kind == BNY_TOPO_PORT || node->kind == BNY_TOPO_SWITCH;
    if (!elsewhere && node->parent >= 0) below[node->parent] += fold->shown[n] ? 1 : below[n];
  }
}

static void find_places(topo_fold *fold, const topo_findings *findings) {
  const bny_topo *topo = fold->topo;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    const bny_topo_node *node = &topo->nodes[n];
    int32_t parent = node->parent;
    fold->host[n] = node->kind == BNY_TOPO_HOST ? n : parent < 0 ? -1 : fold->host[parent];
    fold->above[n] = parent < 0 ? -1 : fold->shown[parent] ? parent : fold->above[parent];
    if (node->kind == BNY_TOPO_SWITCH && fold->host[n] >= 0) fold->above[n] = fold->host[n];
    fold->child[n] = fold->next[n] = fold->port[n] = fold->rank[n] = -1;
    fold->severity[n] = -1;
  }
  for (int pass = 0; pass < 3; pass++) { /* the last insertion becomes the first child: switches are last */
    for (int32_t n = topo->nnodes - 1; n >= 0; n--) {
      bny_topo_kind kind = topo->nodes[n].kind;
      int32_t above = kind == BNY_TOPO_PORT ? topo->nodes[n].parent : fold->above[n];
      int32_t *first = kind == BNY_TOPO_PORT ? fold->port : fold->child;
      bool now = kind == BNY_TOPO_PORT ? pass == 2 : fold->shown[n] && pass == (kind != BNY_TOPO_SWITCH);
      if (now && above >= 0) {
        fold->next[n] = first[above];
        first[above] = n;
      }
    }
  }
  for (int32_t r = 0; r < fold->levels->nranks; r++) fold->rank[fold->levels->ranks[r].node] = r;
  for (int32_t f = 0; f < findings->count; f++) {
    const topo_finding *finding = &findings->list[f];
    if (finding->node >= 0 && finding->severity > TOPO_INFO &&
        fold->severity[finding->node] < (int8_t)finding->severity)
      fold->severity[finding->node] = (int8_t)finding->severity;
  }
}

/* Finds the tiers of switches. Switches with ports have tier 1, and each further tier is linked to the one below.
 * Switches above hosts that have neither ports nor NVLinks also have tier 1. */
static void find_tiers(topo_fold *fold) {
  const bny_topo *topo = fold->topo;
  int32_t *queue = tool_new((size_t)topo->nnodes, sizeof *queue), head = 0, tail = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t n = 0; n < topo->nnodes; n++) {
      topo_facts facts = {.links = -1};
      if (topo->nodes[n].kind == BNY_TOPO_SWITCH && fold->host[n] < 0 && fold->tier[n] == 0)
        facts = topo_fold_facts(fold, n);
      if (pass == 0 ? facts.below > 0 : facts.links == 0) {
        fold->tier[n] = 1;
        queue[tail++] = n;
      }
    }
    for (; head < tail; head++) {
      int32_t n = queue[head];
      for (int32_t l = bny_topo_first_link(topo, n); l >= 0; l = bny_topo_next_link(topo, n, l)) {
        int32_t other = bny_topo_other_end(topo, n, l);
        bool above = topo->nodes[other].kind == BNY_TOPO_SWITCH && fold->host[other] < 0 && fold->tier[other] == 0;
        if (topo->links[l].kind == BNY_TOPO_LINK_NET && above) {
          fold->tier[other] = fold->tier[n] + 1;
          queue[tail++] = other;
        }
      }
    }
  }
}

/* ---- equal looks ------------------------------------------------------------------------------------------------- */

static uint64_t mix_text(uint64_t hash, const char *text) {
  return bny_hash_add_bytes(bny_hash_of(hash), text == NULL ? "" : text, text == NULL ? 0 : strlen(text));
}

static uint64_t mix_number(uint64_t hash, double number) { return bny_hash_add_bytes(hash, &number, sizeof number); }

static uint64_t look_of(const topo_fold *fold, int32_t n, uint64_t below) {
  const bny_topo_node *node = &fold->topo->nodes[n];
  topo_facts facts = topo_fold_facts(fold, n);
  if (node->kind == BNY_TOPO_SWITCH) { /* GPUs may have different numbers of links to each switch */
    facts.links = 0;
    facts.links_speed = 0;
  }
  const double numbers[] = {(double)node->kind, node->compute,       facts.up,           facts.links,
                            facts.links_speed,  facts.links_refused, facts.peers,        facts.switches,
                            facts.coherent,     facts.net,           facts.ports,        facts.ports_down,
                            facts.below,        facts.beside,        facts.beside_speed, fold->severity[n]};
  uint64_t hash = mix_text(mix_text(bny_hash_of(below), node->model), node->vendor);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) hash = mix_number(hash, numbers[i]);
  if (fold->rank[n] >= 0) {
    const bny_topo_rank *rank = &fold->levels->ranks[fold->rank[n]];
    hash = mix_number(mix_number(hash, rank->nic < 0 ? -1 : (double)rank->nic_path), rank->nic_shared);
  }
  return hash;
}

static void find_looks(topo_fold *fold) {
  uint64_t *below = tool_new((size_t)fold->topo->nnodes, sizeof *below); /* a sum, so that order has no effect */
  for (int32_t n = fold->topo->nnodes - 1; n >= 0; n--) {
    fold->look[n] = look_of(fold, n, below[n]);
    if (fold->shown[n] && fold->above[n] >= 0) below[fold->above[n]] += bny_hash_of(fold->look[n]);
  }
}

topo_fold topo_fold_make(const topo_view *view) {
  const bny_topo *topo = view->topo;
  size_t n = (size_t)topo->nnodes;
  topo_fold fold = {.topo = topo, .levels = view->levels};
  int32_t **const numbers[] = {&fold.host, &fold.above, &fold.child, &fold.next, &fold.port, &fold.rank, &fold.tier};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) *numbers[i] = tool_new(n, sizeof **numbers[i]);
  fold.shown = tool_new(n, sizeof *fold.shown);
  fold.severity = tool_new(n, sizeof *fold.severity);
  fold.look = tool_new(n, sizeof *fold.look);
  find_shown(&fold);
  find_places(&fold, &view->findings);
  find_tiers(&fold);
  find_looks(&fold);
  return fold;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

typedef struct placed {
  uint64_t look;
  int32_t node, place, group; /* place: index in the list; group: index of the first in its group */
} placed;

static int by_look(const void *a, const void *b) {
  const placed *x = a, *y = b;
  return x->look != y->look ? (x->look < y->look ? -1 : 1) : (x->place > y->place) - (x->place < y->place);
}

static int by_group(const void *a, const void *b) {
  const placed *x = a, *y = b;
  return x->group != y->group ? (x->group < y->group ? -1 : 1) : (x->place > y->place) - (x->place < y->place);
}

int32_t topo_fold_groups(const topo_fold *fold, int32_t *nodes, int32_t count, int32_t least, int32_t *ends) {
  placed *all = tool_new((size_t)count, sizeof *all);
  for (int32_t i = 0; i < count; i++) all[i] = (placed){.look = fold->look[nodes[i]], .node = nodes[i], .place = i};
  qsort(all, (size_t)count, sizeof *all, by_look);
  for (int32_t i = 0, next; i < count; i = next) {
    for (next = i; next < count && all[next].look == all[i].look; next++) {
    }
    for (int32_t j = i; j < next; j++) all[j].group = next - i < least ? all[j].place : all[i].place;
  }
  qsort(all, (size_t)count, sizeof *all, by_group);
  int32_t groups = 0;
  for (int32_t i = 0; i < count; i++) {
    nodes[i] = all[i].node;
    if (i + 1 == count || all[i + 1].group != all[i].group) ends[groups++] = i + 1;
  }
  return groups;
}
