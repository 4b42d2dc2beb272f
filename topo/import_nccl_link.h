/* SPDX-License-Identifier: Apache-2.0
 * The links between devices of NCCL's XML: a part of topo/import_nccl.c. */
#ifndef BNY_TOPO_IMPORT_NCCL_LINK_H
#define BNY_TOPO_IMPORT_NCCL_LINK_H

#include "topo/model.h"
#include "topo/names.h"
#include "topo/xml.h"

/* Adds the <nvlink>, <xgmi> and <c2c> of every <gpu>. node_of has the node of each element or -1; buses, sorted, the element
 * of each bus id, by host. */
bool bny_topo_nccl_links(const bny_topo_xml *xml, bny_topo *topo, const int32_t *node_of, const bny_topo_names *buses,
                         bny_topo_error *error);

#endif
