/* SPDX-License-Identifier: Apache-2.0
 * The items of a synthetic description before the model is built (synthetic.h has the grammar). */
#ifndef BNY_TOPO_SYNTHETIC_ITEMS_H
#define BNY_TOPO_SYNTHETIC_ITEMS_H

#include "topo/model/text.h"

typedef enum bny_topo_item_kind {
  BNY_TOPO_ITEM_SPINE,
  BNY_TOPO_ITEM_LEAF,
  BNY_TOPO_ITEM_NVSWITCH,
  BNY_TOPO_ITEM_NVLINK,
  BNY_TOPO_ITEM_XGMI,
  BNY_TOPO_ITEM_HOST,
  BNY_TOPO_ITEM_PACKAGE,
  BNY_TOPO_ITEM_NUMA,
  BNY_TOPO_ITEM_BRIDGE,
  BNY_TOPO_ITEM_PCI,
  BNY_TOPO_ITEM_GPU,
  BNY_TOPO_ITEM_NIC,
  BNY_TOPO_ITEM_KINDS
} bny_topo_item_kind;

enum { BNY_TOPO_ITEMS_MAX = 32 };

typedef struct bny_topo_item {
  bny_topo_item_kind kind;
  int32_t count;
  int32_t links;             /* 0 unknown */
  double speed_gbytes_per_s; /* 0 unknown */
  int32_t ports;
  int32_t compute;                   /* -1 unknown */
  int32_t pci_generation, pci_lanes; /* 0 unknown */
  bool rails, c2c;
  int line;
} bny_topo_item;

/* Parses all items and inserts an omitted host. Returns false and *error if the text breaks the grammar. */
bool bny_topo_items_parse(const char *text, size_t bytes, bny_topo_item items[BNY_TOPO_ITEMS_MAX], int *count,
                          bny_topo_error *error);

static inline bool bny_topo_item_is_device(const bny_topo_item *item) {
  return item->kind == BNY_TOPO_ITEM_GPU || item->kind == BNY_TOPO_ITEM_NIC;
}

/* Returns whether the item joins GPUs without containing anything itself. */
static inline bool bny_topo_item_is_joint(const bny_topo_item *item) {
  return item->kind == BNY_TOPO_ITEM_NVSWITCH || item->kind == BNY_TOPO_ITEM_NVLINK || item->kind == BNY_TOPO_ITEM_XGMI;
}

const char *bny_topo_item_name(bny_topo_item_kind kind);

#endif
