/* SPDX-License-Identifier: Apache-2.0
 * Chooses the NICs that serve a rank best. Rails, tools and the library all follow this choice. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "topo/levels/derive.h"

/* A NIC below the first fraction of the host's most capable NIC is for management. A NIC below the second fraction of
 * the fastest equally near NIC serves another purpose. */
static const double management = 0.1, much_slower = 0.3;

enum { CLASS_ETHERNET = 0x0200, CLASS_INFINIBAND = 0x0207, VENDOR_CRAY = 0x17db };

typedef enum nic_kind { NIC_WIRELESS, NIC_VIRTUAL, NIC_ETHERNET, NIC_FABRIC } nic_kind;

static unsigned hex_of(const bny_topo_node *node, const char *name) {
  char value[BNY_TOPO_ATTRIBUTES_BYTES];
  return bny_topo_attribute(node, name, value) ? (unsigned)strtoul(value, NULL, 16) : 0;
}

static bool starts(const char *text, const char *const *prefixes) {
  for (; *prefixes != NULL; prefixes++)
    if (strncmp(text, *prefixes, strlen(*prefixes)) == 0) return true;
  return false;
}

static bool is_rdma(const char *nic) {
  static const char *const names[] = {"mlx",   "hfi",  "opa",     "cxi",   "hsi",  "hsn",  "rdma",  "efa",
                                      "ib",    "roce", "bnxt_re", "irdma", "mana", "qedr", "erdma", "hns",
                                      "ionic", "bxi",  "usnic",   "rxe",   "siw",  NULL};
  return starts(nic, names);
}

/* A NIC counts as Ethernet if it has the name of a network interface or the Ethernet class, and no sign of RDMA. Signs
 * of RDMA are a port, the name of an RDMA device, and the vendor of a network without Ethernet. */
static nic_kind kind_of(const bny_topo *topo, int32_t nic) {
  static const char *const wireless[] = {"wl", "ath", "iwl", NULL}, *const words[] = {"Wi-Fi", "WiFi", "Wireless",
                                                                                      "WLAN"};
  static const char *const interfaces[] = {"eth", "en", "em", "p1p", "p2p", "bond", "team", "vlan", NULL};
  const bny_topo_node *node = &topo->nodes[nic];
  unsigned class = hex_of(node, "class") >> 8;
  bool port =
      nic + 1 < topo->nnodes && topo->nodes[nic + 1].kind == BNY_TOPO_PORT && topo->nodes[nic + 1].parent == nic;
  const char *name = port && starts(topo->nodes[nic + 1].name, interfaces) ? topo->nodes[nic + 1].name : node->name;
  for (size_t i = 0; node->model != NULL && i < sizeof words / sizeof words[0]; i++)
    if (strstr(node->model, words[i]) != NULL) return NIC_WIRELESS;
  if (starts(name, wireless)) return NIC_WIRELESS;
  if (node->model != NULL && strstr(node->model, "Virtual Function") != NULL) return NIC_VIRTUAL;
  if (class == CLASS_INFINIBAND || hex_of(node, "vendor") == VENDOR_CRAY || is_rdma(name)) return NIC_FABRIC;
  if (starts(name, interfaces) || (!port && class >> 8 == 0x02)) return NIC_ETHERNET;
  return NIC_FABRIC;
}

bny_topo_network bny_topo_network_of(const bny_topo *topo, int32_t nic) {
  const bny_topo_node *port =
      nic + 1 < topo->nnodes && topo->nodes[nic + 1].parent == nic ? &topo->nodes[nic + 1] : NULL;
  const char *layer = port == NULL || port->model == NULL ? "" : port->model;
  unsigned class = hex_of(&topo->nodes[nic], "class") >> 8;
  if (strncmp(layer, "InfiniBand", 10) == 0 || class == CLASS_INFINIBAND) return BNY_TOPO_NETWORK_INFINIBAND;
  return strncmp(layer, "Ethernet", 8) == 0 || class == CLASS_ETHERNET ? BNY_TOPO_NETWORK_ETHERNET
                                                                       : BNY_TOPO_NETWORK_UNKNOWN;
}

/* Returns the speed that the hardware could have: the network speed if known, otherwise that of PCI. */
static double capability_of(const bny_topo_derivation *d, int32_t nic) {
  int32_t up = bny_topo_link_up(d->topo, nic, BNY_TOPO_LINK_PCI);
  double pci = up < 0 ? 0 : fmax(d->topo->links[up].rated_gbytes_per_s, d->topo->links[up].gbytes_per_s);
  return fmax(d->nic[nic].gbytes_per_s, pci);
}

void bny_topo_nics_class(bny_topo_derivation *d, const int32_t *nics, int32_t nnics) {
  double most = 0;
  nic_kind best = NIC_VIRTUAL; /* a wireless card never serves */
  for (int32_t j = 0; j < nnics; j++) {
    nic_kind kind = kind_of(d->topo, nics[j]);
    best = kind > best ? kind : best;
  }
  for (int32_t j = 0; j < nnics; j++) {
    double capability = kind_of(d->topo, nics[j]) == best ? capability_of(d, nics[j]) : 0;
    most = capability > most ? capability : most;
  }
  for (int32_t j = 0; j < nnics; j++) {
    double capability = capability_of(d, nics[j]);
    d->nic[nics[j]].serves = kind_of(d->topo, nics[j]) == best && !(capability > 0 && capability < management * most);
  }
  /* The network of most bandwidth serves all ranks of the host, since a rail over two of them would not connect. */
  double sums[BNY_TOPO_NETWORK_ETHERNET + 1] = {0};
  for (int32_t j = 0; j < nnics; j++)
    if (d->nic[nics[j]].serves) sums[bny_topo_network_of(d->topo, nics[j])] += fmax(capability_of(d, nics[j]), 1e-9);
  bny_topo_network other = sums[BNY_TOPO_NETWORK_INFINIBAND] >= sums[BNY_TOPO_NETWORK_ETHERNET]
                               ? BNY_TOPO_NETWORK_ETHERNET
                               : BNY_TOPO_NETWORK_INFINIBAND;
  for (int32_t j = 0; j < nnics && sums[BNY_TOPO_NETWORK_INFINIBAND] > 0; j++)
    if (bny_topo_network_of(d->topo, nics[j]) == other) d->nic[nics[j]].serves = false;
}

/* NICs are selected in this order:
 *   1. kind: RDMA networks (InfiniBand, RoCE, EFA, Slingshot, Omni-Path), then plain Ethernet, then virtual functions,
 *      but never a wireless card; of InfiniBand and Ethernet only the one with more bandwidth;
 *   2. speed: no management NIC, by network speed, or by PCI speed if the former is unknown;
 *   3. distance: the nearest by path; across NUMA nodes, a NIC in the same package is nearer;
 *   4. state: no NIC that is down or much slower than an equally near one.
 * Kind and speed compare all NICs of the host (bny_topo_nics_class()), so they do not depend on the rank. A NIC of the
 * right kind that is down or slow is selected if no other is as near. This keeps rail numbers stable. The
 * remaining NICs are equally good, and the least loaded one serves. */
int32_t bny_topo_nics_best(const bny_topo_derivation *d, int32_t node, const int32_t *nics, int32_t nnics,
                           unsigned char *paths, bool *best) {
  int32_t package = bny_topo_ancestor(d->topo, node, BNY_TOPO_PACKAGE), count = 0;
  int nearest = 2 * BNY_TOPO_PATHS + 2;
  double fastest = 0;
  for (int32_t j = 0; j < nnics; j++) paths[j] = (unsigned char)bny_topo_path_between(d->topo, node, nics[j]);
  for (int pass = 0; pass < 3; pass++) {
    for (int32_t j = 0; j < nnics; j++) {
      const bny_topo_sum *nic = &d->nic[nics[j]];
      bool elsewhere =
          paths[j] == BNY_TOPO_PATH_SYS && bny_topo_ancestor(d->topo, nics[j], BNY_TOPO_PACKAGE) != package;
      int distance = 2 * paths[j] + elsewhere;
      best[j] = false;
      if (!nic->serves) continue;
      if (pass == 0) {
        nearest = distance < nearest ? distance : nearest;
      } else if (pass == 1 && distance == nearest) {
        fastest = nic->gbytes_per_s > fastest ? nic->gbytes_per_s : fastest;
      } else if (pass == 2 && distance == nearest) {
        bool slow = nic->gbytes_per_s > 0 && nic->gbytes_per_s < much_slower * fastest;
        bool dead = nic->gbytes_per_s <= 0 && nic->down > 0;
        best[j] = !slow && !(dead && fastest > 0);
        count += best[j];
      }
    }
  }
  return count;
}
