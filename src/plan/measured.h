/* SPDX-License-Identifier: Apache-2.0
 *
 * Times of combines that were measured, which selection takes in place of predicted ones. A fact of requests: identical on
 * every rank. They are kept for some sizes; a request is served by those of the size nearest to its own. */
#ifndef BNY_PLAN_MEASURED_H
#define BNY_PLAN_MEASURED_H

#include <stdio.h>

#include "plan/plan.h"

enum { BNY_MEASURED_MAX = 320, BNY_CARRIER_BYTES = 12, BNY_MACHINE_BYTES = 64 };

typedef struct bny_measurement {
  banyan_scatter scatter;
  banyan_order order;
  uint64_t bytes;    /* of a rank's rows on the wire */
  int32_t algorithm; /* its place in bny_algorithms[] */
  /* How the executor did it, its matter alone: the protocol's name, and that it took one in so many of the blocks for which
   * there was work. */
  int32_t share;
  char carrier[BNY_CARRIER_BYTES];
  double ns; /* on the slowest rank */
} bny_measurement;

typedef struct bny_measured {
  char machine[BNY_MACHINE_BYTES]; /* a device's name */
  int32_t nranks;
  bool replays; /* of a graph were timed; else launches, the host's time for which may hide that of small combines */
  int32_t count;
  bny_measurement rows[BNY_MEASURED_MAX]; /* of one scatter, order, size and algorithm there is one at most */
} bny_measured;

/* Of a combine, what a rank's rows take on the wire. */
uint64_t bny_measured_bytes(const bny_request *request);

/* Of an algorithm by its place in bny_algorithms[], or by its name, the fastest of its variants; at the nearest size. NULL:
 * there is none. */
const bny_measurement *bny_measured_find(const bny_request *request, int32_t algorithm);
const bny_measurement *bny_measured_find_named(const bny_request *request, const char *name);

/* "replays", "launches". */
const char *bny_measured_way(const bny_measured *measured);

/* As a file, a line for each. Reading: BANYAN_ERR_ARGUMENT names the line that is wrong. */
int bny_measured_write(const bny_measured *measured, FILE *file); /* 0, or EOF as of fprintf */
banyan_status bny_measured_read(FILE *file, const char *name, bny_measured *measured);

/* "none", "root", "heads", "tokens"; "plan", "canonical". */
const char *bny_scatter_name(banyan_scatter scatter);
const char *bny_order_name(banyan_order order);

#endif
