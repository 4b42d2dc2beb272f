/* SPDX-License-Identifier: Apache-2.0
 * The flight recorder of a communicator: its last operations, its current wait, and its counters. It is written unless
 * BANYAN_FLIGHT is off. Each operation costs a cache line, two counters and one reading of the processor's counter. The
 * duration of an operation is known if it is traced. Otherwise the start of the next one is its upper bound.
 *
 * It lies in a memory file, which banyan-info --live reads through /proc, also while this process is stopped. So it
 * contains no pointers. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "base/clock.h"
#include "base/names.h"

#define BNY_FLIGHT_FILE "banyan-flight" /* name of the memory file */

enum { BNY_FLIGHT_ENTRIES = 256, BNY_FLIGHT_ALGORITHM_BYTES = 23 };
enum { BNY_FLIGHT_AGREE = BNY_BARRIER + 1, BNY_FLIGHT_KINDS }; /* AGREE comes after all of bny_collective */

/* The description of a run, made when its plan is bound. */
typedef struct bny_flight_note {
  uint64_t bytes; /* contributed by this rank */
  uint8_t kind;   /* a bny_collective, or BNY_FLIGHT_AGREE: ranks compare their calls */
  char algorithm[BNY_FLIGHT_ALGORITHM_BYTES];
} bny_flight_note;

typedef struct bny_flight_entry {
  _Alignas(64) uint64_t operation; /* 0: none yet */
  uint64_t begin, end;             /* ticks; end 0: it did not finish, 1: it finished, and the time was not taken */
  int64_t tag;                     /* the caller's; BANYAN_TAG_NONE: none */
  bny_flight_note note;
} bny_flight_entry;

/* Sums over finished runs of a kind. */
typedef struct bny_flight_count {
  uint64_t runs, input_bytes;
} bny_flight_count;

/* Waits for one rank that took at least the threshold. */
typedef struct bny_flight_waits {
  uint64_t count, ns;
} bny_flight_waits;

typedef struct bny_flight {
  char magic[16], version[16]; /* BNY_FLIGHT_FILE, and banyan_version() */
  uint64_t bytes;              /* total size */
  int32_t rank, nranks;
  int32_t file; /* descriptor in the process that writes; -1: plain memory */
  int32_t pid;
  uint64_t tick0; /* creation time by both clocks */
  int64_t ns0;
  int64_t threshold_ns;              /* shorter waits are not counted */
  _Alignas(64) _Atomic uint64_t run; /* number of the last operation begun; on one line with the first counts */
  bny_flight_count counts[BNY_FLIGHT_KINDS];
  _Atomic uint64_t waiting;   /* 0, or (peer + 1) << 32 | slot of a long wait, as in bny_rank_line */
  _Atomic int64_t waiting_ns; /* when it began, by the monotonic clock */
  int32_t status, culprit;    /* a failure; status 0: none */
  char failure[512];
  bny_flight_entry entries[BNY_FLIGHT_ENTRIES];
  bny_flight_waits waits[]; /* [nranks]: by the rank that was waited for */
} bny_flight;

bny_flight *bny_flight_make(int32_t rank, int32_t nranks); /* NULL without memory */
void bny_flight_free(bny_flight *flight);                  /* NULL is allowed */

/* Records the end of a wait that was long enough to enter the kernel. */
void bny_flight_wait_end(bny_flight *flight);

/* "combine" and so on, or "agree"; static. */
const char *bny_flight_name(uint8_t kind);

/* Writes the last `entries` operations up to `last`, oldest first, one per line. Returns a length like snprintf(). */
size_t bny_flight_print(const bny_flight *flight, uint64_t last, int32_t entries, char *text, size_t bytes);

/* Writes the counters as Prometheus text. Returns a length like snprintf(). */
size_t bny_flight_metrics(const bny_flight *flight, char *text, size_t bytes);
