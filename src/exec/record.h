/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor records its runs: in the flight recorder always, in a trace if requested. The hooks that runs
 * call are inline here: stores for the recorder, one branch for a trace that is off. */
#ifndef BNY_EXEC_RECORD_H
#define BNY_EXEC_RECORD_H

#include "exec/notice.h"
#include "plan/plan.h"
#include "base/clock.h"
#include "base/trace.h"

/* ---- the flight recorder: the last operations of a communicator -------------------------------------------------- */

/* It is always written: a cache line and one reading of the processor's counter for each operation (the reading takes
 * longer than the line). It is read when the communicator fails. The duration of an operation is known if it is traced.
 * Otherwise it was over when the next began. */
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

/* ---- flight recorder and trace ----------------------------------------------------------------------------------- */

/* Texts live as long as bny_record_open() runs. */
typedef struct bny_record_config {
  bool no_flight;
  const char *flight_file; /* the file that a failure and the operations before it are written to; NULL: only the log */
  const char *trace_file;  /* NULL: no trace */
  int64_t trace_events;
  const bny_levels *levels; /* names of phases; NULL: none. Must outlive the record */
} bny_record_config;

/* The record of a communicator. */
typedef struct bny_record {
  bny_flight *flight; /* NULL: off */
  bny_trace *trace;   /* NULL: off */
  char *flight_file;
  const bny_levels *levels;
} bny_record;

/* The record of a bound plan. */
typedef struct bny_run_record {
  bny_flight_note note;
  int8_t *levels; /* by step: the level of the links that it uses, -1: none. NULL: phases are not traced */
  int32_t phase;  /* the level of the current steps; -1: none */
  uint64_t phase_begin;
} bny_run_record;

/* Logs a warning if a trace cannot be written, and goes on without it. */
banyan_status bny_record_open(const bny_record_config *config, int32_t rank, int32_t nranks, bny_record *record);
void bny_record_close(bny_record *record);

banyan_status bny_record_bind(const bny_record *record, const bny_plan *plan, const bny_notice *call,
                              bny_run_record *run);
void bny_record_release(bny_run_record *run);

void bny_record_phase(bny_record *record, bny_run_record *run, uint64_t operation, int32_t level, uint64_t now);
void bny_record_trace(bny_record *record, bny_run_record *run, uint64_t operation, uint64_t begin, uint64_t end);

static inline void bny_record_step(bny_record *record, bny_run_record *run, uint64_t operation, int32_t step) {
  if (run->levels && run->levels[step] != run->phase)
    bny_record_phase(record, run, operation, run->levels[step], bny_clock_ticks());
}

/* Returns 0 if the duration of a wait is not recorded. */
static inline uint64_t bny_record_wait_begin(const bny_record *record) { return record->trace ? bny_clock_ticks() : 0; }

/* `what` must be static. The peer follows it, as in "wait for rank 2". */
static inline void bny_record_wait_end(bny_record *record, uint64_t begin, uint64_t operation, const char *what,
                                       int32_t peer, uint64_t bytes) {
  if (begin)
    bny_trace_add(record->trace, &(bny_trace_event){.begin = begin,
                                                    .end = bny_clock_ticks(),
                                                    .operation = operation,
                                                    .bytes = bytes,
                                                    .name = what,
                                                    .number = peer,
                                                    .kind = BNY_TRACE_WAIT});
}

/* The communicator has failed during, or after, this operation. */
void bny_record_fail(bny_record *record, uint64_t operation, int32_t rank, const char *reason);

/* The run has come to its end. */
static inline void bny_record_end(bny_record *record, bny_run_record *run, uint64_t operation) {
  if (!record->flight) return;
  const bny_flight_entry *entry = bny_flight_end(record->flight, operation, record->trace != NULL);
  if (record->trace) bny_record_trace(record, run, operation, entry->begin, entry->end);
}

#endif
