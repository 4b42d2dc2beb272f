/* SPDX-License-Identifier: Apache-2.0
 * Determines path types between devices, from links first and then from the lowest common ancestor. */
#include <string.h>

#include "topo/model/model.h"

static const bny_topo_node *node_at(const bny_topo *topo, int32_t n) { return &topo->nodes[n]; }

static bool holds_cpus(const bny_topo_node *node) {
  return node->kind == BNY_TOPO_NUMA || node->kind == BNY_TOPO_PACKAGE;
}

/* A node between two devices: a switch with NVLinks or xGMI links, or a CPU with coherent links. */
typedef enum between { BETWEEN_SWITCH, BETWEEN_CPU } between;

static bool fits(between way, const bny_topo_link *link) {
  return way == BETWEEN_CPU ? link->kind == BNY_TOPO_LINK_C2C : bny_topo_joins_gpus(link);
}

/* Returns whether a and b are linked directly or over a node of that kind. */
static bool are_joined(const bny_topo *topo, int32_t a, int32_t b, between way) {
  for (int32_t l = bny_topo_first_link(topo, a); l >= 0; l = bny_topo_next_link(topo, a, l)) {
    int32_t middle = bny_topo_other_end(topo, a, l);
    if (!fits(way, &topo->links[l]) || middle == a) continue;
    if (middle == b) return true;
    const bny_topo_node *node = node_at(topo, middle);
    bool passes = way == BETWEEN_CPU ? holds_cpus(node) : node->kind == BNY_TOPO_SWITCH;
    /* The search runs from b's side, because a switch may have more links than a GPU. */
    for (int32_t m = bny_topo_first_link(topo, b); passes && m >= 0; m = bny_topo_next_link(topo, b, m))
      if (fits(way, &topo->links[m]) && bny_topo_other_end(topo, b, m) == middle) return true;
  }
  return false;
}

/* Returns whether a GPU has links to other GPUs or to a switch. */
static bool has_fabric(const bny_topo *topo, int32_t gpu) {
  for (int32_t l = bny_topo_first_link(topo, gpu); l >= 0; l = bny_topo_next_link(topo, gpu, l))
    if (bny_topo_joins_gpus(&topo->links[l]) && bny_topo_other_end(topo, gpu, l) != gpu) return true;
  return false;
}

/* Returns whether a PCI switch above a is linked to one above b, so that data need not pass the CPU. */
static bool share_switches(const bny_topo *topo, int32_t a, int32_t b) {
  for (int32_t n = node_at(topo, a)->parent; n >= 0 && node_at(topo, n)->kind == BNY_TOPO_PCI;
       n = node_at(topo, n)->parent) {
    for (int32_t l = bny_topo_first_link(topo, n); l >= 0; l = bny_topo_next_link(topo, n, l)) {
      int32_t other = bny_topo_other_end(topo, n, l);
      if (topo->links[l].kind != BNY_TOPO_LINK_PCI || other == node_at(topo, n)->parent ||
          node_at(topo, other)->parent == n || node_at(topo, other)->kind != BNY_TOPO_PCI)
        continue;
      if (bny_topo_is_below(topo, b, other)) return true;
    }
  }
  return false;
}

static int depth_of(const bny_topo *topo, int32_t n) {
  int depth = 0;
  while (node_at(topo, n)->parent >= 0) {
    n = node_at(topo, n)->parent;
    depth++;
  }
  return depth;
}

/* The lowest common ancestor of two nodes, and its child on either side (or the node itself). */
typedef struct meeting {
  int32_t at, below_a, below_b;
  int switches; /* PCI nodes between both that are not host bridges, `at` included */
} meeting;

static meeting meet(const bny_topo *topo, int32_t a, int32_t b) {
  meeting m = {.at = -1, .below_a = a, .below_b = b};
  int32_t sides[2] = {a, b}, *below[2] = {&m.below_a, &m.below_b};
  int depths[2] = {depth_of(topo, a), depth_of(topo, b)};
  while (sides[0] != sides[1] && sides[0] >= 0 && sides[1] >= 0) {
    int up = depths[0] >= depths[1] ? 0 : 1;
    const bny_topo_node *from = node_at(topo, sides[up]);
    m.switches += from->kind == BNY_TOPO_PCI && !from->host_bridge && sides[up] != a && sides[up] != b;
    *below[up] = sides[up];
    sides[up] = from->parent;
    depths[up]--;
  }
  if (sides[0] == sides[1] && sides[0] >= 0) {
    m.at = sides[0];
    m.switches += node_at(topo, m.at)->kind == BNY_TOPO_PCI && !node_at(topo, m.at)->host_bridge;
  }
  return m;
}

/* Recognises functions of one device: 0000:0a:00.0 and 0000:0a:00.1. */
static bool same_device(const bny_topo_node *a, const bny_topo_node *b) {
  if (a->bus_id == NULL || b->bus_id == NULL) return false;
  const char *function = strrchr(a->bus_id, '.');
  size_t bytes = function == NULL ? 0 : (size_t)(function - a->bus_id) + 1;
  return bytes > 1 && strncmp(a->bus_id, b->bus_id, bytes) == 0;
}

static bool known_host_bridge(const bny_topo_node *node) { return node->kind == BNY_TOPO_PCI && node->host_bridge; }

/* Returns whether a PCI domain is that of a real device. Files for virtual machines invent switches at ffff:ff:01.0 and
 * above. */
static bool real_domain(const bny_topo_node *node) {
  return node->bus_id != NULL && strncmp(node->bus_id, "ff", 2) != 0;
}

/* Returns the path between devices of one CPU or NUMA node: PHB unless they have different known host bridges. */
static bny_topo_path within_numa(const bny_topo *topo, meeting m) {
  const bny_topo_node *a = node_at(topo, m.below_a), *b = node_at(topo, m.below_b);
  if (known_host_bridge(a) && known_host_bridge(b)) return BNY_TOPO_PATH_NODE;
  /* A host bridge has its own PCI domain, or part of one. */
  if (!real_domain(a) || !real_domain(b)) return BNY_TOPO_PATH_PHB;
  size_t domain = strcspn(a->bus_id, ":") + 1;
  return strncmp(a->bus_id, b->bus_id, domain) == 0 ? BNY_TOPO_PATH_PHB : BNY_TOPO_PATH_NODE;
}

static bny_topo_path by_containment(const bny_topo *topo, int32_t a, int32_t b) {
  meeting m = meet(topo, a, b);
  if (m.at < 0) return BNY_TOPO_PATH_NONE;
  const bny_topo_node *at = node_at(topo, m.at), *below_a = node_at(topo, m.below_a),
                      *below_b = node_at(topo, m.below_b);
  bool siblings = m.below_a == a && m.below_b == b;
  if (siblings && same_device(below_a, below_b)) return BNY_TOPO_PATH_PIX;
  switch (at->kind) {
  case BNY_TOPO_PCI:
    return at->host_bridge ? BNY_TOPO_PATH_PHB : m.switches <= 1 ? BNY_TOPO_PATH_PIX : BNY_TOPO_PATH_PXB;
  case BNY_TOPO_GPU:
  case BNY_TOPO_NIC:
  case BNY_TOPO_PORT:
  case BNY_TOPO_SWITCH: return BNY_TOPO_PATH_PIX;
  case BNY_TOPO_NUMA: return within_numa(topo, m);
  default: break;
  }
  if (holds_cpus(below_a) || holds_cpus(below_b)) return BNY_TOPO_PATH_SYS;
  /* Two devices of one package, or two bridges of one host, share the only NUMA node if there is at most one. */
  bool bridges = below_a->kind == BNY_TOPO_PCI && below_b->kind == BNY_TOPO_PCI;
  return (at->kind == BNY_TOPO_PACKAGE || bridges) && at->numas < 2 ? within_numa(topo, m) : BNY_TOPO_PATH_SYS;
}

/* Returns the NIC of a port, the device of a partition, and any other node itself. */
static int32_t device_of(const bny_topo *topo, int32_t n) {
  n = bny_topo_device(topo, n);
  int32_t nic = bny_topo_nic_of(topo, n);
  return nic < 0 ? n : nic;
}

bny_topo_path bny_topo_path_between(const bny_topo *topo, int32_t a, int32_t b) {
  if (a == b) return BNY_TOPO_PATH_SELF;
  int32_t device_a = device_of(topo, a), device_b = device_of(topo, b);
  if (device_a == device_b) /* partitions of a GPU, or ports of a NIC */
    return has_fabric(topo, device_a) ? BNY_TOPO_PATH_NVL : BNY_TOPO_PATH_PIX;
  if (are_joined(topo, device_a, device_b, BETWEEN_SWITCH)) return BNY_TOPO_PATH_NVL;
  int32_t host_a = bny_topo_ancestor(topo, a, BNY_TOPO_HOST), host_b = bny_topo_ancestor(topo, b, BNY_TOPO_HOST);
  if (host_a != host_b) return host_a < 0 || host_b < 0 ? BNY_TOPO_PATH_NONE : BNY_TOPO_PATH_NET;
  if (are_joined(topo, device_a, device_b, BETWEEN_CPU)) return BNY_TOPO_PATH_C2C;
  bny_topo_path path = by_containment(topo, device_a, device_b);
  return path > BNY_TOPO_PATH_PXB && share_switches(topo, device_a, device_b) ? BNY_TOPO_PATH_PXB : path;
}
