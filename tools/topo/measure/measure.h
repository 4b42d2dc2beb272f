/* SPDX-License-Identifier: Apache-2.0
 * Measured costs of links between the CPUs of this machine, for banyan-topo --save-costs. Pairs of CPUs of each class
 * take turns, so that a disturbance does not affect one class alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "locality/price.h"
#include "tools/common/util.h"

enum { TOPO_PAIRS = 20, TOPO_CLASSES = BNY_LINK_SOCKETS + 1, TOPO_MESSAGE_BYTES = 16 << 10, TOPO_COPY_BYTES = 1 << 20 };

/* Medians over up to TOPO_PAIRS pairs of a class. A message of n bytes takes alpha + n beta. */
typedef struct topo_measured_class {
  int32_t npairs;
  double more_ns;                    /* additional time for a second signal, stored right after the first */
  double alpha_ns, beta_ns_per_byte; /* 0, 0: no fit */
} topo_measured_class;

typedef struct topo_measured {
  int32_t nsweeps;
  topo_measured_class classes[TOPO_CLASSES];
} topo_measured;

/* Measures for about that long. Returns false and sets *error if there is one CPU only, or if a thread gets no time on
 * its CPU. `sysfs` is NULL for /sys. */
bool topo_measure(const char *sysfs, double seconds, topo_measured *measured, tool_error *error);

/* Returns the text of a BANYAN_COSTS file for this machine. If nothing was measured, it returns NULL and sets
 * *error. */
char *topo_measured_costs(const topo_measured *measured, tool_error *error);

/* ---- parts, exposed for tests ------------------------------------------------------------------------------------ */

/* Fits alpha and beta by least squares of relative errors over times[i] of bytes[i]. Returns false if the points do not
 * determine them. */
bool topo_measure_fit(const double *bytes, const double *times, int32_t count, double *alpha, double *beta);

/* A CPU, its last cache, by the lowest CPU that shares it, and its package; -1 unknown. */
typedef struct topo_place {
  int32_t cpu, cache, package;
} topo_place;

typedef struct topo_pair {
  topo_place a, b;
} topo_pair;

/* Lists the CPUs that this process may use, in ascending order; at most `max`. Returns their number, or 0 if they
 * cannot be found out. */
int32_t topo_places(const char *sysfs, topo_place *places, int32_t max);

/* Chooses up to TOPO_PAIRS pairs of each class at random. */
void topo_pairs_choose(const topo_place *places, int32_t nplaces, topo_pair pairs[TOPO_CLASSES][TOPO_PAIRS],
                       int32_t npairs[TOPO_CLASSES]);

typedef enum topo_metric {
  TOPO_LINE, /* one way: from the store of a signal until the peer reads it */
  TOPO_MORE, /* additional time for a second signal, stored right after the first */
  TOPO_TAKE, /* to read TOPO_MESSAGE_BYTES that the peer has just written */
  TOPO_COPY, /* to copy TOPO_COPY_BYTES that the peer has just written, while the peer does the same */
  TOPO_METRICS
} topo_metric;

/* Measures two CPUs once, by a thread on each: nanoseconds, the means of both sides. *disturbed tells whether another
 * program used one of the CPUs. Returns false and sets *error if a thread cannot run on its CPU, or if it waits for the
 * other without success. */
bool topo_pair_measure(int32_t cpu_a, int32_t cpu_b, double times[TOPO_METRICS], bool *disturbed, tool_error *error);
