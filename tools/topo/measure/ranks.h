/* SPDX-License-Identifier: Apache-2.0
 * The processes of banyan-topo --measure: one pinned to each CPU, asleep until it gets an order. They share only memory
 * that was mapped before the fork, so nothing remains when they end. */
#ifndef BNY_TOOLS_TOPO_MEASURE_RANKS_H
#define BNY_TOOLS_TOPO_MEASURE_RANKS_H

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "tools/topo/measure/measure.h"

typedef enum topo_job {
  TOPO_JOB_PREPARE, /* touches the buffers of its NUMA node first, to place them there */
  TOPO_JOB_LOCAL,   /* copies its own data */
  TOPO_JOB_PAIR,    /* measures with `peer`, which has the same job */
  TOPO_JOB_WRITE,   /* writes its part of a stream */
  TOPO_JOB_READ     /* reads the part of `peer`, together with all other readers */
} topo_job;

typedef struct topo_order {
  topo_job job;
  int32_t peer;
  bool leads;           /* pair: starts, and decides when to stop */
  int32_t readers;      /* stream: number of readers */
  size_t offset, bytes; /* stream: part of the buffer of the writer's NUMA node */
  uint64_t base;        /* signals of this job are above it */
} topo_order;

typedef struct topo_answer {
  bool done;                    /* all signals arrived in time */
  bool disturbed[TOPO_METRICS]; /* another program used the CPU */
  double value[TOPO_METRICS];   /* pair: this rank's read bandwidth; the leader also has line and message */
  double line_least;
  int64_t start_ns, end_ns; /* times of reading a stream */
} topo_answer;

/* The orders and answers between a rank and the parent. */
typedef struct topo_mailbox {
  _Alignas(128) sem_t go;
  sem_t done;
  topo_order order;
  topo_answer answer;
} topo_mailbox;

typedef struct topo_ranks {
  int32_t nranks, nnodes; /* nodes: NUMA nodes with ranks */
  const topo_measured_rank *ranks;
  pid_t *pids;                /* 0: not running */
  int32_t *node_of;           /* by rank: NUMA node */
  int64_t patience_ns;        /* time limit of an order */
  sigset_t held, mask_before; /* signals deferred until topo_ranks_stop(), and the previous mask */
  uint64_t base;              /* base of the next job */
  /* shared memory: */
  char *memory;
  size_t memory_bytes;
  topo_mailbox *mailboxes;  /* by rank */
  _Atomic int32_t *arrived; /* readers of a stream that are ready */
  char *areas, *buffers;
  size_t area_bytes;
  /* private to each process: */
  bool *touched; /* by node: the pages of its buffers are mapped in this process */
} topo_ranks;

/* A rank's own signal, and its message slots, in pages of its own that it touches first. */
typedef _Atomic uint64_t topo_signal;
topo_signal *topo_ranks_signal(const topo_ranks *ranks, int32_t rank);
char *topo_ranks_message(const topo_ranks *ranks, int32_t rank, uint64_t number);
/* TOPO_LARGE_BYTES each. */
char *topo_ranks_source(const topo_ranks *ranks, int32_t node);
char *topo_ranks_target(const topo_ranks *ranks, int32_t node);

/* Starts the ranks and waits until all are ready. On failure nothing is left, and *ranks need not be stopped. */
bool topo_ranks_start(topo_ranks *ranks, const topo_measured_rank *places, int32_t nranks, tool_error *error);
void topo_ranks_stop(topo_ranks *ranks);

/* Gives each of `count` ranks its order, all with the same base, and waits for the answers. */
bool topo_ranks_do(topo_ranks *ranks, const int32_t *who, const topo_order *orders, int32_t count, tool_error *error);

/* Run in a rank (measure/work.c). */
void topo_rank_touch(topo_ranks *ranks, int32_t rank);
topo_answer topo_rank_work(topo_ranks *ranks, int32_t rank, const topo_order *order);

#endif
