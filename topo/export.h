/* SPDX-License-Identifier: Apache-2.0
 * A model in the formats of others; our own is topo/json.h. Text for the caller to free; NULL and *error on failure. */
#ifndef BNY_TOPO_EXPORT_H
#define BNY_TOPO_EXPORT_H

#include "topo/model.h"

/* NCCL's topology XML, for NCCL_TOPO_FILE. What the model does not know is left out, and NCCL looks it up where it runs; a
 * device without a bus id gets one of a domain from fffe downwards. Fabric switches are no part of that format. Refuses a
 * model whose GPUs and NICs it could not all hold, such as those outside of any host, or what no reader would take. */
char *bny_topo_export_nccl(const bny_topo *topo, bny_topo_error *error);

/* A synthetic description of hwloc, for HWLOC_SYNTHETIC and lstopo -i: "Package:2 NUMANode:4 PU:1". It holds packages and NUMA
 * nodes of one host, which must be regular, and nothing else: the model knows no cores, and hwloc's text no devices. */
char *bny_topo_export_hwloc(const bny_topo *topo, bny_topo_error *error);

#endif
