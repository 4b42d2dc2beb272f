/* SPDX-License-Identifier: Apache-2.0
 * RDMA devices as libibverbs tells of them, behind a table, so that a test can tell of others. */
#ifndef BNY_TOPO_PROBE_VERBS_H
#define BNY_TOPO_PROBE_VERBS_H

#include "topo/probe.h"

typedef struct bny_topo_verbs_device {
  uint64_t guid; /* of the node; 0 unknown */
  int32_t vendor, part;
  int32_t ports;
} bny_topo_verbs_device;

/* Numbers as the InfiniBand specification has them. */
enum { BNY_TOPO_VERBS_DOWN = 1, BNY_TOPO_VERBS_ACTIVE = 4, BNY_TOPO_VERBS_INFINIBAND = 1, BNY_TOPO_VERBS_ETHERNET = 2 };

typedef struct bny_topo_verbs_port {
  uint64_t guid;      /* 0 unknown */
  int32_t state;      /* 1 down, 2 initialising, 3 armed, 4 active, 5 active but troubled */
  int32_t link_layer; /* 1 InfiniBand, 2 Ethernet; 0 is InfiniBand as old drivers say it */
  int32_t speed;      /* of a lane: 1 SDR, 2 DDR, 4 QDR, 8 FDR10, 16 FDR, 32 EDR, 64 HDR, 128 NDR, 256 XDR */
  int32_t width;      /* 1: one lane, 2: 4, 4: 8, 8: 12, 16: 2 */
  int32_t lid;        /* 0 none */
} bny_topo_verbs_port;

typedef struct bny_topo_verbs {
  /* Devices, for the other functions until they are closed; NULL and errno if there is no support. */
  void *(*open)(int32_t *count);
  void (*close)(void *devices);
  const char *(*name)(void *devices, int32_t device);
  /* 0, or an errno: then nothing is known but the name. Opens the device until `release`. */
  int (*device)(void *devices, int32_t device, bny_topo_verbs_device *facts);
  int (*port)(void *devices, int32_t device, int32_t port, bny_topo_verbs_port *facts); /* port: from 1 */
  void (*release)(void *devices);
} bny_topo_verbs;

/* Asks `verbs`, and sysfs for where its devices stand. */
void bny_topo_verbs_take(const bny_topo_verbs *verbs, const char *sysfs, bny_topo *topo, bny_topo_probe_report *report);

#endif
