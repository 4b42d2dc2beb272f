/* SPDX-License-Identifier: Apache-2.0
 *
 * Joins the models of several machines into one. Nodes and links are copied in order, with two exceptions:
 *
 *     hosts     a name that another host already has gets a number: "node", "node-2", "node-3"
 *     switches  outside hosts (leaf, spine, NVLink domain) with the same guid become one switch, that of the first
 *               model that has it; a link between two such switches in several models is copied once, with the
 *               largest count of parallel links in any model
 *
 * Hosts that name the same switch are thus connected by it. Switches without a guid, and those in hosts, stay
 * separate. */
#ifndef BNY_TOPO_JOIN_H
#define BNY_TOPO_JOIN_H

#include "topo/model/model.h"

/* Returns a checked model to free. The inputs must have passed bny_topo_check() and are not changed. Returns NULL and
 * *error if there are no models, too many nodes, no memory, or contradictory devices without a host. Takes time O(n log
 * n). */
bny_topo *bny_topo_join(const bny_topo *const *hosts, int32_t count, bny_topo_error *error);

#endif
