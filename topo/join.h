/* SPDX-License-Identifier: Apache-2.0
 *
 * One model from those of several machines. Each is copied as it is, in their order, but for two things:
 *
 *     hosts     a name that another host has already gets a number behind it: "node", "node-2", "node-3"
 *     switches  outside of hosts (leaf, spine, NVLink domain) that have the same guid are one switch, that of the first
 *               model that has it; a link between two such switches that several models tell of is copied once, with as
 *               many links beside it as the model has that knows most
 *
 * So hosts that name the same switch are joined by it. Switches without a guid, and those in hosts, stay apart. */
#ifndef BNY_TOPO_JOIN_H
#define BNY_TOPO_JOIN_H

#include "topo/model.h"

/* A checked model; those that it was made from are left as they are, and need to have passed bny_topo_check(). NULL and
 * *error if there are none, too many nodes, no memory, or devices without a host that contradict one another. The time
 * it takes grows with n log n. */
bny_topo *bny_topo_join(const bny_topo *const *hosts, int32_t count, bny_topo_error *error);

#endif
