/* SPDX-License-Identifier: Apache-2.0
 * banyan-topo --measure: what signals and data really take between the CPUs of this machine, beside what is
 * expected.
 *
 * Ranks are processes, one on each CPU that the caller may use, or on the first of them as banyan-perf --ranks
 * places its own. Of at most TOPO_ALL_PAIRS ranks all pairs are measured, of more a sample with pairs of every kind
 * of nearness. Each pair is measured in short blocks, and all pairs take turns, so that a noisy moment does not hit
 * one pair alone: what is told is the median of a pair's blocks, without those during which the kernel gave a CPU to
 * another program. */
#ifndef TOPO_MEASURE_H
#define TOPO_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "tool_util.h"
#include "topo/model.h"

enum {
  TOPO_ALL_PAIRS = 16,
  TOPO_BLOCKS_MAX = 64,
  TOPO_RANKS_MAX = 4096,
  TOPO_MESSAGE_BYTES = 16 << 10,
  TOPO_SMALL_BYTES = 1 << 20,
  TOPO_LARGE_BYTES = 16 << 20,
};

/* What two CPUs share, nearest first. */
typedef enum topo_near {
  TOPO_NEAR_CORE,
  TOPO_NEAR_L2,
  TOPO_NEAR_L3,
  TOPO_NEAR_NUMA,
  TOPO_NEAR_PACKAGE,
  TOPO_NEAR_SYSTEM, /* in different packages */
  TOPO_NEARS
} topo_near;

/* What is measured of a pair. */
typedef enum topo_metric {
  TOPO_LINE,    /* ns, one way: from a store of a signal until the peer has seen it */
  TOPO_MESSAGE, /* ns, one way: writing, signal and reading of 16 KB */
  TOPO_TAKE,    /* ns: of that, the reading */
  TOPO_SMALL,   /* GB/s: copying 1 MiB that the peer has just written */
  TOPO_LARGE,   /* GB/s: 16 MiB */
  TOPO_METRICS
} topo_metric;

/* A CPU and what it is part of: caches and cores by the least of their CPUs. -1 unknown. */
typedef struct topo_place {
  int32_t cpu, core, l2, l3, numa, package;
} topo_place;

typedef struct topo_measured_rank {
  topo_place place;
  int32_t nblocks;            /* 0: its own copying was not measured */
  double small, large;        /* GB/s: copying what it wrote itself */
  int32_t ntaken, ndisturbed; /* samples that it took, and in how many of them another program had the CPU */
  bool slow;                  /* with all others, or on its own: judged */
} topo_measured_rank;

typedef struct topo_measured_pair {
  int32_t a, b; /* ranks, a < b */
  topo_near near;
  int32_t nblocks;
  /* [0]: a takes what b wrote, [1]: b what a wrote; line and message have [0] alone. */
  double value[TOPO_METRICS][2];
  double line_least;          /* of all batches in all blocks */
  double line_low, line_high; /* of a tenth and of nine tenths of the blocks */
  /* judged: */
  bool judged;                /* its kind has enough pairs to compare with */
  double worse[TOPO_METRICS]; /* how many times worse than expected, the worse direction; 0 unless judged */
  bool slow;
} topo_measured_pair;

/* Two parts of the machine that the model joins by a SYS link: all ranks of one read at once what those of the other
 * wrote. */
typedef struct topo_measured_link {
  int32_t link;
  int32_t from, to; /* nodes */
  int32_t nreaders; /* at once */
  int32_t nblocks;  /* undisturbed ones; 0: there are no values to rely on */
  double expected;  /* GB/s, of the model; 0 unknown */
  bny_topo_source expected_source;
  double value[2]; /* GB/s: [0] ranks of `from` read what those of `to` wrote */
  double line;     /* ns: median of the pairs across; 0 if none was measured */
} topo_measured_link;

/* A message of n bytes takes alpha + n beta; 0, 0: nothing is known. */
typedef struct topo_cost {
  double alpha_ns, beta_ns_per_byte;
} topo_cost;

/* All pairs of one nearness. */
typedef struct topo_measured_kind {
  int32_t npairs;
  bool judged;
  double expected[TOPO_METRICS]; /* median of pairs without those of slow ranks */
  double least[TOPO_METRICS], most[TOPO_METRICS];
  double alpha, beta; /* ns and ns a byte; 0, 0 if there is no fit */
} topo_measured_kind;

typedef struct topo_measured_finding {
  bool warning;  /* else only worth knowing */
  int32_t a, b;  /* ranks: a pair, or one rank and -1; both -1: a link, or the whole */
  double factor; /* how many times worse */
  char *text;
} topo_measured_finding;

typedef struct topo_measured {
  int32_t nallowed; /* CPUs */
  int32_t nranks;
  topo_measured_rank *ranks;
  int64_t npairs_possible;
  int32_t npairs;
  topo_measured_pair *pairs;
  int32_t nlinks;
  topo_measured_link *links;
  topo_measured_kind kinds[TOPO_NEARS];
  topo_cost planned[TOPO_NEARS]; /* what plans assume */
  int32_t nfindings;
  topo_measured_finding *findings; /* worst first */
  int32_t nsweeps;
  double seconds;
  bool virtual_machine;
} topo_measured;

typedef struct topo_measure_options {
  int32_t ranks;     /* 0: one on every CPU allowed */
  double seconds;    /* about how long; 0: 10 */
  const char *sysfs; /* NULL: "/sys" */
  topo_cost planned[TOPO_NEARS];
} topo_measure_options;

/* Measures and judges. `topo` is of this machine, its SYS links are measured too; may be NULL. NULL and *error on
 * failure: ranks that died or did not answer, more ranks than CPUs, no memory. To be called while the program has
 * one thread; it leaves nothing behind however it ends, also by a signal. */
topo_measured *topo_measure(const topo_measure_options *options, const bny_topo *topo, tool_error *error);
void topo_measured_free(topo_measured *measured);

/* Writes what was measured into the model's links, as measured. For the model that was given to topo_measure(). */
void topo_measured_apply(const topo_measured *measured, bny_topo *topo);

/* For the caller to free; NULL and *error. */
char *topo_measured_text(const topo_measured *measured, const bny_topo *topo, bool colour, int32_t columns,
                         tool_error *error);

struct json_t;
struct json_t *topo_measured_json(const topo_measured *measured,
                                  const bny_topo *topo); /* a new reference; NULL without memory */

const char *topo_near_name(topo_near near); /* "core" .. "system" */

/* ---- parts, apart for tests -------------------------------------------------------------------------------------- */

/* A pair is slow beyond 1.5 times the latency of its kind's median, or below 0.67 times the bandwidth. */
extern const double topo_slow_latency, topo_slow_bandwidth;
/* How many times longer than plans assume a message of 16 KB, or of 1 MiB if that is worse, takes between pairs of a
 * kind from the signal to the end of reading; below 1 where it takes less. 0 unless both are known. */
double topo_measured_against_plan(const topo_measured *measured, topo_near near);
enum { TOPO_JUDGED_PAIRS = 3, TOPO_JUDGED_BLOCKS = 3 };

/* Fills kinds, findings and what else is judged, from the values of ranks, pairs and links and nothing else. Names
 * of the links' ends come from `topo`, which may be NULL where there are no links. False without memory. */
bool topo_measured_judge(topo_measured *measured, const bny_topo *topo);

/* alpha and beta by least squares of relative errors over times[i] of bytes[i]. False if the points do not tell. */
bool topo_measure_fit(const double *bytes, const double *times, int32_t count, double *alpha, double *beta);

/* Places of the CPUs that this process may use, ascending, for the caller to free. False and *error. */
bool topo_places(const char *sysfs, topo_place **places, int32_t *nplaces, tool_error *error);
topo_near topo_near_between(const topo_place *a, const topo_place *b);

/* Pairs to measure: all, or at most `most` with each kind's share alike and ranks used evenly. For the caller to
 * free. */
bool topo_pairs_choose(const topo_measured_rank *ranks, int32_t nranks, int32_t most, topo_measured_pair **pairs,
                       int32_t *npairs);

#endif
