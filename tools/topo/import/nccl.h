/* SPDX-License-Identifier: Apache-2.0
 * State and functions that the parts of the importer of NCCL's XML share. */
#pragma once

#include "topo/model/model.h"
#include "tools/topo/import/xml.h"

enum { BNY_TOPO_NCCL_HOSTS = 1024 };

typedef struct bny_topo_nccl {
  const bny_topo_xml *xml;
  bny_topo *topo;
  bny_topo_error *error;
  int32_t *node_of;                             /* by element; -1: no node, and its content is skipped */
  bny_topo_names hosts, buses, numas, gpus;     /* hosts: few, in order of first use */
  double sys_gbytes_per_s[BNY_TOPO_NCCL_HOSTS]; /* by host, between NUMA nodes: its slowest processor, as in NCCL */
  int32_t ncpus;
  bool has_gpus, has_nets; /* false in a partial file, which NCCL completes */
  int32_t numbered_gpus, numbered_nics;
} bny_topo_nccl;

bool bny_topo_nccl_fail(const bny_topo_nccl *r, int32_t element, const char *what);

/* Returns the value of an attribute; NULL if it is absent or empty. number() reads one in [least, most]. */
const char *bny_topo_nccl_text(const bny_topo_nccl *r, int32_t element, const char *name);
bool bny_topo_nccl_number(const bny_topo_nccl *r, int32_t element, const char *name, int64_t least, int64_t most,
                          int64_t *value);

/* Adds the node of an element. */
bool bny_topo_nccl_add(bny_topo_nccl *r, int32_t element, const bny_topo_node *node);

/* nccl_device.c: the elements below a <cpu>, and a note about virtual interfaces. */
bool bny_topo_nccl_pci(bny_topo_nccl *r, int32_t pci, int32_t parent);
bool bny_topo_nccl_gpu(bny_topo_nccl *r, int32_t gpu, int32_t parent);
bool bny_topo_nccl_nic(bny_topo_nccl *r, int32_t nic, int32_t parent);
bool bny_topo_nccl_net(bny_topo_nccl *r, int32_t net, int32_t parent);
bool bny_topo_nccl_note_virtual(bny_topo_nccl *r);

/* nccl_link.c: adds the <nvlink>, <xgmi> and <c2c> of every <gpu>, and the <pcilink> of every <pci>. Requires r->buses,
 * sorted and scoped by host. */
bool bny_topo_nccl_links(const bny_topo_nccl *r);
