/* SPDX-License-Identifier: Apache-2.0
 * The network devices of this node, and those that one rank uses. */
#pragma once

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

typedef struct bny_net_device {
  char name[64];               /* as UCX names it: "mlx5_0:1", a port of an RDMA adapter, or "eth0" */
  char interface[IF_NAMESIZE]; /* for an adapter, the network interface on it; "": none */
  bool is_adapter;             /* an RDMA adapter; else a network interface, over which UCX uses TCP */
  bool is_up;
} bny_net_device;

/* Lists the devices below `sysfs` ("/sys"), adapters first, in the order of their names. A missing folder counts as
 * empty. The caller frees *devices. */
banyan_status bny_net_devices_find(const char *sysfs, bny_net_device **devices, int32_t *ndevices);

typedef struct bny_net_device_wishes {
  const char *option;    /* BANYAN_NET_DEVICES; NULL: unset, likewise below */
  const char *interface; /* the kernel's name of the interface that BANYAN_INTERFACE means */
  const char *nearest;   /* the NICs nearest to this rank, such as "mlx5_0,mlx5_1" */
  const char *ucx;       /* UCX_NET_DEVICES */
  const char *reached;   /* the interface over which the bootstrap reached rank 0, or, on rank 0, was reached */
  const char *shared;    /* interfaces whose address another node has as well, such as "docker0,virbr0" */
} bny_net_device_wishes;

typedef struct bny_net_device_choice {
  char *list;   /* for UCX's NET_DEVICES; owned. NULL: UCX or the user chooses */
  char why[96]; /* "BANYAN_NET_DEVICES" */
} bny_net_device_choice;

/* Chooses the devices of one rank from these facts alone, by the rules of docs/design.md#networks. */
banyan_status bny_net_devices_choose(const bny_net_device_wishes *wishes, const bny_net_device *devices,
                                     int32_t ndevices, bny_net_device_choice *choice);
