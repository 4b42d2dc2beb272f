/* SPDX-License-Identifier: Apache-2.0
 * Descriptions of machines in one line of text. */
#pragma once

#include <stdbool.h>

#include "topo/model/model.h"
#include "topo/model/text.h"

/* A description lists the parts of a machine or cluster from the outside in:
 *
 *     leaf:2 host:8 nvswitch gpu:8 nic:8@400g
 *     nvswitch host:18 package:2 gpu:2@sm100@c2c nic:2@400g
 *     host package:2 pci:4 gpu@sm90@gen5x16 nic@400g@gen5x16
 *
 *     description = item { blank item }            on one line; lines that start with # are comments
 *     item        = name [ ":" count ] { "@" attribute }        count: 1 to 65536, 1 if omitted
 *
 * An item occurs `count` times in each instance of the items before it. Devices (gpu, nic) belong to the container
 * opened last, and later items are their siblings: "gpu:8 nic:8" is eight of each. Fabric containers are outside hosts,
 * the others inside. If the text contains no host, one is added.
 *
 *     name        meaning                                    attributes
 *     spine       hosts under one spine switch               uplink speed, e.g. 3200g
 *     leaf        hosts under one leaf switch; "fabric" is   rails: a switch for each NIC of a host, the first NIC
 *                 the same                                   of every host on the first; speed of each uplink
 *     host
 *     nvswitch    GPUs below are joined by NVSwitch, also    links of each GPU (18): a number; speed of each link
 *                 across hosts if outside them
 *     nvlink      each two GPUs below have a link            links between two (1); speed of each link
 *     xgmi        the same over AMD's links                  the same
 *     package     a CPU package
 *     numa        a NUMA node
 *     bridge      a host bridge
 *     pci         a PCI switch; they nest                    genGxW: its own link upwards
 *     gpu                                                    smNN or gfxNNN; genGxW; c2c: a coherent link to the CPU
 *                                                            (with a speed: c2c450GB)
 *     nic                                                    speed of its port; 2x200g: two ports; genGxW
 *
 * Speeds are in one direction: 400g is 400 Gb/s, 50GB is 50 GB/s. Omitted values are unknown, with two exceptions.
 * Links between GPUs of a known generation get that generation's speed, and a leaf's uplink gets the sum of the links
 * below it; both are marked as assumed. If the outermost fabric container has a count, one switch above joins its
 * instances. Hosts are named host0, host1 .., GPUs GPU0 .. and NICs NIC0 .. in each; PCI devices get bus ids in the
 * order of the text. */

/* Returns whether the text starts like a description. */
bool bny_topo_is_synthetic(const char *text, size_t bytes);

/* The items of a synthetic description before the model is built (synthetic.h has the grammar). */

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

/* Parses all items and inserts an omitted host. Returns false and sets *error if the text violates the grammar. */
bool bny_topo_items_parse(const char *text, size_t bytes, bny_topo_item items[BNY_TOPO_ITEMS_MAX], int *count,
                          bny_topo_error *error);

static inline bool bny_topo_item_is_device(const bny_topo_item *item) {
  return item->kind == BNY_TOPO_ITEM_GPU || item->kind == BNY_TOPO_ITEM_NIC;
}

/* Returns whether the item only links the GPUs below it (nvswitch, nvlink, xgmi). */
static inline bool bny_topo_item_is_joint(const bny_topo_item *item) {
  return item->kind == BNY_TOPO_ITEM_NVSWITCH || item->kind == BNY_TOPO_ITEM_NVLINK || item->kind == BNY_TOPO_ITEM_XGMI;
}

const char *bny_topo_item_name(bny_topo_item_kind kind);
