/* SPDX-License-Identifier: Apache-2.0
 * Prices of links: from a table, or from a file of measurements on this machine. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "banyan.h"
#include "plan/levels.h"

/* The only table of prices: the default cost of a link of each class. The library and the tools plan with it. A message
 * of n bytes takes alpha + n * beta. Alpha is software plus distance, and beta is 1 / speed. Speeds of NVLinks, PCI and
 * NICs are nearly always known (topo/model/speed.h), so their column is for unknown ones. */

typedef enum bny_link_class {
  BNY_LINK_CACHE,   /* CPU ranks of one last-level cache */
  BNY_LINK_MEMORY,  /* CPU ranks that share memory, of one package */
  BNY_LINK_SOCKETS, /* CPU ranks on several packages */
  BNY_LINK_NVLINK,
  BNY_LINK_XGMI,
  BNY_LINK_C2C,
  BNY_LINK_PCIE,     /* GPUs below one package */
  BNY_LINK_PCIE_SYS, /* GPUs of several packages */
  BNY_LINK_NETWORK,  /* GPU to GPU */
  BNY_LINK_NETWORK_CPU,
  BNY_LINK_TCP,
  BNY_LINK_CLASSES
} bny_link_class;

typedef struct bny_price {
  const char *name;
  double software_ns;  /* to write, to signal and to see the signal, without the latency of the link */
  double way_ns;       /* latency of the link; a known latency replaces it */
  double message_ns;   /* as in bny_link_cost; 0: nothing is known */
  double gbytes_per_s; /* a known speed replaces it */
  bool shared;         /* all ranks of a node share the speed */
  bool posted;         /* as in bny_link_cost */
  bool measured;       /* the figures were measured, and a known speed does not replace them */
  const char *source;  /* the source of these figures */
} bny_price;

typedef struct bny_prices {
  bny_price rows[BNY_LINK_CLASSES];
  double merge_ns_per_byte; /* by a CPU rank */
  char source[160];         /* "" if nothing was measured */
} bny_prices;

extern const bny_prices bny_prices_default;

/* The additional cost of two more switches between two leaves. */
extern const double bny_price_tier_ns;

/* The cost of a rank that waits for its turn on a core. */
extern const double bny_price_switch_ns;

/* The cost of a link if only its class is known. Figures of the processors are those of CPU ranks. */
bny_link_cost bny_price_cost(const bny_prices *prices, bny_link_class class, double ranks_per_core);

/* The time to merge a byte on a GPU of that compute capability (bny_topo_node.compute), and its memory's speed. */
double bny_price_merge_gpu(int32_t compute, double *gbytes_per_s);

/* The identity of a machine, used to reject figures that were measured on another one. It stays the same over boots, in
 * containers, and for processes that may use only some CPUs. */

typedef struct bny_machine {
  char cpu[128]; /* the model; "": unknown */
  int32_t packages, numa_nodes, cores;
  char gpus[1024]; /* PCI bus and model ids such as "0000:1b:00.0 10de:2330, 0000:43:00.0 10de:2330" */
  char nics[1024]; /* network adapters in the same form; names of interfaces differ from container to container */
} bny_machine;

/* Fills *machine from the files below `root`, which is "" except in tests. Fields that cannot be read are "" or 0. */
void bny_machine_find(const char *root, bny_machine *machine);

/* A file of measured costs (BANYAN_COSTS), as banyan-topo --save-costs writes it:
 *
 *   {"version": "0.1.0", "command": .., "date": .., "node": {..},
 *    "costs_version": 1,
 *    "machine": {"cpu": .., "packages": .., "numa_nodes": .., "cores": .., "gpus": .., "nics": ..},
 *    "merge_ns_per_byte": .., it may be missing
 *    "links": [{"class": "cache", "alpha_ns": .., "message_ns": .., it may be missing
 *               "beta_ns_per_byte": .., "source": "the median of 6 pairs ..."}, ..]} */

enum { BNY_COSTS_VERSION = 1 };

/* The name of a class in the file. Unlike bny_price.name it names one class only. */
const char *bny_costs_class_name(bny_link_class class);

/* Replaces the rows of *prices that the file has. The file is rejected, and *prices stays as it was, if it was measured
 * on another machine, or has an unknown version or class, a repeated class, or an impossible number. */
banyan_status bny_costs_read(const char *path, bny_prices *prices);

/* Does the same for a given machine, for tests. */
banyan_status bny_costs_read_on(const bny_machine *machine, const char *path, bny_prices *prices);
