/* SPDX-License-Identifier: Apache-2.0
 * RDMA devices as libibverbs reports them, behind a table that tests can replace. */
#ifndef BNY_TOPO_PROBE_VERBS_H
#define BNY_TOPO_PROBE_VERBS_H

#include "topo/probe/probe.h"

typedef struct bny_topo_verbs_device {
  uint64_t guid; /* node GUID; 0 unknown */
  int32_t vendor, part;
  int32_t ports;
} bny_topo_verbs_device;

/* Numbers of the InfiniBand specification. */
enum { BNY_TOPO_VERBS_DOWN = 1, BNY_TOPO_VERBS_ACTIVE = 4, BNY_TOPO_VERBS_INFINIBAND = 1, BNY_TOPO_VERBS_ETHERNET = 2 };

typedef struct bny_topo_verbs_port {
  uint64_t guid;      /* 0 unknown */
  int32_t state;      /* 1 down, 2 initialising, 3 armed, 4 active, 5 active but troubled */
  int32_t link_layer; /* 1 InfiniBand, 2 Ethernet; 0: InfiniBand from old drivers */
  int32_t speed;      /* per lane: 1 SDR, 2 DDR, 4 QDR, 8 FDR10, 16 FDR, 32 EDR, 64 HDR, 128 NDR, 256 XDR */
  int32_t width;      /* 1: one lane, 2: 4, 4: 8, 8: 12, 16: 2 */
  int32_t lid;        /* 0 none */
} bny_topo_verbs_port;

typedef struct bny_topo_verbs {
  /* Opens the list of devices for the other functions, until `close`. Returns NULL and errno without support. */
  void *(*open)(int32_t *count);
  void (*close)(void *devices);
  const char *(*name)(void *devices, int32_t device);
  /* Returns 0, or an errno if only the name is known. The device stays open until `release`. */
  int (*device)(void *devices, int32_t device, bny_topo_verbs_device *facts);
  int (*port)(void *devices, int32_t device, int32_t port, bny_topo_verbs_port *facts); /* port: from 1 */
  void (*release)(void *devices);
} bny_topo_verbs;

/* Adds the devices of `verbs` to the model, at their places in sysfs. */
void bny_topo_verbs_take(const bny_topo_verbs *verbs, const char *sysfs, bny_topo *topo, bny_topo_probe_report *report);

#endif
