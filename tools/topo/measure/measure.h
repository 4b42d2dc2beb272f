/* SPDX-License-Identifier: Apache-2.0
 * Measured costs of links between the CPUs of this machine, for banyan-topo --save-costs.
 *
 * Ranks are processes, one on each CPU that the caller may use. Up to TOPO_PAIRS_OF_KIND pairs of each nearness are
 * measured in short blocks that alternate, so that a disturbance does not affect one kind alone. Results are medians of
 * the blocks in which the kernel ran no other program on the CPUs. */
#pragma once

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tools/common/util.h"

enum {
  TOPO_PAIRS_OF_KIND = 20,
  TOPO_SWEEPS_MAX = 64,
  TOPO_MESSAGE_BYTES = 16 << 10,
  TOPO_MESSAGE_SLOTS = 2,
  TOPO_BUFFER_BYTES = 1 << 20,
};

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
  int32_t a, b; /* ranks, a < b */
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

/* Measures for about that long. Returns false and sets *error if there is one CPU only, or if ranks die or do not
 * answer. The program must have only one thread. `sysfs` is NULL for /sys. Ranks and memory are always released, even
 * if a signal ends the program. */
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
topo_pair *topo_pairs_choose(const topo_place *places, int32_t nranks, int32_t *npairs);

/* ---- ranks: each is pinned to one CPU and sleeps until it receives an order -------------------------------------- */

typedef struct topo_order {
  int32_t peer;  /* -1: touch the buffers of its NUMA node first, which allocates them there */
  bool leads;    /* this rank starts, and decides when to stop */
  uint64_t base; /* signals of this order are larger */
} topo_order;

typedef struct topo_answer {
  bool done;                    /* all signals arrived in time */
  bool disturbed[TOPO_METRICS]; /* another program used the CPU */
  double value[TOPO_METRICS];   /* only the leader has TOPO_LINE and TOPO_MORE */
} topo_answer;

/* Order and answer between a rank and the parent, in shared memory. */
typedef struct topo_mailbox {
  _Alignas(128) sem_t go;
  sem_t done;
  topo_order order;
  topo_answer answer;
} topo_mailbox;

/* All memory that ranks share was mapped before the fork, so nothing remains when they end. */
typedef struct topo_ranks {
  int32_t nranks, nnodes; /* nodes: NUMA nodes with ranks */
  const topo_place *places;
  pid_t *pids;                /* 0: not running */
  int32_t *node_of;           /* by rank: NUMA node */
  int64_t patience_ns;        /* time limit of an order */
  sigset_t held, mask_before; /* signals blocked until topo_ranks_stop(), and the previous mask */
  uint64_t base;              /* base of the next order */
  /* shared memory: */
  char *memory;
  size_t memory_bytes;
  topo_mailbox *mailboxes; /* by rank */
  char *areas, *buffers;
  size_t area_bytes;
} topo_ranks;

typedef _Atomic uint64_t topo_signal;

/* Starts the ranks and waits until all are ready. On failure it releases everything, and *ranks need not be stopped. */
bool topo_ranks_start(topo_ranks *ranks, const topo_place *places, int32_t nranks, tool_error *error);
void topo_ranks_stop(topo_ranks *ranks);

/* Gives each of `count` ranks its order, all with the same base, and waits for the answers. */
bool topo_ranks_do(topo_ranks *ranks, const int32_t *who, const topo_order *orders, int32_t count, tool_error *error);

/* Run in a rank (measure/work.c). */
void topo_rank_touch(topo_ranks *ranks, int32_t rank);
topo_answer topo_rank_work(topo_ranks *ranks, int32_t rank, const topo_order *order);
