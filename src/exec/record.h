/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor records its runs: in the flight recorder always, in a trace if requested. The hooks that runs
 * call are inline here: stores for the recorder, one branch for a trace that is off. */
#ifndef BNY_EXEC_RECORD_H
#define BNY_EXEC_RECORD_H

#include "exec/call.h"
#include "exec/flight.h"
#include "plan/plan.h"
#include "base/trace.h"

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

banyan_status bny_record_bind(const bny_record *record, const bny_plan *plan, const bny_call *call,
                              bny_run_record *run);
void bny_record_release(bny_run_record *run);

void bny_record_phase(bny_record *record, bny_run_record *run, uint64_t operation, int32_t level, uint64_t now);
void bny_record_trace(bny_record *record, bny_run_record *run, uint64_t operation, uint64_t begin, uint64_t end);

static inline void bny_record_begin(bny_record *record, bny_run_record *run, uint64_t operation) {
  if (record->flight) bny_flight_begin(record->flight, operation, &run->note);
  run->phase = -1;
}

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
