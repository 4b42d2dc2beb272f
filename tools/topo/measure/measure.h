/* SPDX-License-Identifier: Apache-2.0
 * Measurements between the ranks of a machine. */
#pragma once

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tools/common/util.h"
#include "topo/model/model.h"

/* banyan-topo --measure measures the times of signals and data between this machine's CPUs, and compares them with the
 * expected ones.
 *
 * Ranks are processes, one on each of the first CPUs that the caller may use, in the order of banyan-perf --ranks. With
 * at most TOPO_ALL_PAIRS ranks all pairs are measured, otherwise a sample with pairs of every nearness. Pairs are
 * measured in short alternating blocks, so that a disturbance does not affect only one pair. The result is the median
 * of a pair's blocks, without blocks in which the kernel ran another program on one of the CPUs. */

enum {
  TOPO_ALL_PAIRS = 16,
  TOPO_BLOCKS_MAX = 64,
  TOPO_RANKS_MAX = 4096,
  TOPO_MESSAGE_BYTES = 16 << 10,
  TOPO_MESSAGE_SLOTS = 2,
  TOPO_SMALL_BYTES = 1 << 20,
  TOPO_LARGE_BYTES = 16 << 20,
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
  TOPO_LINE,    /* ns, one way: from the store of a signal until the peer reads it */
  TOPO_MORE,    /* ns: additional time for a second signal, stored right after the first */
  TOPO_MESSAGE, /* ns, one way: write, signal and read 16 KiB */
  TOPO_TAKE,    /* ns: the read part of TOPO_MESSAGE */
  TOPO_SMALL,   /* GB/s: copy 1 MiB that the peer has just written, while the peer does the same */
  TOPO_LARGE,   /* GB/s: the same with 16 MiB */
  TOPO_METRICS
} topo_metric;

/* A CPU and the parts of the machine that contain it. Caches and cores have the number of their lowest CPU. -1
 * unknown. */
typedef struct topo_place {
  int32_t cpu, core, l2, l3, numa, package;
} topo_place;

typedef struct topo_measured_rank {
  topo_place place;
  int32_t nblocks;            /* 0: copying its own data was not measured */
  double small, large;        /* GB/s: copying its own data */
  int32_t ntaken, ndisturbed; /* number of samples, and of those in which another program used the CPU */
  bool slow;                  /* result of judging: slow with all others, or by itself */
} topo_measured_rank;

typedef struct topo_measured_pair {
  int32_t a, b; /* ranks, a < b */
  topo_near near;
  int32_t nblocks;
  /* [0]: a reads b's data, [1]: b reads a's; line and message use only [0]. */
  double value[TOPO_METRICS][2];
  double line_low, line_high; /* 10th and 90th percentile of blocks */
  /* results of judging: */
  bool judged;                /* there are enough pairs of its kind for comparison */
  double worse[TOPO_METRICS]; /* factor of the slower direction against expected; 0 unless judged */
  bool slow;
} topo_measured_pair;

/* Two parts of the machine with a SYS link in the model. All ranks of one part read the other's data at the same
 * time. */
typedef struct topo_measured_link {
  int32_t link;
  int32_t from, to; /* nodes */
  int32_t nreaders; /* concurrent readers */
  int32_t nblocks;  /* undisturbed blocks; 0: no reliable values */
  double expected;  /* GB/s, from the model; 0 unknown */
  bny_topo_source expected_source;
  double value[2]; /* GB/s: [0] ranks of `from` read data of `to`, [1] the reverse */
  double line;     /* ns: median over pairs across the link; 0: not measured */
} topo_measured_link;

/* A message of n bytes takes alpha + n beta. Both are 0 if unknown. */
typedef struct topo_cost {
  double alpha_ns, beta_ns_per_byte;
} topo_cost;

/* All pairs of one nearness. */
typedef struct topo_measured_kind {
  int32_t npairs;
  bool judged;
  double expected[TOPO_METRICS]; /* median over pairs without slow ranks */
  double least[TOPO_METRICS], most[TOPO_METRICS];
  double alpha, beta; /* ns and ns per byte; 0, 0: no fit */
} topo_measured_kind;

typedef struct topo_measured_finding {
  bool warning;  /* otherwise a note */
  int32_t a, b;  /* ranks: a pair, or one rank and -1; both -1: a link, or the machine */
  double factor; /* ratio to the expected value */
  const char *text;
} topo_measured_finding;

typedef struct topo_measured {
  int32_t nallowed; /* CPUs allowed */
  int32_t nranks;
  topo_measured_rank *ranks;
  int64_t npairs_possible;
  int32_t npairs;
  topo_measured_pair *pairs;
  int32_t nlinks;
  topo_measured_link *links;
  topo_measured_kind kinds[TOPO_NEARS];
  topo_cost planned[TOPO_NEARS]; /* the costs that plans assume */
  int32_t nfindings;
  topo_measured_finding *findings; /* worst first */
  int32_t nsweeps;
  double seconds;
  bool virtual_machine;
} topo_measured;

typedef struct topo_measure_options {
  int32_t ranks;     /* 0: one on every allowed CPU */
  double seconds;    /* approximate duration; 0: 10 */
  const char *sysfs; /* NULL: "/sys" */
  topo_cost planned[TOPO_NEARS];
} topo_measure_options;

/* Measures and judges. `topo` is a model of this machine, whose SYS links are measured too; it may be NULL. Returns
 * NULL and sets *error if ranks die or do not answer, or if there are more ranks than CPUs. The program must have only
 * one thread. Ranks and memory are always released, even if a signal ends the program. */
topo_measured *topo_measure(const topo_measure_options *options, const bny_topo *topo, tool_error *error);

/* Writes measured speeds into the model that topo_measure() received, with source "measured". */
void topo_measured_apply(const topo_measured *measured, bny_topo *topo);

char *topo_measured_text(const topo_measured *measured, const bny_topo *topo, bool colour, int32_t columns);

struct json_t;
struct json_t *topo_measured_json(const topo_measured *measured, const bny_topo *topo); /* a new reference */

/* Returns the text of a BANYAN_COSTS file for this machine. If nothing was measured, it returns NULL and sets
 * *error. */
char *topo_measured_costs(const topo_measured *measured, tool_error *error);

const char *topo_near_name(topo_near near);  /* "core" .. "system" */
const char *topo_near_words(topo_near near); /* completes "pairs of CPUs", as in "of one NUMA node" */

/* ---- parts, exposed for tests ------------------------------------------------------------------------------------ */

/* A pair is slow above 1.5 times the median latency of its kind, or below 0.67 times the median bandwidth. */
extern const double topo_slow_latency, topo_slow_bandwidth;
/* Returns the ratio of measured to planned time of a message between pairs of a kind, from the signal to the end of
 * reading. It is the larger ratio of 16 KiB and 1 MiB; 0 unless both are known. */
double topo_measured_against_plan(const topo_measured *measured, topo_near near);
enum { TOPO_JUDGED_PAIRS = 3, TOPO_JUDGED_BLOCKS = 3 };

/* Fills kinds, findings and other judgements. Only the values of ranks, pairs and links are used. `topo` has the names
 * of link ends, and may be NULL if there are no links. */
void topo_measured_judge(topo_measured *measured, const bny_topo *topo);

/* Fits alpha and beta by least squares of relative errors over times[i] of bytes[i]. Returns false if the points do not
 * determine them. */
bool topo_measure_fit(const double *bytes, const double *times, int32_t count, double *alpha, double *beta);

/* Lists the CPUs that this process may use, in ascending order. On failure it returns false and sets *error. */
bool topo_places(const char *sysfs, topo_place **places, int32_t *nplaces, tool_error *error);
topo_near topo_near_between(const topo_place *a, const topo_place *b);

/* Chooses the pairs to measure: all pairs, or at most `most`, with equal numbers of each kind and even use of ranks. */
topo_measured_pair *topo_pairs_choose(const topo_measured_rank *ranks, int32_t nranks, int32_t most, int32_t *npairs);

/* The processes of banyan-topo --measure. Each is pinned to one CPU and sleeps until it receives an order. They share
 * only memory that was mapped before the fork, so nothing remains when they end. */

typedef enum topo_job {
  TOPO_JOB_PREPARE, /* touches the buffers of its NUMA node first, which allocates them there */
  TOPO_JOB_LOCAL,   /* copies its own data */
  TOPO_JOB_PAIR,    /* measures with `peer`, which has the same job */
  TOPO_JOB_WRITE,   /* writes its part of a stream */
  TOPO_JOB_READ     /* reads the part of `peer`, together with all other readers */
} topo_job;

typedef struct topo_order {
  topo_job job;
  int32_t peer;
  bool leads;           /* pair: this rank starts, and decides when to stop */
  int32_t readers;      /* stream: number of readers */
  size_t offset, bytes; /* stream: part of the buffer of the writer's NUMA node */
  uint64_t base;        /* signals of this job are larger */
} topo_order;

typedef struct topo_answer {
  bool done;                    /* all signals arrived in time */
  bool disturbed[TOPO_METRICS]; /* another program used the CPU */
  double value[TOPO_METRICS];   /* pair: this rank's read bandwidth; the leader also has line and message */
  int64_t start_ns, end_ns;     /* times of reading a stream */
} topo_answer;

/* Order and answer between a rank and the parent, in shared memory. */
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
  sigset_t held, mask_before; /* signals blocked until topo_ranks_stop(), and the previous mask */
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

typedef _Atomic uint64_t topo_signal;

/* Starts the ranks and waits until all are ready. On failure it releases everything, and *ranks need not be stopped. */
bool topo_ranks_start(topo_ranks *ranks, const topo_measured_rank *places, int32_t nranks, tool_error *error);
void topo_ranks_stop(topo_ranks *ranks);

/* Gives each of `count` ranks its order, all with the same base, and waits for the answers. */
bool topo_ranks_do(topo_ranks *ranks, const int32_t *who, const topo_order *orders, int32_t count, tool_error *error);

/* Run in a rank (measure/work.c). */
void topo_rank_touch(topo_ranks *ranks, int32_t rank);
topo_answer topo_rank_work(topo_ranks *ranks, int32_t rank, const topo_order *order);
