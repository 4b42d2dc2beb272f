/* SPDX-License-Identifier: Apache-2.0
 * Links between devices in NCCL's XML: a part of topo/import/nccl.c. */
#ifndef BNY_TOPO_IMPORT_NCCL_LINK_H
#define BNY_TOPO_IMPORT_NCCL_LINK_H

#include "topo/model/model.h"
#include "topo/model/names.h"
#include "topo/import/xml.h"

/* Attributes of elements that a node keeps as they are, up to NULL. */
extern const char *const bny_topo_nccl_cpu_attributes[],
    *const bny_topo_nccl_pci_attributes[], *const bny_topo_nccl_gpu_attributes[], *const bny_topo_nccl_net_attributes[];

/* Adds the <nvlink>, <xgmi> and <c2c> of every <gpu>, and the <pcilink> of every <pci>. node_of holds the node of each
 * element or -1; buses (sorted, by host) the element of each bus id. */
bool bny_topo_nccl_links(const bny_topo_xml *xml, bny_topo *topo, const int32_t *node_of, const bny_topo_names *buses,
                         bny_topo_error *error);

#endif
