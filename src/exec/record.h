/* SPDX-License-Identifier: Apache-2.0
 * The executor records its runs: in the flight recorder always, in a trace if requested. The hooks that runs call are
 * inline here: stores for the recorder, one branch for a trace that is off. */
#pragma once

#include "exec/notice.h"
#include "plan/plan.h"
#include "base/clock.h"
#include "base/flight.h"
#include "base/trace.h"

/* Static probes for bpftrace, SystemTap and perf: a no-op in the code of each until one is attached. The provider is
 * `banyan`; docs/observability.md lists the probes and their arguments. */
#if !defined(WITHOUT_SDT) && __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#define BNY_PROBE_4(name, a, b, c, d) DTRACE_PROBE4(banyan, name, a, b, c, d)
#define BNY_PROBE_6(name, a, b, c, d, e, f) DTRACE_PROBE6(banyan, name, a, b, c, d, e, f)
#else
#define BNY_PROBE_4(name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#define BNY_PROBE_6(name, a, b, c, d, e, f) ((void)(a), (void)(b), (void)(c), (void)(d), (void)(e), (void)(f))
#endif

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
  const char *metrics_file; /* NULL: none */
  int64_t metrics_every_ns; /* interval at which it is replaced */
  int64_t metrics_wait_ns;  /* the shortest wait that is counted */
  const bny_levels *levels; /* names of phases; NULL: none. Must outlive the record */
} bny_record_config;

/* The record of a communicator. */
typedef struct bny_record {
  bny_flight *flight; /* NULL: off */
  bny_trace *trace;   /* NULL: off */
  char *flight_file;
  struct bny_metrics *metrics; /* NULL: off */
  const bny_levels *levels;
  int32_t rank;
  int64_t tag; /* the caller's, of the run under way; ranks compare it. BANYAN_TAG_NONE: none */
} bny_record;

/* The record of a bound plan. */
typedef struct bny_run_record {
  bny_flight_note note;
  const char *name, *algorithm; /* static */
  int8_t *levels; /* by step: the level of the links that it uses, -1: none. NULL: phases are not traced */
  int32_t phase;  /* the level of the current steps; -1: none */
  uint64_t phase_begin;
} bny_run_record;

/* Logs a warning if a trace cannot be written, and goes on without it. */
banyan_status bny_record_open(const bny_record_config *config, int32_t rank, int32_t nranks, bny_record *record);
void bny_record_close(bny_record *record);

banyan_status bny_record_bind(const bny_record *record, const bny_plan *plan, const bny_notice *notice,
                              bny_run_record *run);
void bny_record_relabel(bny_run_record *run, const bny_notice *notice);
void bny_record_release(bny_run_record *run);

void bny_record_phase(bny_record *record, bny_run_record *run, uint64_t operation, int32_t level, uint64_t now);
void bny_record_trace(bny_record *record, bny_run_record *run, uint64_t operation, uint64_t begin, uint64_t end);

static inline void bny_record_step(bny_record *record, bny_run_record *run, uint64_t operation, int32_t step) {
  if (run->levels && run->levels[step] != run->phase)
    bny_record_phase(record, run, operation, run->levels[step], bny_clock_ticks());
}

/* Returns 0 if the duration of a wait is not recorded. */
static inline uint64_t bny_record_wait_begin(const bny_record *record) { return record->trace ? bny_clock_ticks() : 0; }

static inline void bny_record_begin(bny_record *record, bny_run_record *run, uint64_t operation) {
  run->phase = -1;
  if (record->flight) {
    bny_flight_entry *entry = &record->flight->entries[operation % BNY_FLIGHT_ENTRIES];
    entry->operation = operation;
    entry->begin = bny_clock_ticks();
    entry->end = 0;
    entry->tag = record->tag;
    entry->note = run->note;
    atomic_store_explicit(&record->flight->run, operation, memory_order_release);
  }
  BNY_PROBE_6(start, record->rank, operation, run->name, run->algorithm, run->note.bytes, record->tag);
}

/* Record the begin and the end of a wait that polls have not ended. `waiting` is as in bny_rank_line. */
static inline void bny_record_long_wait(bny_record *record, uint64_t operation, uint64_t waiting, int64_t now_ns) {
  if (record->flight) {
    atomic_store_explicit(&record->flight->waiting_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&record->flight->waiting, waiting, memory_order_release);
  }
  BNY_PROBE_4(wait, record->rank, operation, (int32_t)(waiting >> 32) - 1, record->tag);
}

static inline void bny_record_long_wait_end(bny_record *record, uint64_t operation, uint64_t waiting) {
  if (record->flight) bny_flight_wait_end(record->flight);
  BNY_PROBE_4(wait_end, record->rank, operation, (int32_t)(waiting >> 32) - 1, record->tag);
}

/* `what` must be static. The peer follows it, as in "wait for rank 2". */
static inline void bny_record_wait_end(bny_record *record, uint64_t begin, uint64_t operation, const char *what,
                                       int32_t peer, uint64_t bytes) {
  if (begin)
    bny_trace_add(record->trace, &(bny_trace_event){.begin = begin,
                                                    .end = bny_clock_ticks(),
                                                    .operation = operation,
                                                    .bytes = bytes,
                                                    .tag = record->tag,
                                                    .name = what,
                                                    .number = peer,
                                                    .kind = BNY_TRACE_WAIT});
}

/* Records that the communicator has failed during or after this operation. */
void bny_record_fail(bny_record *record, uint64_t operation, banyan_status status, int32_t culprit, const char *reason);

/* Writes the metrics file if its interval has passed (metrics.c). */
void bny_metrics_look(struct bny_metrics *metrics, const bny_flight *flight);

static inline void bny_record_end(bny_record *record, bny_run_record *run, uint64_t operation) {
  BNY_PROBE_4(end, record->rank, operation, run->name, record->tag);
  bny_flight *flight = record->flight;
  if (!flight) return;
  bny_flight_entry *entry = &flight->entries[operation % BNY_FLIGHT_ENTRIES];
  entry->end = record->trace ? bny_clock_ticks() : 1;
  flight->counts[entry->note.kind].runs++;
  flight->counts[entry->note.kind].input_bytes += entry->note.bytes;
  if (record->trace) bny_record_trace(record, run, operation, entry->begin, entry->end);
  if (record->metrics) bny_metrics_look(record->metrics, flight);
}
