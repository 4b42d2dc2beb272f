/* SPDX-License-Identifier: Apache-2.0
 * The processes that banyan-topo --measure works with: one pinned to each CPU, asleep until it gets an order. All
 * that they share is memory that was mapped before they were made, so that nothing remains of it when they end. */
#ifndef TOPO_MEASURE_RANKS_H
#define TOPO_MEASURE_RANKS_H

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "topo_measure.h"

typedef enum topo_job {
  TOPO_JOB_PREPARE, /* the first to touch the buffers of its NUMA node, so that they lie there */
  TOPO_JOB_LOCAL,   /* copies what it wrote */
  TOPO_JOB_PAIR,    /* with `peer`, which has the same job */
  TOPO_JOB_WRITE,   /* writes its part of a stream */
  TOPO_JOB_READ     /* reads the part of `peer`, at the same time as all other readers */
} topo_job;

typedef struct topo_order {
  topo_job job;
  int32_t peer;
  bool leads;           /* pair: begins, and says when it is enough */
  int32_t readers;      /* stream: how many there are */
  size_t offset, bytes; /* stream: the part, in the buffer of the writer's NUMA node */
  uint64_t base;        /* signals of this job are greater */
} topo_order;

typedef struct topo_answer {
  bool done;                    /* all signals came in time */
  bool disturbed[TOPO_METRICS]; /* another program had the CPU for a while */
  double value
      [TOPO_METRICS]; /* of a pair: the bandwidth that this rank reads with, and if it leads the line and message */
  double line_least;
  int64_t start_ns, end_ns; /* of reading a stream */
} topo_answer;

/* Where a rank and the parent meet. */
typedef struct topo_desk {
  _Alignas(128) sem_t go;
  sem_t done;
  topo_order order;
  topo_answer answer;
} topo_desk;

typedef struct topo_ranks {
  int32_t nranks, nnodes; /* nodes: NUMA nodes that have ranks */
  const topo_measured_rank *ranks;
  pid_t *pids;                /* 0: not there */
  int32_t *node_of;           /* by rank: which of the NUMA nodes */
  int64_t patience_ns;        /* how long an order may take */
  sigset_t held, mask_before; /* signals that wait until topo_ranks_stop(), and what was blocked before */
  uint64_t base;              /* of the next job */
  /* shared: */
  char *memory;
  size_t memory_bytes;
  topo_desk *desks;         /* by rank */
  _Atomic int32_t *arrived; /* readers of a stream that are ready */
  char *areas, *buffers;
  size_t area_bytes;
  /* private to each process: */
  bool *touched; /* by node: the pages of its buffers are known to this process */
} topo_ranks;

/* Its own signal, and the slots that it writes messages to; in pages of its own, which it is the first to touch. */
typedef _Atomic uint64_t topo_signal;
topo_signal *topo_ranks_signal(const topo_ranks *ranks, int32_t rank);
char *topo_ranks_message(const topo_ranks *ranks, int32_t rank, uint64_t number);
/* TOPO_LARGE_BYTES each. */
char *topo_ranks_source(const topo_ranks *ranks, int32_t node);
char *topo_ranks_target(const topo_ranks *ranks, int32_t node);

/* Starts them and waits until all are ready. On failure nothing is left, and *ranks need not be stopped. */
bool topo_ranks_start(topo_ranks *ranks, const topo_measured_rank *places, int32_t nranks, tool_error *error);
void topo_ranks_stop(topo_ranks *ranks);

/* Gives each of `count` ranks its order, all with the same base, and waits for their answers. */
bool topo_ranks_do(topo_ranks *ranks, const int32_t *who, const topo_order *orders, int32_t count, tool_error *error);

/* In a rank (topo_measure_work.c). */
void topo_rank_touch(topo_ranks *ranks, int32_t rank);
topo_answer topo_rank_work(topo_ranks *ranks, int32_t rank, const topo_order *order);

#endif
