/* SPDX-License-Identifier: Apache-2.0
 * Records a rank's operations and their times, for chrome://tracing and Perfetto (docs/observability.md). A record is a
 * store to preallocated memory. Times are ticks (clock.h) until they are written. Local attention has no communicator:
 * each thread keeps its own spans, and its next operation on a traced communicator takes them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "banyan.h"
#include "base/clock.h"

typedef enum bny_trace_kind {
  BNY_TRACE_OPERATION, /* name: the collective; detail: the algorithm; number: unused */
  BNY_TRACE_PHASE,     /* name: the level; number: its index */
  BNY_TRACE_WAIT,      /* name: the reason; number: the peer */
  BNY_TRACE_ATTENTION  /* number: rows; bytes: of keys and values */
} bny_trace_kind;

typedef struct bny_trace_event {
  uint64_t begin, end; /* ticks */
  uint64_t operation;
  uint64_t bytes;
  int64_t tag;               /* the caller's, for operations and waits; below 0: none */
  const char *name, *detail; /* NULL, or valid as long as the trace */
  int32_t number;
  bny_trace_kind kind;
} bny_trace_event;

typedef struct bny_trace {
  bny_trace_event *events;
  uint32_t count, capacity;
  uint64_t dropped;
  int file;
  uint64_t process; /* the process that made it; the child of a fork does not touch the file */
  int32_t rank;
  uint64_t tick0; /* tick of the last write, and its time since the origin */
  int64_t ns0, clock0;
  bool failed; /* the file cannot be written; reported once */
} bny_trace;

/* Opens the file of bny_log_path(). `events` is the number that fits between two writes to the file. */
banyan_status bny_trace_open(const char *pattern, int32_t rank, int32_t nranks, int64_t events, bny_trace **trace);
void bny_trace_close(bny_trace *trace); /* writes the remaining events; NULL is allowed */

static inline void bny_trace_add(bny_trace *trace, const bny_trace_event *event) {
  if (trace->count < trace->capacity)
    trace->events[trace->count++] = *event;
  else
    trace->dropped++;
}

void bny_trace_write(bny_trace *trace);

/* Call it between operations. Writes the events to the file if those of the next operation might not fit. */
static inline void bny_trace_settle(bny_trace *trace) {
  if (trace->count > trace->capacity / 4 * 3) bny_trace_write(trace);
}

/* ---- spans of local attention ------------------------------------------------------------------------------------ */

enum { BNY_TRACE_SPANS = 32 }; /* further ones between two operations are dropped */

typedef struct bny_trace_span {
  uint64_t begin, end, bytes;
  int32_t rows;
} bny_trace_span;

typedef struct bny_trace_local {
  bool on; /* this thread has run a traced operation */
  uint32_t count;
  bny_trace_span spans[BNY_TRACE_SPANS];
} bny_trace_local;

extern _Thread_local bny_trace_local bny_trace_of_thread;

/* Returns 0 if no trace is wanted. */
static inline uint64_t bny_trace_span_begin(void) { return bny_trace_of_thread.on ? bny_clock_ticks() : 0; }

static inline void bny_trace_span_end(uint64_t begin, int32_t rows, uint64_t bytes) {
  bny_trace_local *local = &bny_trace_of_thread;
  if (local->count < BNY_TRACE_SPANS)
    local->spans[local->count++] = (bny_trace_span){begin, bny_clock_ticks(), bytes, rows};
}

/* Turns this thread's spans into events. */
void bny_trace_take_spans(bny_trace *trace);
