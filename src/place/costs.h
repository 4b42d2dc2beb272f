/* SPDX-License-Identifier: Apache-2.0
 *
 * A file of measured costs (BANYAN_COSTS), as banyan-topo --measure --save-costs writes it:
 *
 *   {"version": "0.1.0", "command": .., "date": .., "node": {..},
 *    "costs_version": 1,
 *    "machine": {"cpu": .., "packages": .., "numa_nodes": .., "cores": .., "gpus": .., "nics": ..},
 *    "merge_ns_per_byte": .., it may be missing
 *    "links": [{"class": "cache", "alpha_ns": .., "message_ns": .., it may be missing
 *               "beta_ns_per_byte": .., "source": "the median of 6 pairs ..."}, ..]} */
#ifndef BNY_PLACE_COSTS_H
#define BNY_PLACE_COSTS_H

#include "banyan.h"
#include "place/machine.h"
#include "place/price.h"

enum { BNY_COSTS_VERSION = 1 };

/* The name of a class in the file. Unlike bny_price.name it names one class only. */
const char *bny_costs_class_name(bny_link_class class);

/* Replaces the rows of *prices that the file has. The file is rejected, and *prices stays as it was, if it was measured
 * on another machine, or has an unknown version or class, a repeated class, or an impossible number. */
banyan_status bny_costs_read(const char *path, bny_prices *prices);

/* The same on a given machine, for tests. */
banyan_status bny_costs_read_on(const bny_machine *machine, const char *path, bny_prices *prices);

#endif
