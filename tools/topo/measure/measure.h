/* SPDX-License-Identifier: Apache-2.0
 * Measured costs of links between the CPUs of this machine, for banyan-topo --save-costs.
 *
 * Up to TOPO_PAIRS_OF_KIND pairs of CPUs of each nearness are measured in short blocks that alternate, so that a
 * disturbance does not affect one kind alone. Results are medians of the blocks in which the kernel ran no other
 * program on the CPUs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tools/common/util.h"

enum { TOPO_PAIRS_OF_KIND = 20, TOPO_SWEEPS_MAX = 64, TOPO_MESSAGE_BYTES = 16 << 10, TOPO_BUFFER_BYTES = 1 << 20 };

/* The part of the machine that two CPUs share, nearest first. */
typedef enum topo_near {
  TOPO_NEAR_CORE,
  TOPO_NEAR_L2,
  TOPO_NEAR_L3,
  TOPO_NEAR_NUMA,
  TOPO_NEAR_PACKAGE,
  TOPO_NEAR_SYSTEM, /* different packages */
  TOPO_NEARS
} topo_near;

typedef enum topo_metric {
  TOPO_LINE, /* ns, one way: from the store of a signal until the peer reads it */
  TOPO_MORE, /* ns: additional time for a second signal, stored right after the first */
  TOPO_TAKE, /* ns: to read 16 KiB that the peer has just written */
  TOPO_COPY, /* GB/s: to copy 1 MiB that the peer has just written, while the peer does the same */
  TOPO_METRICS
} topo_metric;

/* A CPU and the parts of the machine that contain it. Caches and cores have the number of their lowest CPU. -1
 * unknown. */
typedef struct topo_place {
  int32_t cpu, core, l2, l3, numa, package;
} topo_place;

typedef struct topo_pair {
  int32_t a, b; /* places, a < b */
  topo_near near;
} topo_pair;

/* All pairs of one nearness. A message of n bytes takes alpha + n beta. */
typedef struct topo_measured_kind {
  int32_t npairs;
  double more_ns;
  double alpha_ns, beta_ns_per_byte; /* 0, 0: no fit */
} topo_measured_kind;

typedef struct topo_measured {
  int32_t nsweeps;
  topo_measured_kind kinds[TOPO_NEARS];
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

/* Lists the CPUs that this process may use, in ascending order. On failure it returns false and sets *error. */
bool topo_places(const char *sysfs, topo_place **places, int32_t *nplaces, tool_error *error);
topo_near topo_near_between(const topo_place *a, const topo_place *b);

/* Chooses up to TOPO_PAIRS_OF_KIND pairs of each kind at random. Kinds take turns in the list. */
topo_pair *topo_pairs_choose(const topo_place *places, int32_t nplaces, int32_t *npairs);

/* One side of a pair: a thread on a CPU. */
typedef struct topo_side {
  int32_t cpu;
  double value[TOPO_METRICS];
  bool disturbed[TOPO_METRICS]; /* another program used the CPU */
} topo_side;

/* Measures a pair once, by two threads; the first one leads (measure/pair.c). Returns false and sets *error if a thread
 * cannot run on its CPU, or if it waits for the other without success. */
bool topo_pair_measure(topo_side sides[2], tool_error *error);
