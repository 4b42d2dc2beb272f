/* SPDX-License-Identifier: Apache-2.0
 * The place of a rank of a model. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "place/place.h"

static const char *const kind_names[BNY_PLACE_KINDS] = {"cache",  "numa", "package", "switch", "island", "host",
                                                        "domain", "rail", "leaf",    "spine",  "core"};

/* A level of a model is one of places. */
static const bny_place_kind kind_of[BNY_TOPO_LEVEL_KINDS] = {
    [BNY_TOPO_LEVEL_PACKAGE] = BNY_PLACE_PACKAGE, [BNY_TOPO_LEVEL_ISLAND] = BNY_PLACE_ISLAND,
    [BNY_TOPO_LEVEL_HOST] = BNY_PLACE_HOST,       [BNY_TOPO_LEVEL_DOMAIN] = BNY_PLACE_DOMAIN,
    [BNY_TOPO_LEVEL_RAIL] = BNY_PLACE_RAIL,       [BNY_TOPO_LEVEL_LEAF] = BNY_PLACE_LEAF,
    [BNY_TOPO_LEVEL_SPINE] = BNY_PLACE_SPINE,     [BNY_TOPO_LEVEL_CORE] = BNY_PLACE_CORE};

const char *bny_place_kind_name(bny_place_kind kind) {
  return (unsigned)kind < BNY_PLACE_KINDS ? kind_names[kind] : "?";
}

typedef struct view {
  const bny_topo *topo;
  const bny_topo_levels *derived;
  const bny_prices *prices;
  uint64_t hash; /* distinguishes things of the same number in different models */
  bool gpus, xgmi, packages;
  double sys_gbytes_per_s; /* the slowest link between packages; 0 unknown */
} view;

/* ---- links ------------------------------------------------------------------------------------------------------- */

typedef struct link_facts {
  double gbytes_per_s, latency_us; /* 0 unknown */
  bny_topo_source source;
  int32_t tiers; /* levels of switches above the leaves */
} link_facts;

static bny_place_link link_of(const bny_prices *prices, bny_link_class class, link_facts facts) {
  const bny_price *price = &prices->rows[class];
  bool latency_known = facts.latency_us > 0 && !price->measured;
  double way_ns = latency_known ? facts.latency_us * 1e3 : price->way_ns + facts.tiers * bny_price_tier_ns;
  bny_place_link link = {.alpha_ns = price->software_ns + way_ns,
                         .message_ns = price->message_ns,
                         .gbytes_per_s = facts.gbytes_per_s,
                         .usual_gbytes_per_s = price->gbytes_per_s,
                         .class = (int32_t) class,
                         .source = (int32_t)facts.source,
                         .latency_known = latency_known};
  if (price->measured) {
    link.gbytes_per_s = price->gbytes_per_s;
    link.source = BNY_TOPO_MEASURED;
  }
  return link;
}

bny_place_link bny_place_link_of(const bny_prices *prices, bny_link_class class) {
  return link_of(prices, class, (link_facts){.tiers = 0});
}

void bny_place_unknown(const bny_prices *prices, bny_place *place) {
  memset(place, 0, sizeof *place);
  for (int kind = 0; kind < BNY_PLACE_KINDS; kind++) {
    bny_link_class class = kind == BNY_PLACE_CACHE    ? BNY_LINK_CACHE
                           : kind <= BNY_PLACE_DOMAIN ? BNY_LINK_MEMORY
                                                      : BNY_LINK_NETWORK_CPU;
    int32_t tiers = kind == BNY_PLACE_CORE ? 2 : kind == BNY_PLACE_SPINE ? 1 : 0;
    place->levels[kind].link = link_of(prices, class, (link_facts){.tiers = tiers});
  }
  place->tcp = link_of(prices, BNY_LINK_TCP, (link_facts){.tiers = 0});
  place->merge_ns_per_byte = prices->merge_ns_per_byte;
  place->compute = -1;
  place->rail = -1;
  place->topo_rank = -1;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static uint64_t key_of(uint64_t hash) { return hash ? hash : 1; }

static uint64_t key_of_text(bny_place_kind kind, const char *text) {
  return key_of(bny_hash_add_bytes(bny_hash_of((uint64_t)kind), text, strlen(text)));
}

static uint64_t key_of_number(bny_place_kind kind, int32_t number) {
  return key_of(bny_hash_add(bny_hash_of((uint64_t)kind), (uint64_t)number));
}

static uint64_t model_hash(const bny_topo *topo) {
  uint64_t hash = bny_hash_add(BNY_HASH_START, (uint64_t)topo->nnodes);
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_HOST)
      hash = bny_hash_add_bytes(hash, topo->nodes[n].name, strlen(topo->nodes[n].name));
  return hash;
}

/* Ranks of two models meet at a switch by its guid. */
static uint64_t key_of_group(const view *v, const bny_topo_level *level, int32_t g) {
  bny_place_kind kind = kind_of[level->kind];
  int32_t node = level->groups[g].node;
  if (kind < BNY_PLACE_HOST) return key_of_number(kind, g);
  if (kind > BNY_PLACE_HOST && node >= 0 && v->topo->nodes[node].guid)
    return key_of_text(kind, v->topo->nodes[node].guid);
  return key_of(bny_hash_add(key_of_number(kind, g), v->hash));
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static bool has_kind(const bny_topo *topo, bny_topo_link_kind kind, double *slowest) {
  bool found = false;
  *slowest = 0;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    if (link->kind != kind) continue;
    found = true;
    if (link->gbytes_per_s > 0 && (*slowest <= 0 || link->gbytes_per_s < *slowest)) *slowest = link->gbytes_per_s;
  }
  return found;
}

static view look(const bny_topo *topo, const bny_topo_levels *derived, const bny_prices *prices) {
  double unused;
  view v = {.topo = topo,
            .derived = derived,
            .prices = prices,
            .gpus = derived->rank_kind == BNY_TOPO_GPU,
            .hash = model_hash(topo)};
  v.xgmi = has_kind(topo, BNY_TOPO_LINK_XGMI, &unused);
  has_kind(topo, BNY_TOPO_LINK_SYS, &v.sys_gbytes_per_s);
  v.packages = bny_topo_level_of(derived, BNY_TOPO_LEVEL_PACKAGE) || derived->rank_kind == BNY_TOPO_PACKAGE;
  return v;
}

static bny_link_class class_of(const view *v, bny_place_kind kind, bny_topo_path path) {
  if (path >= BNY_TOPO_PATH_NET || kind >= BNY_PLACE_RAIL) return v->gpus ? BNY_LINK_NETWORK : BNY_LINK_NETWORK_CPU;
  if (!v->gpus) return v->packages && kind > BNY_PLACE_PACKAGE ? BNY_LINK_SOCKETS : BNY_LINK_MEMORY;
  if (path == BNY_TOPO_PATH_SELF) return BNY_LINK_PCIE;
  if (path == BNY_TOPO_PATH_NVL) return v->xgmi ? BNY_LINK_XGMI : BNY_LINK_NVLINK;
  if (path == BNY_TOPO_PATH_C2C) return BNY_LINK_C2C;
  return path == BNY_TOPO_PATH_SYS ? BNY_LINK_PCIE_SYS : BNY_LINK_PCIE;
}

/* The speed of a network level is that of the rank's NIC, which is shared by the ranks of the communicator. It stands
 * here only where uplinks of switches are narrower. */
static void level_fill(const view *v, int32_t rank, const bny_topo_level *level, bny_place *place) {
  int32_t g = level->group_of[rank];
  if (g < 0) return;
  const bny_topo_group *group = &level->groups[g];
  const bny_topo_rank *r = &v->derived->ranks[rank];
  bny_place_kind kind = kind_of[level->kind];
  bny_link_class class = class_of(v, kind, group->path);
  link_facts facts = {group->gbytes_per_s, group->latency_us, group->source,
                      kind == BNY_PLACE_CORE    ? 2
                      : kind == BNY_PLACE_SPINE ? 1
                                                : 0};
  if (class == BNY_LINK_PCIE_SYS && v->sys_gbytes_per_s > 0 && v->sys_gbytes_per_s < facts.gbytes_per_s)
    facts.gbytes_per_s = v->sys_gbytes_per_s;
  double share = r->nic_shared > 0 ? r->nic_gbytes_per_s / r->nic_shared : 0;
  if (kind >= BNY_PLACE_RAIL && (kind <= BNY_PLACE_LEAF || facts.gbytes_per_s >= share)) facts.gbytes_per_s = 0;
  place->levels[kind].link = link_of(v->prices, class, facts);
  place->levels[kind].key = key_of_group(v, level, g);
}

/* A GPU at a host bridge of its own is alone at its switch. */
static uint64_t switch_of(const bny_topo *topo, int32_t gpu) {
  for (int32_t n = topo->nodes[gpu].parent; n >= 0 && topo->nodes[n].kind != BNY_TOPO_HOST; n = topo->nodes[n].parent)
    if (topo->nodes[n].kind == BNY_TOPO_PCI && !topo->nodes[n].host_bridge) return key_of_number(BNY_PLACE_SWITCH, n);
  return key_of_number(BNY_PLACE_SWITCH, gpu);
}

static void gpu_fill(const view *v, int32_t node, bny_place *place) {
  bny_place_level *near = &place->levels[BNY_PLACE_SWITCH];
  place->compute = v->topo->nodes[node].compute;
  place->merge_ns_per_byte = bny_price_merge_gpu(place->compute, &place->memory_gbytes_per_s);
  near->key = switch_of(v->topo, node);
  near->link = place->levels[BNY_PLACE_PACKAGE].link;
}

static void nic_fill(const view *v, const bny_topo_rank *rank, bny_place *place) {
  const bny_topo_level *rails = bny_topo_level_of(v->derived, BNY_TOPO_LEVEL_RAIL);
  place->rail = rank->rail;
  if (rank->rail >= 0) place->levels[BNY_PLACE_RAIL].key = key_of_number(BNY_PLACE_RAIL, rank->rail);
  if (rank->nic < 0) return;
  const bny_topo_node *nic = &v->topo->nodes[rank->nic];
  place->nic = key_of_number(BNY_PLACE_RAIL, rank->nic);
  place->nic_gbytes_per_s = rank->nic_gbytes_per_s;
  place->nic_source = (int32_t)nic->source;
  int32_t r = (int32_t)(rank - v->derived->ranks);
  if (rails && rails->group_of[r] >= 0) place->nic_source = (int32_t)rails->groups[rails->group_of[r]].source;
  snprintf(place->nic_name, sizeof place->nic_name, "%s", nic->name);
}

static void node_fill(const view *v, int32_t node, bny_place *place) {
  int32_t numa = bny_topo_ancestor(v->topo, node, BNY_TOPO_NUMA);
  int32_t package = bny_topo_ancestor(v->topo, node, BNY_TOPO_PACKAGE);
  int32_t host = bny_topo_ancestor(v->topo, node, BNY_TOPO_HOST);
  if (!v->gpus && numa >= 0) place->levels[BNY_PLACE_NUMA].key = key_of_number(BNY_PLACE_NUMA, numa);
  if (!v->gpus && package >= 0 && !place->levels[BNY_PLACE_PACKAGE].key)
    place->levels[BNY_PLACE_PACKAGE].key = key_of_number(BNY_PLACE_PACKAGE, package);
  if (host >= 0) place->node = key_of(bny_hash_add(key_of_number(BNY_PLACE_HOST, host), v->hash));
}

/* Links of classes that no level of the model describes. */
static void classes_fill(const view *v, bny_place *place) {
  for (int kind = 0; kind < BNY_PLACE_KINDS; kind++) {
    int32_t tiers = kind == BNY_PLACE_CORE ? 2 : kind == BNY_PLACE_SPINE ? 1 : 0;
    bny_link_class class = class_of(v, (bny_place_kind)kind, BNY_TOPO_PATH_SELF);
    if (kind != BNY_PLACE_CACHE) place->levels[kind].link = link_of(v->prices, class, (link_facts){.tiers = tiers});
  }
}

static void rank_fill(const view *v, int32_t rank, bny_place *place) {
  const bny_topo_rank *r = &v->derived->ranks[rank];
  bny_place_unknown(v->prices, place);
  classes_fill(v, place);
  for (int32_t i = 0; i < v->derived->nlevels; i++) level_fill(v, rank, &v->derived->levels[i], place);
  if (v->gpus) gpu_fill(v, r->node, place);
  nic_fill(v, r, place);
  node_fill(v, r->node, place);
}

void bny_place_of(const bny_topo *topo, const bny_topo_levels *derived, int32_t rank, const bny_prices *prices,
                  bny_place *place) {
  view v = look(topo, derived, prices);
  rank_fill(&v, rank, place);
}

void bny_place_of_all(const bny_topo *topo, const bny_topo_levels *derived, const bny_prices *prices,
                      bny_place *places) {
  view v = look(topo, derived, prices);
  for (int32_t rank = 0; rank < derived->nranks; rank++) rank_fill(&v, rank, &places[rank]);
}

void bny_place_at(const bny_topo *topo, const bny_topo_levels *derived, int32_t node, const bny_prices *prices,
                  bny_place *place) {
  view v = look(topo, derived, prices);
  v.gpus = false;
  v.packages = bny_topo_count(topo, BNY_TOPO_PACKAGE) > bny_topo_count(topo, BNY_TOPO_HOST);
  bny_place_unknown(prices, place);
  classes_fill(&v, place);
  node_fill(&v, node, place);
}
