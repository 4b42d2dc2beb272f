/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines and clusters described by a line of text, from the outside in:
 *
 *     leaf:2 host:8 nvswitch gpu:8 nic:8@400g
 *     nvswitch host:18 package:2 gpu:2@sm100@c2c nic:2@400g
 *     host package:2 pci:4 gpu@sm90@gen5x16 nic@400g@gen5x16
 *
 *     description = item { blank item }            on one line; lines that start with # are comments
 *     item        = name [ ":" count ] { "@" attribute }        count: 1 to 65536, 1 if left out
 *
 * An item stands `count` times in each of what stands before it. Devices (gpu, nic) hang in the container that was
 * opened last, and what follows them hangs beside them: "gpu:8 nic:8" is eight of each. Containers of the fabric
 * stand outside of hosts, the others inside; without a host there is one.
 *
 *     name        what it is                                 attributes
 *     spine       hosts under one spine switch               a speed: of its uplink, e.g. 3200g
 *     leaf        hosts under one leaf switch; "fabric" is   rails: a switch for each NIC of a host, the first NIC
 *                 the same                                   of every host on the first; a speed: of each uplink
 *     host
 *     nvswitch    GPUs below are joined by NVSwitch, also    links of each GPU (18): a number; a speed of each link
 *                 those of several hosts, if outside of them
 *     nvlink      each two GPUs below have a link            links between two (1); a speed of each link
 *     xgmi        the same over AMD's links                  the same
 *     package     of a CPU
 *     numa        a NUMA node
 *     bridge      a host bridge
 *     pci         a PCI switch; they nest                    genGxW: its own link upwards
 *     gpu                                                    smNN or gfxNNN; genGxW; c2c: a coherent link to the CPU
 *                                                            (with a speed: c2c450GB)
 *     nic                                                    a speed of its port; 2x200g: two ports; genGxW
 *
 * Speeds are in one direction: 400g is 400 Gb/s, 50GB is 50 GB/s. What is left out is unknown, but for the speed of
 * a link between GPUs of a known generation, which is assumed, as is the uplink of a leaf: as fast as all below.
 * Fabric containers that stand several times on the outside are joined by one switch above. Hosts are named host0,
 * host1 .., GPUs GPU0 .. and NICs NIC0 .. in each; PCI devices get bus ids in the order of the text. */
#ifndef BNY_TOPO_SYNTHETIC_H
#define BNY_TOPO_SYNTHETIC_H

#include <stdbool.h>

#include "topo/model.h"

/* The description of a model, as a string to free(); NULL, with the reason in *error, if the model is not regular
 * enough to be said in this way. What comes back when the text is imported has the same nodes and the same path
 * between any two devices, but for the NVSwitches of a domain, which become one; names, models and what was measured
 * are lost. */
char *bny_topo_export_synthetic(const bny_topo *topo, bny_topo_error *error);

/* The text as items, for who wants only to know whether it is one. */
bool bny_topo_is_synthetic(const char *text, size_t bytes);

#endif
