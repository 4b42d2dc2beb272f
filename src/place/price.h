/* SPDX-License-Identifier: Apache-2.0
 *
 * The only table of prices: the default cost of a link of each class. The library and the tools plan with it. A message
 * of n bytes takes alpha + n * beta. Alpha is software plus distance, and beta is 1 / speed. Speeds of NVLinks, PCI and
 * NICs are nearly always known (topo/model/speed.h), so their column is for unknown ones. */
#ifndef BNY_PLACE_PRICE_H
#define BNY_PLACE_PRICE_H

#include <stdbool.h>
#include <stdint.h>

#include "plan/levels.h"

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
  double software_ns;  /* to write, to signal and to see the signal, without the way itself */
  double way_ns;       /* the latency of a known link takes its place */
  double message_ns;   /* as in bny_link_cost; 0: nothing is known */
  double gbytes_per_s; /* the speed of a known link takes its place */
  bool shared;         /* all ranks of a node share the speed */
  bool measured;       /* the figures were measured, and the speed of a known link does not take their place */
  const char *source;  /* the source of these figures */
} bny_price;

typedef struct bny_prices {
  bny_price rows[BNY_LINK_CLASSES];
  double merge_ns_per_byte; /* by a CPU rank */
  char source[160];         /* "" if nothing was measured */
} bny_prices;

extern const bny_prices bny_prices_default;

/* Two more switches on the way from leaf to leaf. */
extern const double bny_price_tier_ns;

/* A rank that waits for its turn on a core. */
extern const double bny_price_switch_ns;

/* The cost of a link of which only the class is known. Figures of the processors are those of CPU ranks. */
bny_link_cost bny_price_cost(const bny_prices *prices, bny_link_class class, double ranks_per_core);

/* The time to merge a byte on a GPU of that compute capability (bny_topo_node.compute), and its memory's speed. */
double bny_price_merge_gpu(int32_t compute, double *gbytes_per_s);

#endif
