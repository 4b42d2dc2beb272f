/* SPDX-License-Identifier: Apache-2.0
 *
 * The flight recorder: the last operations of a communicator, in memory that was made with it. It is always written: a
 * cache line and one reading of the processor's counter for each operation (the reading takes longer than the line). It
 * is read when the communicator fails. The duration of an operation is known if it is traced. Otherwise it was over
 * when the next began. */
#ifndef BNY_EXEC_FLIGHT_H
#define BNY_EXEC_FLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

enum { BNY_FLIGHT_ENTRIES = 256 };

/* The description of a run, made once when its plan is bound. */
typedef struct bny_flight_note {
  const char *collective, *algorithm; /* static */
  uint64_t bytes;                     /* contributed by this rank */
} bny_flight_note;

typedef struct bny_flight_entry {
  _Alignas(64) uint64_t operation; /* 0: none yet */
  uint64_t begin, end;             /* ticks; end 0: it did not finish, 1: it finished, and the time was not taken */
  bny_flight_note note;
} bny_flight_entry;

typedef struct bny_flight {
  bny_flight_entry entries[BNY_FLIGHT_ENTRIES];
  uint64_t tick0; /* creation time by both clocks */
  int64_t ns0;
} bny_flight;

bny_flight *bny_flight_make(void); /* NULL without memory */
void bny_flight_free(bny_flight *flight);

static inline void bny_flight_begin(bny_flight *flight, uint64_t operation, const bny_flight_note *note) {
  bny_flight_entry *entry = &flight->entries[operation % BNY_FLIGHT_ENTRIES];
  entry->operation = operation;
  entry->begin = bny_clock_ticks();
  entry->end = 0;
  entry->note = *note;
}

static inline bny_flight_entry *bny_flight_end(bny_flight *flight, uint64_t operation, bool timed) {
  bny_flight_entry *entry = &flight->entries[operation % BNY_FLIGHT_ENTRIES];
  entry->end = timed ? bny_clock_ticks() : 1;
  return entry;
}

/* Writes, as snprintf, the last `entries` operations up to `last`, oldest first, one a line. */
size_t bny_flight_print(const bny_flight *flight, uint64_t last, int32_t entries, char *text, size_t bytes);

/* Reports that the communicator of `rank` has failed, for the reason given, and what it did before. The report goes to
 * the log and to the file that BANYAN_FLIGHT names (bny_log_path(); lines are added), unless that is NULL. */
void bny_flight_dump(const bny_flight *flight, uint64_t last, int32_t rank, const char *reason, const char *pattern);

#endif
