/* SPDX-License-Identifier: Apache-2.0
 * Finds the locality of a rank in a model. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "locality/locality.h"

static const char *const kind_names[BNY_LOCALITY_KINDS] = {"cache",  "numa", "package", "switch", "island", "host",
                                                           "domain", "rail", "leaf",    "spine",  "core"};

/* Maps kinds of level of a model to kinds of locality. */
static const bny_locality_kind kind_of[BNY_TOPO_LEVEL_KINDS] = {
    [BNY_TOPO_LEVEL_PACKAGE] = BNY_LOCALITY_PACKAGE, [BNY_TOPO_LEVEL_ISLAND] = BNY_LOCALITY_ISLAND,
    [BNY_TOPO_LEVEL_HOST] = BNY_LOCALITY_HOST,       [BNY_TOPO_LEVEL_DOMAIN] = BNY_LOCALITY_DOMAIN,
    [BNY_TOPO_LEVEL_RAIL] = BNY_LOCALITY_RAIL,       [BNY_TOPO_LEVEL_LEAF] = BNY_LOCALITY_LEAF,
    [BNY_TOPO_LEVEL_SPINE] = BNY_LOCALITY_SPINE,     [BNY_TOPO_LEVEL_CORE] = BNY_LOCALITY_CORE};

const char *bny_locality_kind_name(bny_locality_kind kind) {
  return (unsigned)kind < BNY_LOCALITY_KINDS ? kind_names[kind] : "?";
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

static bny_locality_link link_of(const bny_prices *prices, bny_link_class class, link_facts facts) {
  const bny_price *price = &prices->rows[class];
  bool latency_known = facts.latency_us > 0 && !price->measured;
  double way_ns = latency_known ? facts.latency_us * 1e3 : price->way_ns + facts.tiers * bny_price_tier_ns;
  bny_locality_link link = {.alpha_ns = price->software_ns + way_ns,
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

bny_locality_link bny_locality_link_of(const bny_prices *prices, bny_link_class class) {
  return link_of(prices, class, (link_facts){.tiers = 0});
}

static int32_t tiers_of(int kind) { return kind == BNY_LOCALITY_CORE ? 2 : kind == BNY_LOCALITY_SPINE ? 1 : 0; }

void bny_locality_unknown(const bny_prices *prices, bny_locality *locality) {
  memset(locality, 0, sizeof *locality);
  for (int kind = 0; kind < BNY_LOCALITY_KINDS; kind++) {
    bny_link_class class = kind == BNY_LOCALITY_CACHE    ? BNY_LINK_CACHE
                           : kind <= BNY_LOCALITY_DOMAIN ? BNY_LINK_MEMORY
                                                         : BNY_LINK_NETWORK_CPU;
    locality->levels[kind].link = link_of(prices, class, (link_facts){.tiers = tiers_of(kind)});
  }
  locality->tcp = link_of(prices, BNY_LINK_TCP, (link_facts){.tiers = 0});
  locality->merge_ns_per_byte = prices->merge_ns_per_byte;
  locality->compute = -1;
  locality->rail = -1;
  locality->topo_rank = -1;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static uint64_t key_of(uint64_t hash) { return hash ? hash : 1; }

static uint64_t key_of_number(bny_locality_kind kind, int32_t number) {
  return key_of(bny_hash_add(bny_hash_of((uint64_t)kind), (uint64_t)number));
}

static uint64_t model_hash(const bny_topo *topo) {
  uint64_t hash = bny_hash_add(BNY_HASH_START, (uint64_t)topo->nnodes);
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_HOST)
      hash = bny_hash_add_bytes(hash, topo->nodes[n].name, strlen(topo->nodes[n].name));
  return hash;
}

/* A switch that ranks of two models share is identified by its guid. */
static uint64_t key_of_group(const view *v, const bny_topo_level *level, int32_t g) {
  bny_locality_kind kind = kind_of[level->kind];
  int32_t node = level->groups[g].node;
  const char *guid = node >= 0 ? v->topo->nodes[node].guid : NULL;
  if (kind < BNY_LOCALITY_HOST) return key_of_number(kind, g);
  if (kind > BNY_LOCALITY_HOST && guid)
    return key_of(bny_hash_add_bytes(bny_hash_of((uint64_t)kind), guid, strlen(guid)));
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

static bny_link_class class_of(const view *v, bny_locality_kind kind, bny_topo_path path) {
  if (path >= BNY_TOPO_PATH_NET || kind >= BNY_LOCALITY_RAIL) return v->gpus ? BNY_LINK_NETWORK : BNY_LINK_NETWORK_CPU;
  if (!v->gpus) return v->packages && kind > BNY_LOCALITY_PACKAGE ? BNY_LINK_SOCKETS : BNY_LINK_MEMORY;
  if (path == BNY_TOPO_PATH_SELF) return BNY_LINK_PCIE;
  if (path == BNY_TOPO_PATH_NVL) return v->xgmi ? BNY_LINK_XGMI : BNY_LINK_NVLINK;
  if (path == BNY_TOPO_PATH_C2C) return BNY_LINK_C2C;
  return path == BNY_TOPO_PATH_SYS ? BNY_LINK_PCIE_SYS : BNY_LINK_PCIE;
}

/* The speed of a network level is that of the rank's NIC, which is shared by the ranks of the communicator. It is set
 * here only where uplinks of switches are narrower. */
static void level_fill(const view *v, int32_t rank, const bny_topo_level *level, bny_locality *locality) {
  int32_t g = level->group_of[rank];
  if (g < 0) return;
  const bny_topo_group *group = &level->groups[g];
  const bny_topo_rank *r = &v->derived->ranks[rank];
  bny_locality_kind kind = kind_of[level->kind];
  bny_link_class class = class_of(v, kind, group->path);
  link_facts facts = {group->gbytes_per_s, group->latency_us, group->source, tiers_of(kind)};
  /* The speed of the group is that of its PCIe links, which a link between packages does not reach. */
  double between = v->sys_gbytes_per_s > 0 ? v->sys_gbytes_per_s : v->prices->rows[class].gbytes_per_s;
  if (class == BNY_LINK_PCIE_SYS && between < facts.gbytes_per_s) facts.gbytes_per_s = v->sys_gbytes_per_s;
  double share = r->nic_shared > 0 ? r->nic_gbytes_per_s / r->nic_shared : 0;
  if (kind >= BNY_LOCALITY_RAIL && (kind <= BNY_LOCALITY_LEAF || facts.gbytes_per_s >= share)) facts.gbytes_per_s = 0;
  locality->levels[kind].link = link_of(v->prices, class, facts);
  locality->levels[kind].key = key_of_group(v, level, g);
  locality->levels[kind].up_gbytes_per_s = group->up_gbytes_per_s;
}

/* A GPU at a host bridge of its own is alone at its switch. */
static uint64_t switch_of(const bny_topo *topo, int32_t gpu) {
  for (int32_t n = topo->nodes[gpu].parent; n >= 0 && topo->nodes[n].kind != BNY_TOPO_HOST; n = topo->nodes[n].parent)
    if (topo->nodes[n].kind == BNY_TOPO_PCI && !topo->nodes[n].host_bridge)
      return key_of_number(BNY_LOCALITY_SWITCH, n);
  return key_of_number(BNY_LOCALITY_SWITCH, gpu);
}

static void nic_fill(const view *v, const bny_topo_rank *rank, bny_locality *locality) {
  const bny_topo_level *rails = bny_topo_level_of(v->derived, BNY_TOPO_LEVEL_RAIL);
  locality->rail = rank->rail;
  if (rank->rail >= 0) locality->levels[BNY_LOCALITY_RAIL].key = key_of_number(BNY_LOCALITY_RAIL, rank->rail);
  if (rank->nic < 0) return;
  const bny_topo_node *nic = &v->topo->nodes[rank->nic];
  locality->nic = key_of_number(BNY_LOCALITY_RAIL, rank->nic);
  locality->nic_gbytes_per_s = rank->nic_gbytes_per_s;
  locality->nic_source = (int32_t)nic->source;
  int32_t r = (int32_t)(rank - v->derived->ranks);
  if (rails && rails->group_of[r] >= 0) locality->nic_source = (int32_t)rails->groups[rails->group_of[r]].source;
  snprintf(locality->nic_name, sizeof locality->nic_name, "%s", nic->name);
}

static void node_fill(const view *v, int32_t node, bny_locality *locality) {
  int32_t numa = bny_topo_ancestor(v->topo, node, BNY_TOPO_NUMA);
  int32_t package = bny_topo_ancestor(v->topo, node, BNY_TOPO_PACKAGE);
  int32_t host = bny_topo_ancestor(v->topo, node, BNY_TOPO_HOST);
  if (!v->gpus && numa >= 0) locality->levels[BNY_LOCALITY_NUMA].key = key_of_number(BNY_LOCALITY_NUMA, numa);
  if (!v->gpus && package >= 0 && !locality->levels[BNY_LOCALITY_PACKAGE].key)
    locality->levels[BNY_LOCALITY_PACKAGE].key = key_of_number(BNY_LOCALITY_PACKAGE, package);
  if (host >= 0) locality->node = key_of(bny_hash_add(key_of_number(BNY_LOCALITY_HOST, host), v->hash));
}

/* Links of classes that no level of the model describes. */
static void classes_fill(const view *v, bny_locality *locality) {
  for (int kind = 0; kind < BNY_LOCALITY_KINDS; kind++) {
    bny_link_class class = class_of(v, (bny_locality_kind)kind, BNY_TOPO_PATH_SELF);
    if (kind != BNY_LOCALITY_CACHE)
      locality->levels[kind].link = link_of(v->prices, class, (link_facts){.tiers = tiers_of(kind)});
  }
}

static void rank_fill(const view *v, int32_t rank, bny_locality *locality) {
  const bny_topo_rank *r = &v->derived->ranks[rank];
  bny_locality_unknown(v->prices, locality);
  classes_fill(v, locality);
  for (int32_t i = 0; i < v->derived->nlevels; i++) level_fill(v, rank, &v->derived->levels[i], locality);
  if (v->gpus) {
    locality->compute = v->topo->nodes[r->node].compute;
    locality->merge_ns_per_byte = bny_price_merge_gpu(locality->compute, &locality->memory_gbytes_per_s);
    locality->levels[BNY_LOCALITY_SWITCH].key = switch_of(v->topo, r->node);
    locality->levels[BNY_LOCALITY_SWITCH].link = locality->levels[BNY_LOCALITY_PACKAGE].link;
  }
  nic_fill(v, r, locality);
  node_fill(v, r->node, locality);
}

void bny_locality_of(const bny_topo *topo, const bny_topo_levels *derived, int32_t rank, const bny_prices *prices,
                     bny_locality *locality) {
  view v = look(topo, derived, prices);
  rank_fill(&v, rank, locality);
}

void bny_locality_of_all(const bny_topo *topo, const bny_topo_levels *derived, const bny_prices *prices,
                         bny_locality *localities) {
  view v = look(topo, derived, prices);
  for (int32_t rank = 0; rank < derived->nranks; rank++) rank_fill(&v, rank, &localities[rank]);
}

void bny_locality_at(const bny_topo *topo, const bny_topo_levels *derived, int32_t node, const bny_prices *prices,
                     bny_locality *locality) {
  view v = look(topo, derived, prices);
  v.gpus = false;
  v.packages = bny_topo_count(topo, BNY_TOPO_PACKAGE) > bny_topo_count(topo, BNY_TOPO_HOST);
  bny_locality_unknown(prices, locality);
  classes_fill(&v, locality);
  node_fill(&v, node, locality);
}
