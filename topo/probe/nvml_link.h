/* SPDX-License-Identifier: Apache-2.0
 * The NVML probe in two parts: GPUs and their place (probe_nvml.c), and their NVLinks (nvml_link.c). */
#ifndef BNY_TOPO_PROBE_NVML_LINK_H
#define BNY_TOPO_PROBE_NVML_LINK_H

#include "topo/model/model.h"
#include "topo/probe/nvml.h"

/* All links of a GPU to one other node. */
typedef struct bny_nvml_way {
  int32_t to; /* node */
  int32_t up, down;
  double megabytes; /* sum of raw MB/s of links that are up; 0 if the driver does not report it */
} bny_nvml_way;

typedef struct bny_nvml_gpu {
  bny_nvml_device device;
  unsigned number; /* NVML's */
  char bus_id[BNY_TOPO_BUS_BYTES];
  int32_t node, compute;  /* compute: -1 unknown */
  int32_t domain;         /* node of the NVLink domain where it is registered; -1 */
  bool fabric_failed;     /* it has a fabric, but is not registered */
  int32_t down_somewhere; /* links that are down and have no known target */
  int32_t nways;
  bny_nvml_way ways[BNY_NVML_LINKS_MAX];
} bny_nvml_gpu;

enum { BNY_NVML_SWITCHES_MAX = 64 };

typedef struct bny_nvml_machine {
  const bny_nvml *nvml;
  const char *sysfs;
  bny_topo *topo;
  int32_t host;
  bny_nvml_gpu *gpus;
  int32_t ngpus;
  struct {
    char bus_id[BNY_TOPO_BUS_BYTES]; /* "" hidden */
    int32_t node;
  } switches[BNY_NVML_SWITCHES_MAX];
  int32_t nswitches;
  int32_t links, links_down, links_unseen, links_refused; /* for the report; unseen: up, target unknown */
} bny_nvml_machine;

/* Finds and adds the NVLinks of all GPUs, which are already in the model. Lack of memory sets topo->out_of_memory. */
void bny_nvml_links(bny_nvml_machine *machine);

#endif
