/* SPDX-License-Identifier: Apache-2.0
 *
 * Measured times of combines, which selection prefers to predicted ones. They are a fact of requests, identical on
 * every rank. They exist for some sizes, and a request uses those of the size nearest to its own. */
#ifndef BNY_PLAN_MEASURED_H
#define BNY_PLAN_MEASURED_H

#include <stdio.h>

#include "plan/plan.h"

enum { BNY_MEASURED_MAX = 320, BNY_CARRIER_BYTES = 12, BNY_MACHINE_BYTES = 64 };

typedef struct bny_measurement {
  banyan_scatter scatter;
  banyan_order order;
  uint64_t bytes;    /* bytes of a rank's rows on the wire */
  int32_t algorithm; /* its index in bny_algorithms[] */
  /* How the executor ran it, which matters to the executor alone: the protocol's name, and one block taken per `share`
   * blocks for which there was work. */
  int32_t share;
  char carrier[BNY_CARRIER_BYTES];
  double ns; /* on the slowest rank */
} bny_measurement;

typedef struct bny_measured {
  char machine[BNY_MACHINE_BYTES]; /* a device's name */
  int32_t nranks;
  bool replays; /* graph replays were timed; else launches, whose host time may hide that of small combines */
  int32_t count;
  bny_measurement rows[BNY_MEASURED_MAX]; /* at most one for each scatter, order, size and algorithm */
} bny_measured;

/* The bytes that a rank's rows of a combine take on the wire. */
uint64_t bny_measured_bytes(const bny_request *request);

/* Finds the measurement at the nearest size of an algorithm, by its index in bny_algorithms[] or by its name, which
 * finds its fastest variant. NULL: none. */
const bny_measurement *bny_measured_find(const bny_request *request, int32_t algorithm);
const bny_measurement *bny_measured_find_named(const bny_request *request, const char *name);

/* Returns "replays" or "launches". */
const char *bny_measured_way(const bny_measured *measured);

/* A file with one line per row. Reading: BANYAN_ERR_ARGUMENT names the line that is wrong. */
int bny_measured_write(const bny_measured *measured, FILE *file); /* 0, or EOF if fprintf fails */
banyan_status bny_measured_read(FILE *file, const char *name, bny_measured *measured);

#endif
